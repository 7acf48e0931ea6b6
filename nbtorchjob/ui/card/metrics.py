"""What rank 0's reports say: the newest values, curves, and the values under the pointer.

A chart is an image, which no pointer reaches into. What lies over it is placed in percent, to fit any size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TypeVar

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import Point, Series
from nbtorchjob.state.facts.series import as_float, axis_of
from nbtorchjob.state.progress import REPORT, latest, measures
from nbtorchjob.text.words import count, line, number
from nbtorchjob.ui.card.chart import XY, Chart
from nbtorchjob.ui.elements import PLAIN, SMALL, fold, grid, tag

T = TypeVar("T")  # whatever a job is known by

_MAX_NAME = 32
_MARKS = 8


class Curve(FrozenDataclass):
    """One metric over ``label``: the step, the epoch or the number of the report.

    x falls back where a round's steps begin before the end of the previous round's. ``marks`` say where a
    round ended or code was swapped, and why.
    """

    label: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, str]] = ()


def newest(series: Series, *, counting: bool = True) -> list[tuple[str, str]]:
    """Return the newest value of each metric with its name.

    A total isn't listed beside the metric that counts up to it; without ``counting`` neither is.
    """
    values = latest(series)
    return [(line(name, _MAX_NAME), number(values[name])) for name in measures(values, counting=counting)]


def summary(series: Series, most: int, *, counting: bool = True) -> list[str]:
    """Return ``loss 0.41`` for each of :func:`newest`, at most ``most``, and how many more there are."""
    values = newest(series, counting=counting)
    shown = [f"{name} {value}" for name, value in values[:most]]
    more = len(values) - len(shown)
    return [*shown, f"and {count(more, 'more metric')}"] if more > 0 else shown


def curves(
    series: Series,
    turns: Mapping[int, str],
    most: int = 4,
    swaps: Sequence[tuple[int, float, str]] = (),
) -> dict[str, Curve]:
    """Return the metrics worth a chart: those that changed, and aren't themselves a count.

    ``turns`` says why each round began; ``swaps`` has the round and time of each swap of code, and a word.
    """
    drawn: dict[str, Curve] = {}
    for name in measures(latest(series)):
        if len(drawn) == most:
            break
        rounds = [
            (r, some) for r, points in series.stretches if (some := [p for p in points if name in p.metrics])
        ]
        values = {as_float(point.metrics[name]) for _, points in rounds for point in points}
        if len([v for v in values if math.isfinite(v)]) > 1:
            drawn[name] = _curve(name, rounds, turns, swaps)
    return drawn


def _curve(
    name: str,
    rounds: Sequence[tuple[int, list[Point]]],
    turns: Mapping[int, str],
    swaps: Sequence[tuple[int, float, str]],
) -> Curve:
    axis = axis_of([reported for _, reported in rounds])
    if axis is not None:
        label, along = axis
    else:
        label, along, before_round = REPORT, [], 1.0
        for _, reported in rounds:
            along.append([before_round + p.seq for p in reported])
            before_round = along[-1][-1] + 1
    points, marks = [], []
    for (round_, reported), xs, (later, _) in zip(rounds, along, [*rounds[1:], (None, [])], strict=True):
        points += [(x, as_float(point.metrics[name])) for x, point in zip(xs, reported, strict=True)]
        for of, when, word in swaps:
            before = [x for x, point in zip(xs, reported, strict=True) if point.time <= when]
            if of == round_ and before:
                marks.append((before[-1], word))
        if later is not None:
            why = [text for turn, text in turns.items() if round_ < turn <= later]
            marks.append((xs[-1], why[0] if why else ""))
    return Curve(label, points, tuple(marks[-_MARKS:]))


def by_axis(metric: str, curves: Mapping[T, Curve]) -> dict[str, dict[T, Curve]]:
    """Return jobs' curves of a metric by chart title; curves over the same x share a chart."""
    labels = dict.fromkeys(curve.label for curve in curves.values())
    return {
        metric if len(labels) == 1 else f"{metric} by {label}": {
            key: curve for key, curve in curves.items() if curve.label == label
        }
        for label in labels
    }


