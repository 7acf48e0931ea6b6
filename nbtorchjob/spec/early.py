"""When runs of a group are stopped before their end: a condition, successive halving, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec import condition
from nbtorchjob.spec.condition import BEST, Condition
from nbtorchjob.spec.validation import option, sequence, whole

_MOST_NAME = 200  # characters of a metric's name


@dataclass(frozen=True, kw_only=True)
class Early:
    """What stops a group's runs early; where it asks for nothing all run to their end."""

    stop_when: str | None = field(
        default=None,
        metadata=option(
            "--stop-when",
            help="end a run of whose reports this holds: 'loss > 2 * best_loss'",
            metavar="CONDITION",
        ),
    )
    halve: str | None = field(
        default=None,
        metadata=option(
            "--halve",
            help="successive halving: only the best runs in this metric go on",
            metavar="METRIC",
        ),
    )
    by: str | None = field(
        default=None,
        metadata=option(
            "--by",
            help="the metric that says how far a run is, as epoch",
            metavar="METRIC",
        ),
    )
    factor: int = field(
        default=3,
        metadata=option(
            "--factor",
            help="the best 1/N go on, N times as far",
            takes="int",
            metavar="N",
        ),
    )
    at_least: int = field(
        default=1,
        metadata=option("--at-least", help="how far all runs come", takes="int", metavar="N"),
    )
    largest: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "--largest", help="of this metric the largest is the best", takes="texts", metavar="METRIC"
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "largest", sequence("largest", self.largest))
        for name in ("halve", "by"):
            _metric(name, getattr(self, name))
        whole("factor", self.factor, 2)
        whole("at_least", self.at_least, 1)
        bests = {self.halve} - {None}
        if self.condition is not None:
            bests |= {name.metric for name in self.condition.names if name.of == BEST}
        for metric in self.largest:
            if metric not in bests:
                need = f"without --halve {metric}, or best_{metric} in --stop-when"
                raise SpecError("largest", metric, need, Shape.CONFLICT)
        if not self.asked:
            for each, default in (("by", None), ("factor", 3), ("at_least", 1)):
                if getattr(self, each) != default:
                    raise SpecError(
                        each, getattr(self, each), "without --halve or --stop-when", Shape.CONFLICT
                    )

    @property
    def asked(self) -> bool:
        """Whether anything stops runs early."""
        return self.stop_when is not None or self.halve is not None

    @cached_property
    def condition(self) -> Condition | None:
        """The condition that ends a run; None where there is none."""
        return None if self.stop_when is None else condition.parse(self.stop_when)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that runs have to report for it."""
        named = {name.metric for name in self.condition.names} if self.condition is not None else set()
        return frozenset({*named, *filter(None, (self.halve, self.by))})

    def record(self) -> Mapping[str, Any]:
        """Return it as plain data, which ``jobspec.build`` takes; empty where nothing is asked for."""
        return {f.name: getattr(self, f.name) for f in fields(Early)} if self.asked else {}


def _metric(field: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _MOST_NAME:
        raise SpecError(field, value, "the name of a metric, as report() calls it")
