"""Charts as SVG on a background of their own, as no grey is readable on both light and dark pages.

An image can't see the page, but gets its ``color-scheme`` if the browser supports that; else the user's.
"""

from __future__ import annotations

import math
import sys
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from itertools import accumulate, cycle, groupby, islice, pairwise
from typing import Any, TypeAlias

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.text.colours import GROUND
from nbtorchjob.text.words import DOT, clean, elide, line, number

_LOG_SPAN = 100.0  # two decades
_LOW = 0.1  # on a linear axis, most points below this part of it are one flat line
_MOST_TICKS = 5


class Axis(FrozenDataclass):
    """Values from ``low`` to ``high``, drawn from pixel ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        part = (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))
        return self.start + part * (self.end - self.start)

    def _at(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, *, whole: bool = False) -> list[float]:
        """Return 3 to 5 round values within the axis; fewer if they must be ``whole``."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last - first < 2:
                between = [step * 10.0**power for power in range(first - 1, last + 1) for step in (1, 3)]
                return [tick for tick in between if self.low <= tick <= self.high]
            every = math.ceil((last - first + 1) / _MOST_TICKS)
            return [10.0**power for power in range(first, last + 1, every)]
        power = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        for step in (power * factor for factor in (1, 2, 2.5, 5, 10)):
            step = max(step, 1.0) if whole else step
            numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
            if len(numbers) <= _MOST_TICKS:
                break
        return [n * step for n in numbers]


def across_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return a linear axis of the values."""
    return Axis(*_bounds(values), start, end)


def up_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis of the values: a logarithmic one if most would be flat on a linear one."""
    if values:
        from statistics import median  # late: its fractions and decimals are slow to import

        # A loss that decays; not an accuracy that rises, whose early values needn't be told apart.
        low, high = min(values), max(values)
        if low > 1e-280 and high > _LOG_SPAN * low and median(values) < _LOW * high:
            return Axis(low, high, start, end, True)
    return Axis(*_bounds(values), start, end, False)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    most = max(abs(low), abs(high))
    if high - low <= max(1e-290, 1e-8 * most):  # constant, as far as labels can show
        pad = most / 10 if most > 1e-280 else 1.0
        return low - pad, high + pad
    return low, high


def label(tick: float) -> str:
    """Return a tick as text."""
    return f"{tick:.10g}"


_MANY = 60  # points
_NOISY = 6.0  # times that a line goes up or down its whole height
_PARTS = 12  # a mean spans one of this many parts of a curve


def noisy(ys: Sequence[float]) -> bool:
    """Whether a curve has many points and goes up and down more than it goes anywhere."""
    height = max(ys, default=0.0) - min(ys, default=0.0)
    return len(ys) >= _MANY and sum(abs(b - a) for a, b in pairwise(ys)) > _NOISY * height > 0


def smoothed(ys: Sequence[float]) -> list[float]:
    """Return at each point the mean of those around it: as many before as after, so that it doesn't lag.

    Near the start these are few, which keeps an early decay; at the end, as many as are left.
    """
    half, end = max(2, len(ys) // _PARTS // 2), len(ys)
    sums = [0.0, *accumulate(ys)]
    spans = ((at - min(half, at), min(at + min(half, at) + 1, end)) for at in range(end))
    return [(sums[last] - sums[first]) / (last - first) for first, last in spans]


XY: TypeAlias = tuple[float, float]


class Palette(FrozenDataclass):
    """The colours of a chart: of its background, its text, and its lines in their order."""

    ground: str
    text: str
    lines: tuple[str, ...]


# On the background, text has a contrast of at least 6, lines of 4.
LIGHT = Palette(
    "#f6f8fa",
    "#59636e",
    ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#0b7285", "#7d4e00", "#57606a"),
)
DARK = Palette(
    GROUND,
    "#9da7b3",
    ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#39c5cf", "#d4a72c", "#8b949e"),
)
_LINES = range(len(LIGHT.lines))
# Lines can be told apart without their colours, too.
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "2 2 6 2", "1 4")
_MAX_NAME = 32
_MOST_READ = 1 << 10  # of a name
_HUGE = 1e300  # so that no difference of two values is infinite
_BUCKET = 5  # px; each keeps its lowest and highest point, so that no spike is lost
_PALER = 0.45  # opacity of the runs before the newest
_FAINT = 0.35  # opacity of what was reported, beneath its mean
_MEANS = 50  # points of a mean, which is smooth anyway
_FONT = 11  # px; larger in a page that shrinks the chart
_CHAR = 6.2  # px, a wide guess for sans-serif of that size
_SAMPLE, _BESIDE, _APART = 16, 4, 12  # px of a legend: a line's sample, the gaps to its name and to the next


