"""What rank 0's reports say: the newest values, how far it is, when it will be done, the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nbtorchjob.state import Point, Series
from nbtorchjob.text.words import DOT, count, duration, line, number

# What counts, and what may be reported beside it to say how many there will be.
TOTALS = {"epoch": ("epochs", "total"), "step": ("steps", "total")}
_COUNTING = {"epoch", "step", "epochs", "steps", "total"}
_MAX_NAME = 32
REPORT = "report"  # what is counted where neither steps nor epochs are


@dataclass(frozen=True)
class Progress:
    """How much is done; ``left`` is in seconds, None before two counts are known."""

    unit: str
    done: float
    total: float
    left: float | None = None

    def __str__(self) -> str:
        told = f"{number(self.done)} of {number(self.total)} {self.unit}s"
        return told if self.left is None else f"{told}{DOT}about {duration(self.left)} left"


@dataclass(frozen=True)
class Curve:
    """One metric over ``label``: the step, the epoch or the number of the report."""

    label: str
    points: Sequence[tuple[float, float]]


def latest(series: Series) -> dict[str, float]:
    """Return the newest value of each metric, in the order in which they first came."""
    values: dict[str, float] = {}
    for point in series.points:
        values.update((name, _float(value)) for name, value in point.metrics.items())
    return values


def progress(series: Series, now: float | None = None) -> Progress | None:
    """Say how far it is, if an epoch or step was reported with a total; without ``now`` no time."""
    values = latest(series)
    for unit, totals in TOTALS.items():
        total = next((values[name] for name in totals if name in values), math.nan)
        if unit not in values or not (math.isfinite(values[unit]) and 0 < total < math.inf):
            continue
        counted = counts(series, unit)
        # Who counts from 0 has done one more than the number reported.
        done = values[unit] + (counted[0][1] == 0)
        each = pace(counted)
        left = None
        if now is not None and each is not None:
            left = max(0.0, (total - done) * each - max(0.0, now - counted[-1][0]))
        return Progress(unit, min(max(done, 0.0), total), total, left)
    return None


def rate(series: Series) -> str:
    """Say how fast it goes: ``12.3 steps/s``, ``4.2 s per epoch``; empty where that isn't known."""
    for unit in ("step", "epoch"):
        each = pace(counts(series, unit))
        if each:
            return f"{1 / each:.1f} {unit}s/s" if each < 1 else f"{duration(each)} per {unit}"
    return ""


def told(series: Series, most: int, *, counting: bool = True) -> list[str]:
    """Return ``loss 0.41`` for each metric, at most ``most`` of them, and how many more there are.

    A total isn't listed beside what counts up to it; without ``counting`` neither of them is.
    """
    values = latest(series)
    totals = {total for unit, names in TOTALS.items() if unit in values for total in names}
    values = {k: v for k, v in values.items() if k not in (totals if counting else _COUNTING)}
    shown = [f"{line(name, _MAX_NAME)} {number(values[name])}" for name in [*values][:most]]
    more = len(values) - len(shown)
    return [*shown, f"and {count(more, 'more metric')}"] if more > 0 else shown


def curves(series: Series, most: int = 4) -> dict[str, Curve]:
    """Return the metrics worth a chart: reported at least twice, and not themselves a count."""
    found: dict[str, Curve] = {}
    for name in latest(series):
        points = [point for point in series.points if name in point.metrics]
        if name not in _COUNTING and len(points) > 1 and len(found) < most:
            found[name] = _curve(name, points)
    return found


def _curve(name: str, points: Sequence[Point]) -> Curve:
    values = [_float(point.metrics[name]) for point in points]
    for label in ("step", "epoch"):
        xs = [_float(point.metrics.get(label, math.nan)) for point in points]
        # A step that starts anew with each epoch would draw a line that runs back.
        if all(a < b for a, b in pairwise(xs)):
            return Curve(label, [*zip(xs, values, strict=True)])
    return Curve(REPORT, [(float(p.seq + 1), v) for p, v in zip(points, values, strict=True)])


def counts(series: Series, unit: str) -> list[tuple[float, float]]:
    """Return when each count of ``unit`` was reported, and the count; reports themselves are counted too."""
    if unit == REPORT:
        return [(point.time, point.seq + 1.0) for point in series.points]
    return [(p.time, _float(p.metrics[unit])) for p in series.points if unit in p.metrics]


def pace(counts: Sequence[tuple[float, float]]) -> float | None:
    """Return seconds for one, from the first report to the newest; None where nothing was counted."""
    if not counts:
        return None
    took, many = counts[-1][0] - counts[0][0], counts[-1][1] - counts[0][1]
    return took / many if took > 0 and 0 < many < math.inf else None


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a Python int may be of any size
        return math.inf if value > 0 else -math.inf
