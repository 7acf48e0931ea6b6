"""The axes of a chart: where a value lies, which ticks to draw; logarithmic where that shows more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from nbtorchjob.frozen import FrozenDataclass

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
        """Return 3 to 5 round values within the axis; fewer where only whole ones will do."""
        return self._powers() if self.log else self._steps(whole=whole)

    def _powers(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if last - first < 2:
            between = [step * 10.0**power for power in range(first - 1, last + 1) for step in (1, 3)]
            return [tick for tick in between if self.low <= tick <= self.high]
        every = math.ceil((last - first + 1) / _MOST_TICKS)
        return [10.0**power for power in range(first, last + 1, every)]

    def _steps(self, *, whole: bool) -> list[float]:
        power = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        for step in (power * factor for factor in (1, 2, 2.5, 5, 10)):
            step = max(step, 1.0) if whole else step
            found = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
            if len(found) <= _MOST_TICKS:
                break
        return [n * step for n in found]


def across(values: Sequence[float], start: float, end: float) -> Axis:
    """Return a linear axis of the values."""
    return Axis(*_bounds(values), start, end)


def up(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis of the values: a logarithmic one if most would be flat on a linear one."""
    log = bool(values) and _spans_decades(values)
    low, high = (min(values), max(values)) if log else _bounds(values)
    return Axis(low, high, start, end, log)


def _spans_decades(values: Sequence[float]) -> bool:
    # A loss that decays; not an accuracy that rises, whose early values nobody need tell apart.
    low, high = min(values), max(values)
    return low > 1e-280 and high > _LOG_SPAN * low and median(values) < _LOW * high


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