class Chart(FrozenDataclass):
    """An SVG document, its title, which contains the last values, its size in pixels, and its x axis."""

    svg: str
    title: str
    width: int
    height: int
    across: Axis

    @property
    def img(self) -> str:
        """The chart as an ``<img>`` whose alt text is the title."""
        data = b64encode(self.svg.encode()).decode()
        # With its size known beforehand, a redrawn card doesn't jump.
        size = f'width="{self.width}" height="{self.height}" style="display:block;width:100%;height:auto"'
        shown = f'src="data:image/svg+xml;base64,{data}" {size} alt="{escape(self.title)}"'
        return f'<img class="nbtorchjob-chart" {shown}>'


def curves(
    series: Mapping[str, Sequence[XY]],
    *,
    width: int = 560,
    height: int = 180,
    x_label: str = "",
    marks: Sequence[tuple[float, str]] = (),
    colours: Sequence[int] = (),
) -> Chart:
    """Draw one line per series; nan and inf leave gaps.

    Where x doesn't rise, a new line begins, and the earlier part is paler. ``marks`` are words at an x.
    ``colours`` are the numbers of the series' colours in a palette, by default in their order.
    """
    drawn = {name: _runs(points) for name, points in series.items()}
    points = [point for runs in drawn.values() for run in runs for point in run]
    up = up_axis([y for _, y in points if math.isfinite(y)], height - 24, 30)
    left = 14 + _CHAR * max(len(label(tick)) for tick in up.ticks())
    across = across_axis([x for x, _ in points], left, width - 14)
    numbers = [*islice(colours or cycle(_LINES), len(drawn))]
    last = [
        f"{_short(name)}: {number(points[-1][1])} at the end" for name, points in series.items() if points
    ]
    title = ("Chart of " + ", ".join(last) if last else "An empty chart") + (
        ", on a logarithmic scale" if up.log else ""
    )
    out = []
    for runs, n in zip(drawn.values(), numbers, strict=True):
        means = _smooth(runs, up)
        for number_, run in enumerate(runs, 1):
            paler = 1.0 if number_ == len(runs) else _PALER
            for finite, piece in groupby(run, key=lambda point: math.isfinite(point[1])):
                if finite:
                    out += _piece([*piece], n, across, up, paler, smooth=means)
    rules = "".join(f"M{across.start:.1f} {up(tick):.1f}H{across.end:.1f}" for tick in up.ticks())
    whole = all(x.is_integer() for x, _ in points)
    body = [
        f"<title>{escape(title)}</title>",
        f'<path class="ground" d="M0 0H{width}V{height}H0Z"/>',
        f'<path d="{rules}" stroke="#808080" stroke-opacity="0.3"/>',
        *(_text(across.start - 5, up(tick) + 4, label(tick), "end") for tick in up.ticks()),
        *(_text(across(tick), up.start + 16, label(tick), "middle") for tick in across.ticks(whole=whole)),
        *_marks(marks, across, up),
        *out,
        *_legend(drawn, numbers, left, up, smooth=any(_smooth(runs, up) for runs in drawn.values())),
        _text(width - 14, 16, x_label, "end"),
    ]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="{_FONT}">'
        f"<style>{_stylesheet(numbers, width)}</style>" + "".join(body) + "</svg>"
    )
    return Chart(svg, title, width, height, across)


def legend_width(names: Sequence[str]) -> float:
    """Return how many pixels the legend of several lines takes."""
    return sum(_SAMPLE + _BESIDE + _CHAR * len(name) + _APART for name in names)


def _stylesheet(numbers: Sequence[int], width: int) -> str:
    """Return the style of lines with these numbers, on light and dark backgrounds, at any width."""
    many = 1 + max([3, *numbers])
    # Each of several lines has a pattern of its own.
    dashed = [n for n in numbers if _DASHES[n]] if len(numbers) > 1 else []
    dashes = "".join(f".line{n}{{stroke-dasharray:{_DASHES[n]}}}" for n in dashed)
    return (
        f"{_rules(LIGHT, many)}@media(prefers-color-scheme:dark){{{_rules(DARK, many)}}}{dashes}"
        f"@media(max-width:{0.75 * width:.0f}px){{svg{{font-size:{_FONT * 1.3:.0f}px}}}}"
        f"@media(min-width:{1.4 * width:.0f}px){{svg{{font-size:{_FONT * 0.75:.0f}px}}}}"
    )