_MOST = 48  # places in all charts of a card that show their value
_ROWS = 12
_BASIS = {1: 300, 2: 260, 3: 220, 4: 380}  # px: a chart's least width, without the card's style sheet
_MAX_CELL = 32


def html(charts: Sequence[tuple[Chart, Curve]]) -> str:
    """Return the charts side by side, with the value at each place as a tooltip."""
    return beside([_over(*pair, _MOST // len(charts)) for pair in charts])


def plain(charts: Sequence[tuple[Chart, Curve]]) -> str:
    """Return the charts side by side."""
    return beside([pair.img for pair, _ in charts])


def beside(charts: Sequence[str]) -> str:
    """Return charts, as HTML, in a grid that fills the card."""
    many = len(charts)
    boxes = [tag("div", box, f"position:relative;flex:1 1 {_BASIS[many]}px") for box in charts]
    style = f"{PLAIN};display:flex;flex-wrap:wrap;gap:8px"
    return tag("div", "\n".join(boxes), style, cls=f"nbt-charts nbt-of{many}") if many else ""


def _over(chart: Chart, curve: Curve, most: int) -> str:
    # Divide the points by equal widths of x; if there are few, each is on its own
    points = sorted(point for point in curve.points if math.isfinite(point[0]))
    xs = sorted({x for x, _ in points})
    if len(xs) <= most:
        parts = [[point for point in points if point[0] == x] for x in xs]
    else:
        low, wide = xs[0], (xs[-1] - xs[0]) / most
        by_width: dict[int, list[XY]] = {}
        for point in points:
            by_width.setdefault(min(most - 1, int((point[0] - low) / wide)), []).append(point)
        parts = [*by_width.values()]
    if not parts:
        return chart.img
    middles = [(chart.across(part[0][0]) + chart.across(part[-1][0])) / 2 for part in parts]
    edges = [chart.across.start, *((a + b) / 2 for a, b in pairwise(middles)), chart.across.end]
    # With widths: from an untrusted card JupyterLab 4.2 removes flex.
    share = 100 / (chart.across.end - chart.across.start)
    cells = ""
    for part, (a, b) in zip(parts, pairwise(edges), strict=True):
        if b - a >= 0.5:
            title = f"{curve.label} {_range([x for x, _ in part])}: {_range([y for _, y in part])}"
            cells += f'<b title="{escape(title)}" style="width:{share * (b - a):.1f}%"></b>'
    left, wide = (
        100 * px / chart.width for px in (chart.across.start, chart.across.end - chart.across.start)
    )
    where = f"position:absolute;display:flex;top:0;height:100%;left:{left:.2f}%;width:{wide:.2f}%"
    strip = tag("span", cells, where, cls="nbtorchjob-readings")
    return chart.img + strip


def _range(values: Sequence[float]) -> str:
    numbers = [value for value in values if math.isfinite(value)] or values
    low, high = number(min(numbers)), number(max(numbers))
    return low if low == high else f"{low} to {high}"


def table(curves: Mapping[str, Curve]) -> str:
    """Return a folded table of values at a dozen places, for the curves that share the first one's x."""
    label = next(iter(curves.values())).label
    shared = {name: dict(curve.points) for name, curve in curves.items() if curve.label == label}
    xs = sorted({x for points in shared.values() for x in points})
    every = max(1, math.ceil((len(xs) - 1) / (_ROWS - 1)))
    rows = [
        (number(x), *(number(points[x]) if x in points else "" for points in shared.values()))
        for x in [*xs[:-1:every], *xs[-1:]]
    ]
    return fold(tag("span", "values", SMALL), grid([(label, *shared), *rows], _MAX_CELL), opened=False)
