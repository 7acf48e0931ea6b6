"""The runs of a group: what each was given, and what it has come to, as plain data."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

from nbtorchjob.state.events import AWAITED, HELD
from nbtorchjob.state.job import JobState
from nbtorchjob.state.progress import latest

T = TypeVar("T")  # whatever a run is known by

STOPPED = "STOPPED"  # in place of the phase, of a run that was stopped early


def metrics(state: JobState) -> dict[str, float]:
    """Return what a run last reported, of rank 0 or the first rank that reports."""
    if not state.series:
        return {}
    return {name: as_number(value) for name, value in latest(state.series[min(state.series)]).items()}


def as_number(value: object) -> float:
    """Return a metric as a number; what isn't one is nan."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def curve(state: JobState, metric: str) -> list[tuple[float, float]]:
    """Return what a run reported of a metric, over its epochs or steps if it tells them, else by number."""
    series = state.series.get(min(state.series, default=0))
    points = [point for point in series.points if metric in point.metrics] if series else []
    along = next((name for name in ("epoch", "step") if all(name in p.metrics for p in points)), "")
    return [
        (as_number(point.metrics[along]) if along else float(point.seq), as_number(point.metrics[metric]))
        for point in points
    ]


def seconds(state: JobState, now: float) -> float | None:
    """Return how long a run has run, without what it waited for its turn; None before it began."""
    if state.started is None:
        return None
    return max(0.0, (state.ended if state.ended is not None else now) - state.started)


def row(state: JobState, now: float, value: object) -> dict[str, Any]:
    """Return a run, with its value, as a row of its group's table.

    What has the name of another column comes as ``params.NAME`` or ``metrics.NAME``, as MLflow calls them:
    many runs report the ``lr`` that they were given.
    """
    own = {"run": state.info.number}
    phase = {"phase": STOPPED if state.stopped_early else state.phase.value}
    ends = {
        "seconds": seconds(state, now),
        "attempts": max(1, len(state.attempts)),
        "value": value,
        "job": state.info.name,
    }
    taken = {*own, *phase, *ends}
    parameters = _apart("params", state.info.given, taken)
    return {
        **own,
        **parameters,
        **phase,
        **_apart("metrics", metrics(state), taken | parameters.keys()),
        **ends,
    }


def _apart(kind: str, columns: Mapping[str, Any], taken: Container[str]) -> dict[str, Any]:
    return {f"{kind}.{name}" if name in taken else name: value for name, value in columns.items()}


def varied(states: Sequence[JobState]) -> list[str]:
    """Return the names that were given, those first whose values differ."""
    names = list(dict.fromkeys(name for state in states for name in state.info.given))
    return sorted(names, key=lambda name: len({repr(state.info.given.get(name)) for state in states}) < 2)


def waits(state: JobState) -> bool | None:
    """Return whether a run waits for its turn, or is under way.

    None for one that takes no place in its group: it has ended, or its user suspended it before its turn.
    """
    if state.phase.terminal:
        return None
    turn = state.pause.turn if state.pause is not None and state.suspended and not state.nodes else ""
    return None if turn == HELD else turn == AWAITED and state.cancelled is None


def due(left: Mapping[T, bool | None], at_once: int) -> list[T]:
    """Return which runs of a group, by whether each waits, are to be started now, in their order.

    ``at_once`` of them are to be under way, where one that its user suspended keeps its place.
    """
    under_way = sum(waits is False for waits in left.values())
    return [run for run, waits in left.items() if waits][: max(0, at_once - under_way)]
