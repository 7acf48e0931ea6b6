"""What a chart shows, as numbers: on a strip over it where the pointer is, and in a table for the keyboard.

An image is closed to both. What is laid over it has places in percent, so that it fits at any size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from nbtorchjob.text.words import number
from nbtorchjob.ui.card.chart import XY, Chart
from nbtorchjob.ui.card.metrics import Curve
from nbtorchjob.ui.elements import PLAIN, SMALL, fold, grid, tag

_MOST = 48  # places in all charts of a card, at which their values are told
_ROWS = 12
_BASIS = {1: 300, 2: 260, 3: 220, 4: 380}  # px that a chart needs at least, by how many there are
_MAX_CELL = 32


def html(charts: Sequence[tuple[Chart, Curve]]) -> str:
    """Return the charts side by side, with the value at each place in its title."""
    return _beside([_over(*each, _MOST // len(charts)) for each in charts])


def plain(charts: Sequence[tuple[Chart, Curve]]) -> str:
    """Return the charts side by side."""
    return _beside([each.img for each, _ in charts])


def _beside(charts: Sequence[str]) -> str:
    style = f"position:relative;flex:1 1 {_BASIS[len(charts)]}px"
    boxes = [tag("div", each, style + (";max-width:480px" if len(charts) > 1 else "")) for each in charts]
    return tag("div", "\n".join(boxes), f"{PLAIN};display:flex;flex-wrap:wrap;gap:8px")


def _over(chart: Chart, curve: Curve, most: int) -> str:
    parts = _parts(sorted(point for point in curve.points if math.isfinite(point[0])), most)
    if not parts:
        return chart.img
    middles = [(chart.across(part[0][0]) + chart.across(part[-1][0])) / 2 for part in parts]
    edges = [chart.across.start, *((a + b) / 2 for a, b in pairwise(middles)), chart.across.end]
    cells = "".join(
        f'<b title="{escape(_told(curve.label, part))}" style="flex:{b - a:.0f}"></b>'
        for part, (a, b) in zip(parts, pairwise(edges), strict=True)
        if b - a >= 0.5
    )
    left, wide = (
        100 * px / chart.width for px in (chart.across.start, chart.across.end - chart.across.start)
    )
    where = f"position:absolute;display:flex;top:0;height:100%;left:{left:.2f}%;width:{wide:.2f}%"
    strip = tag("span", cells, where, cls="nbtorchjob-readings")
    return chart.img + strip


def _parts(points: Sequence[XY], most: int) -> list[list[XY]]:
    """Part the points by equal widths of x; each on its own where there are few."""
    xs = sorted({x for x, _ in points})
    if len(xs) <= most:
        return [[point for point in points if point[0] == x] for x in xs]
    low, wide = xs[0], (xs[-1] - xs[0]) / most
    found: dict[int, list[XY]] = {}
    for point in points:
        found.setdefault(min(most - 1, int((point[0] - low) / wide)), []).append(point)
    return [*found.values()]


def _told(label: str, part: Sequence[XY]) -> str:
    return f"{label} {_range([x for x, _ in part])}: {_range([y for _, y in part])}"


def _range(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)] or values
    low, high = number(min(known)), number(max(known))
    return low if low == high else f"{low} to {high}"


def table(curves: Mapping[str, Curve]) -> str:
    """Return the values at a dozen places, folded: of the curves that share the first one's x."""
    label = next(iter(curves.values())).label
    shared = {name: dict(curve.points) for name, curve in curves.items() if curve.label == label}
    xs = sorted({x for points in shared.values() for x in points})
    every = max(1, math.ceil((len(xs) - 1) / (_ROWS - 1)))
    rows = [
        (number(x), *(number(points[x]) if x in points else "" for points in shared.values()))
        for x in [*xs[:-1:every], *xs[-1:]]
    ]
    return fold(tag("span", "values", SMALL), grid([(label, *shared), *rows], _MAX_CELL), opened=False)
