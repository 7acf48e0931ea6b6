"""What rank 0's reports say: the newest values, and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.report import TOTALS
from nbtorchjob.state import Point, Series
from nbtorchjob.state.progress import REPORT, as_float, latest
from nbtorchjob.text.words import count, line, number

_COUNTING = {"epoch", "step", "epochs", "steps", "total"}
_MAX_NAME = 32
_MARKS = 8


class Curve(FrozenDataclass):
    """One metric over ``label``: the step, the epoch or the number of the report.

    Where a round's steps begin before the end of the last one, x falls back. ``marks`` are where a round
    ended, and why.
    """

    label: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, str]] = ()


def newest(series: Series, *, counting: bool = True) -> list[tuple[str, str]]:
    """Return the newest value of each metric with its name.

    A total isn't listed besides what counts up to it; without ``counting`` neither is.
    """
    values = latest(series)
    totals = {total for unit, names in TOTALS.items() if unit in values for total in names}
    left = [name for name in values if name not in (totals if counting else _COUNTING)]
    return [(line(name, _MAX_NAME), number(values[name])) for name in left]


def told(series: Series, most: int, *, counting: bool = True) -> list[str]:
    """Return ``loss 0.41`` for each of :func:`newest`, at most ``most``, and how many more there are."""
    values = newest(series, counting=counting)
    shown = [f"{name} {value}" for name, value in values[:most]]
    more = len(values) - len(shown)
    return [*shown, f"and {count(more, 'more metric')}"] if more > 0 else shown


def curves(series: Series, turns: Mapping[int, str], most: int = 4) -> dict[str, Curve]:
    """Return the metrics worth a chart: those that changed, and aren't themselves a count.

    ``turns`` are why each round began.
    """
    found: dict[str, Curve] = {}
    for name in latest(series):
        rounds = [
            (r, some) for r, points in series.stretches if (some := [p for p in points if name in p.metrics])
        ]
        values = {as_float(point.metrics[name]) for _, points in rounds for point in points}
        if name not in _COUNTING and len([v for v in values if math.isfinite(v)]) > 1 and len(found) < most:
            found[name] = _curve(name, rounds, turns)
    return found


def _curve(name: str, rounds: Sequence[tuple[int, list[Point]]], turns: Mapping[int, str]) -> Curve:
    label, along = _along(rounds)
    points, marks = [], []
    for (round_, found), xs, (later, _) in zip(rounds, along, [*rounds[1:], (None, [])], strict=True):
        points += [(x, as_float(point.metrics[name])) for x, point in zip(xs, found, strict=True)]
        if later is not None:
            why = [text for turn, text in turns.items() if round_ < turn <= later]
            marks.append((xs[-1], why[0] if why else ""))
    return Curve(label, points, tuple(marks[-_MARKS:]))


def _along(rounds: Sequence[tuple[int, list[Point]]]) -> tuple[str, list[list[float]]]:
    """Return the name of the x axis, and each round's points on it."""
    for label in ("step", "epoch"):
        along = [[as_float(p.metrics.get(label, math.nan)) for p in points] for _, points in rounds]
        # A step that restarts with each epoch would draw a line that runs back.
        if all(math.isfinite(xs[0]) and all(a < b for a, b in pairwise(xs)) for xs in along):
            return label, along
    along, before = [], 1.0
    for _, points in rounds:
        along.append([before + p.seq for p in points])
        before = along[-1][-1] + 1
    return REPORT, along