def _rules(palette: Palette, many: int) -> str:
    lines = (f".line{n}{{color:{colour}}}" for n, colour in enumerate(palette.lines[:many]))
    return f"svg{{fill:{palette.text};color:{palette.text}}}.ground{{fill:{palette.ground}}}" + "".join(lines)


def _runs(points: Sequence[XY]) -> list[list[XY]]:
    """Return the points that can be drawn, split where x doesn't rise."""
    runs: list[list[XY]] = []
    for x, y in points:
        if not math.isfinite(x) or abs(x) >= _HUGE:
            continue
        point = (float(x), bounded(y) if math.isfinite(y) else math.nan)
        if runs and runs[-1][-1][0] < point[0]:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _text(x: float, y: float, text: str, anchor: str) -> str:
    at = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
    return f"<text {at}>{escape(text)}</text>" if text else ""


def _marks(marks: Sequence[tuple[float, str]], across: Axis, up: Axis) -> list[str]:
    """Draw a dashed line at each mark, with its word where there is room for it."""
    out, free = [], across.start
    for x, word in sorted((across(x), word) for x, word in marks):
        dashed = 'stroke="currentColor" stroke-opacity="0.7" stroke-dasharray="3 3"'
        out.append(f'<path class="mark" d="M{x:.1f} {up.end:.1f}V{up.start:.1f}" {dashed}/>')
        wide = _CHAR * len(word)
        if x + 4 + wide <= across.end and x >= free:
            out.append(_text(x + 4, up.end - 3, word, "start"))
            free = x + 12 + wide
        elif x - 4 - wide >= free:
            out.append(_text(x - 4, up.end - 3, word, "end"))
            free = x
    return out


def _smooth(runs: list[list[XY]], up: Axis) -> bool:
    """Whether a mean is drawn over what was reported: if the curve's newest run is noisy."""
    return any(noisy([up(y) for _, y in run if math.isfinite(y)]) for run in runs[-1:])


