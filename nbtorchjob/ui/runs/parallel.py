"""What several parameters do together: an axis for each, and a line for each run, coloured by its metric."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from nbtorchjob.state import JobState, runs
from nbtorchjob.text.words import line, number
from nbtorchjob.ui.card.chart import DARK, LIGHT
from nbtorchjob.ui.elements import PLAIN, tag

_WIDTH, _HEIGHT = 720, 200
_TOP, _BOTTOM = 30, 22
_FEWEST = 3  # parameters that vary: of fewer the curves say as much
_MOST = 6
_MOST_LINES = 300
_MAX_NAME = 18
# Of the lowest value and of the highest: they differ in lightness, too, on either ground.
_LOW, _HIGH = (9, 105, 218), (188, 76, 0)


def html(states: Sequence[JobState], metric: str) -> str:
    """Return the picture; nothing where few parameters vary, or nothing was reported."""
    names = [name for name in runs.varied(states) if len({_key(state, name) for state in states}) > 1][:_MOST]
    told = [(state, runs.metrics(state).get(metric, math.nan)) for state in states]
    known = [(state, value) for state, value in told if math.isfinite(value)]
    if len(names) < _FEWEST or len(known) < 2:
        return ""
    title = f"{metric} of {len(known)} runs by {', '.join(names)}"
    data = b64encode(_svg(names, metric, known[:_MOST_LINES], title).encode()).decode()
    shown = f'src="data:image/svg+xml;base64,{data}" width="{_WIDTH}" height="{_HEIGHT}"'
    return tag("div", f'<img class="nbtorchjob-chart" {shown} alt="{escape(title)}">', PLAIN)


def _svg(names: Sequence[str], metric: str, known: Sequence[tuple[JobState, float]], title: str) -> str:
    columns: list[Sequence[Any]] = [[state.info.given.get(name) for state, _ in known] for name in names]
    values = [value for _, value in known]
    axes = [*map(_axis, columns), _axis(values)]
    step = (_WIDTH - 120) / (len(axes) - 1)
    xs = [60 + step * at for at in range(len(axes))]
    low, high = min(values), max(values)
    body = []
    # The best of either kind must not lie below the rest.
    order = sorted(range(len(known)), key=lambda at: abs(values[at] - (low + high) / 2))
    for at in order:
        points = [axis[0](column[at]) for axis, column in zip(axes, [*columns, values], strict=True)]
        drawn = " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(xs, points, strict=True))
        share = (values[at] - low) / (high - low) if high > low else 0.0
        colour = ",".join(str(round(a + (b - a) * share)) for a, b in zip(_LOW, _HIGH, strict=True))
        body.append(f'<polyline points="{drawn}" fill="none" stroke="rgb({colour})" stroke-opacity="0.75"/>')
    for x, name, (_, ticks) in zip(xs, [*names, metric], axes, strict=True):
        body.append(f'<path d="M{x:.0f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#808080" stroke-opacity="0.6"/>')
        body.append(_text(x, 16, line(name, _MAX_NAME), bold=True))
        body += [_text(x, y + 4, label, halo=True) for y, label in ticks]
    rules = f"svg{{fill:{LIGHT.text}}}.ground{{fill:{LIGHT.ground};stroke:{LIGHT.ground}}}"
    dark = f"svg{{fill:{DARK.text}}}.ground{{fill:{DARK.ground};stroke:{DARK.ground}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">'
        f"<style>{rules}@media(prefers-color-scheme:dark){{{dark}}}</style><title>{escape(title)}</title>"
        f'<path class="ground" d="M0 0H{_WIDTH}V{_HEIGHT}H0Z"/>' + "".join(body) + "</svg>"
    )


def _axis(column: Sequence[Any]) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """Return where a value lies on an axis, and the axis' labels: few numbers and texts each have a place."""
    kinds = list(dict.fromkeys(column))
    numeric = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in kinds)
    if numeric:
        kinds.sort()
    span = _HEIGHT - _TOP - _BOTTOM

    def at(share: float) -> float:
        return _HEIGHT - _BOTTOM - span * share

    if not numeric or len(kinds) <= _MOST:
        places = {each: at(n / (len(kinds) - 1) if len(kinds) > 1 else 0.5) for n, each in enumerate(kinds)}
        every = max(1, math.ceil(len(kinds) / _MOST))
        return places.__getitem__, [(places[each], _label(each)) for each in kinds[::every]]
    low, high = kinds[0], kinds[-1]
    return (lambda value: at((value - low) / (high - low))), [(at(0.0), _label(low)), (at(1.0), _label(high))]


def _label(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number(value) if is_number else line(str(value), 12)


def _text(x: float, y: float, text: str, *, bold: bool = False, halo: bool = False) -> str:
    at = f'x="{x:.0f}" y="{y:.0f}" text-anchor="middle"'
    weight = ' font-weight="bold"' if bold else ""
    shown = f"<text {at}{weight}>{escape(text)}</text>"
    # A line may run below it.
    under = f'<text {at} class="ground" stroke-width="4" stroke-linejoin="round">{escape(text)}</text>'
    return under + shown if halo else shown


def _key(state: JobState, name: str) -> str:
    return repr(state.info.given.get(name))
