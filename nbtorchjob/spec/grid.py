"""What the runs of a group are given: ``--each lr=0.1,0.01 --each seed=0:3``, and which of it is sent.

When runs of a group are stopped before their end: a condition, successive halving, or both.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeAlias

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


MOST = 10_000
ASKED_BACK = 100  # so many runs are sent without a question
# Gives what a notebook has under an expression; raises whatever evaluating that raises.
LookUp: TypeAlias = Callable[[str], Any]

_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_EACH = re.compile(r"--each(?:\s+|=)[^\W\d]\w*=(?=[${])")
_NAME = re.compile(r"\$[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """A line's options for many jobs from one cell: which runs there are, and how many at a time."""

    each: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=option(
            "--each",
            help="a run for each: 1,2,3 or 0:3 or $list or {expression}",
            takes="pairs",
            metavar="NAME=VALUES",
        ),
    )
    zip: bool = field(
        default=False,
        metadata=option("--zip", help="pair the values up, in place of their product", takes="switch"),
    )
    sample: int | None = field(
        default=None,
        metadata=option(
            "--sample", help="only so many of the runs, drawn at random", takes="int", metavar="N"
        ),
    )
    seed: int = field(
        default=0, metadata=option("--seed", help="which ones --sample draws", takes="int", metavar="N")
    )
    at_once: int | None = field(
        default=None,
        metadata=option("--at-once", help="how many of the runs at a time", takes="int", metavar="N"),
    )
    yes: bool = field(
        default=False,
        metadata=option("--yes", help=f"send more than {ASKED_BACK} runs without asking", takes="switch"),
    )
    early: Early = field(default_factory=Early)  # what stops some of them before their end

    def __post_init__(self) -> None:
        for name in ("sample", "at_once"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SpecError(name, value, "a whole number, 1 or more")
        if not isinstance(self.seed, int):
            raise SpecError("seed", self.seed, "a whole number")
        if not self.each:
            raise SpecError("--each", None, "NAME=VALUES, as --each lr=0.1,0.01", Shape.MISSING)
        names = [name for name, _ in self.each]
        for name in names:
            if not name.isidentifier():
                raise SpecError("each", name, "a Python name")
            if names.count(name) > 1:
                raise SpecError("each", name, "names that differ: one of them is given twice")


def rows(asked: GroupOptions, look_up: LookUp) -> list[dict[str, Any]]:
    """Return what each run is given, in order; raises ``SpecError`` where that are none, or too many."""
    columns = {name: values(name, text, look_up) for name, text in asked.each}
    sizes = {name: len(column) for name, column in columns.items()}
    for name, size in sizes.items():
        if not size:
            raise SpecError(f"--each {name}", dict(asked.each)[name], "at least one value: there are no runs")
    if asked.zip and len({*sizes.values()}) > 1:
        told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise SpecError("--zip", told, "as many values of each name")
    total = next(iter(sizes.values())) if asked.zip else math.prod(sizes.values())
    chosen: Sequence[int] = range(total)
    if asked.sample is not None and asked.sample < total:
        chosen = sorted(random.Random(asked.seed).sample(chosen, asked.sample))
    if len(chosen) > MOST:
        counted = " × ".join(f"{size:,}" for size in sizes.values())
        raise SpecError("--each", f"{counted} runs", f"at most {MOST:,}: --sample N draws some of them")
    return [_row(columns, number, zipped=asked.zip) for number in chosen]


def _row(columns: Mapping[str, Sequence[Any]], number: int, *, zipped: bool) -> dict[str, Any]:
    """Return a run by its number in the product, whose last name varies fastest."""
    if zipped:
        return {name: column[number] for name, column in columns.items()}
    found = {}
    for name, column in reversed([*columns.items()]):
        number, at = divmod(number, len(column))
        found[name] = column[at]
    return {name: found[name] for name in columns}


def values(name: str, text: str, look_up: LookUp) -> list[Any]:
    """Return the values that a text stands for; raises ``SpecError``."""
    if text.startswith("$") or (text.startswith("{") and text.endswith("}")):
        return _looked_up(name, text, look_up)
    if ends := _RANGE.fullmatch(text):
        first, end, step = int(ends[1]), int(ends[2]), int(ends[3] or 1)
        if not step:
            raise SpecError(f"--each {name}", text, "a range FIRST:END:STEP whose step isn't 0")
        if abs(end - first) // abs(step) > MOST:
            raise SpecError(f"--each {name}", text, f"at most {MOST:,} values")
        return [*range(first, end, step)]
    try:
        found = [*ast.literal_eval(f"({text},)")]
        return [*found[0]] if len(found) == 1 and isinstance(found[0], list) else found
    except _NO_LITERAL:
        return [_literal(part.strip()) for part in text.split(",") if part.strip()]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        return text


def _looked_up(name: str, text: str, look_up: LookUp) -> list[Any]:
    expression = text[1:] if text.startswith("$") else text[1:-1]
    try:
        found = look_up(expression.strip())
    except Exception as exc:  # whatever the notebook's code raises
        raise SpecError(
            f"--each {name}", text, f"what can be evaluated here ({type(exc).__name__}: {exc})"
        ) from None
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise SpecError(f"--each {name}", text, f"a list of values; it is of type {type(found).__name__}")
    return [*_some(found)]


def _some(found: Iterable[Any]) -> Iterator[Any]:
    """Yield no more values than are refused: a generator may have no end."""
    for _, each in zip(range(MOST + 1), found, strict=False):
        yield each


def kept(line: str, expand: Callable[[str], str]) -> str:
    """Expand a line but for the values of ``--each``: of ``$rates`` its text would be no list of them."""
    found, at = [], 0
    while (each := _EACH.search(line, at)) is not None:
        end = _end(line, each.end())
        word = line[each.start() : end]
        head, _, value = word.partition("each")[2].lstrip("= \t").partition("=")
        found += [expand(line[at : each.start()]), f"--each {_quoted(f'{head}={value}')}"]
        at = end
    return "".join((*found, expand(line[at:]) if line[at:] else ""))


def _end(line: str, at: int) -> int:
    """Return where ``$name`` or ``{…}`` ends that begins there; braces and quotes in it are Python's."""
    if line[at] == "$":
        found = _NAME.match(line, at)
        return found.end() if found else at + 1
    depth, quote = 0, ""
    for index in range(at, len(line)):
        char = line[index]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "{[(") - (char in "}])")
            if not depth:
                return index + 1
    return len(line)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"