def _piece(points: list[XY], n: int, across: Axis, up: Axis, paler: float, *, smooth: bool) -> list[str]:
    kept = points[:1]
    for _, group in groupby(points[1:-1], key=lambda point: across(point[0]) // _BUCKET):
        bucket = list(group)
        finite = [point for point in bucket if math.isfinite(point[1])] or bucket[:1]
        kept += sorted({min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])})
    stretch = [*kept, *points[1:][-1:]]
    opacity = paler * (_FAINT if smooth else 1.0)
    if len(stretch) == 1:
        ((x, y),) = stretch
        raw = f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.5" class="line{n}" fill="currentColor"/>'
    else:
        raw = _polyline([f"{across(x):.1f},{up(y):.1f}" for x, y in stretch], n, opacity)
    if not smooth or len(points) == 1:
        return [raw]
    means = smoothed([up(y) for _, y in points])
    at = [f"{across(x):.1f},{y:.1f}" for (x, _), y in zip(points, means, strict=True)]
    every = max(1, len(at) // _MEANS)
    return [raw, _polyline([*at[:-1:every], at[-1]], n, paler)]


def _polyline(at: Sequence[str], n: int, opacity: float) -> str:
    paler = f' stroke-opacity="{opacity:.2g}"' if opacity < 1 else ""
    style = f'class="line{n}" fill="none" stroke="currentColor" stroke-width="1.6"{paler}'
    return f'<polyline points="{" ".join(at)}" {style}/>'


def _short(name: str) -> str:
    """Return a series' name, shortened for the legend: long names mostly differ at their ends."""
    return elide(clean(name[:_MOST_READ]), _MAX_NAME)


def _legend(
    drawn: Collection[str], numbers: Sequence[int], left: float, up: Axis, *, smooth: bool
) -> list[str]:
    out, x = [], left
    for name, n in zip(map(_short, drawn), numbers, strict=True):
        if len(drawn) > 1:
            stroke = 'stroke="currentColor" stroke-width="2.5"'
            out.append(f'<path d="M{x:.1f} 12H{x + _SAMPLE:.1f}" class="line{n}" {stroke}/>')
            x += _SAMPLE + _BESIDE
        out.append(f'<text x="{x:.1f}" y="16" font-weight="bold">{escape(name)}</text>')
        x += _CHAR * len(name) + _APART
    how = DOT.join([*(["log scale"] if up.log else []), *(["smoothed"] if smooth else [])])
    if out and how:  # in the last name's element: only the browser knows its width
        out[-1] = out[-1].replace("</text>", f'<tspan font-weight="normal">{DOT}{how}</tspan></text>')
    return out


_SIZE = 'width="720" height="200"'
_TOP, _BOTTOM = 30.0, 178.0
_MOST_LABELS = 6  # of an axis
# Of the lowest value and of the highest: they also differ in lightness, on either background.
_LOWEST, _HIGHEST = (9, 105, 218), (188, 76, 0)


def parallel(columns: Sequence[tuple[str, Sequence[Any]]], title: str) -> str:
    """Draw each row of a table as a line across parallel axes, one per column, as an ``<img>``.

    A column is its name and its values, one for each row; the last column's numbers set the lines' colours.
    """
    axes = [_upright(values) for _, values in columns]
    step = (720 - 120) / (len(axes) - 1)
    xs = [60 + step * at for at in range(len(axes))]
    lasts = [bounded(value) for value in columns[-1][1]]
    low, high = min(lasts), max(lasts)
    body = []
    # The lowest and the highest must not lie beneath the rest.
    for row in sorted(range(len(lasts)), key=lambda row: abs(lasts[row] - (low + high) / 2)):
        ys = [place(values[row]) for (_, values), (place, _) in zip(columns, axes, strict=True)]
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(xs, ys, strict=True))
        share = (lasts[row] - low) / (high - low) if high > low else 0.0
        colour = ",".join(str(round(a + (b - a) * share)) for a, b in zip(_LOWEST, _HIGHEST, strict=True))
        body.append(f'<polyline points="{points}" fill="none" stroke="rgb({colour})" stroke-opacity="0.75"/>')
    for x, (name, _), (_, ticks) in zip(xs, columns, axes, strict=True):
        body.append(f'<path d="M{x:.0f} {_TOP:.0f}V{_BOTTOM:.0f}" stroke="#808080" stroke-opacity="0.6"/>')
        heading = _text(x, 16, line(name, 18), "middle")
        body.append(heading.replace("<text", '<text font-weight="bold"'))
        for y, tick in ticks:
            shown = _text(x, y + 4, tick, "middle")
            # A line may run beneath it.
            halo = '<text class="ground" stroke-width="4" stroke-linejoin="round"'
            body += [shown.replace("<text", halo), shown]
    rules = [
        f"svg{{fill:{palette.text}}}.ground{{fill:{palette.ground};stroke:{palette.ground}}}"
        for palette in (LIGHT, DARK)
    ]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {_SIZE} viewBox="0 0 720 200" font-family="sans-serif" '
        f'font-size="{_FONT}"><style>{rules[0]}@media(prefers-color-scheme:dark){{{rules[1]}}}</style>'
        f'<title>{escape(title)}</title><path class="ground" d="M0 0H720V200H0Z"/>{"".join(body)}</svg>'
    )
    data = b64encode(svg.encode()).decode()
    shown = f'src="data:image/svg+xml;base64,{data}" {_SIZE} alt="{escape(title)}"'
    return f'<img class="nbtorchjob-chart" {shown}>'


def bounded(value: float) -> float:
    """Return a number as a float of which no difference to another one is infinite."""
    return float(max(-_HUGE, min(_HUGE, value)))


def _upright(column: Sequence[Any]) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """Return where a value lies on an axis, and the labels; texts, and few numbers, are evenly spaced."""
    kinds = list(dict.fromkeys(column))
    if all(map(_is_number, kinds)):
        kinds.sort()
        if len(kinds) > _MOST_LABELS:
            low, high = bounded(kinds[0]), bounded(kinds[-1])
            span = (high - low) or 1.0
            ticks = [(_BOTTOM, number(kinds[0])), (_TOP, number(kinds[-1]))]
            return (lambda value: _BOTTOM + (_TOP - _BOTTOM) * ((bounded(value) - low) / span)), ticks
    shares = [at / (len(kinds) - 1) for at in range(len(kinds))] if len(kinds) > 1 else [0.5]
    places = {kind: _BOTTOM + (_TOP - _BOTTOM) * share for kind, share in zip(kinds, shares, strict=True)}
    shown = kinds[:: max(1, math.ceil(len(kinds) / _MOST_LABELS))]
    labels = [number(kind) if _is_number(kind) else line(str(kind), 12) for kind in shown]
    return places.__getitem__, [(places[kind], text) for kind, text in zip(shown, labels, strict=True)]


def _is_number(value: Any) -> bool:
    finite_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return finite_number and not isinstance(value, bool)
