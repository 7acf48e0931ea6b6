"""Smoothing of a noisy curve."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

_MANY = 60  # points
_NOISY = 6.0  # times that a line goes up or down its whole height
_PARTS = 12  # a mean is over so many parts of a curve


def noisy(ys: Sequence[float]) -> bool:
    """Whether a curve has many points and goes up and down more than it goes anywhere."""
    height = max(ys, default=0.0) - min(ys, default=0.0)
    return len(ys) >= _MANY and sum(abs(b - a) for a, b in pairwise(ys)) > _NOISY * height > 0


def smoothed(ys: Sequence[float]) -> list[float]:
    """Return at each point the mean of those around it: as many before as after, so that it doesn't lag.

    Near the start those are few, which keeps an early decay; at the end they are those that there are.
    """
    half, end = max(2, len(ys) // _PARTS // 2), len(ys)
    sums = [0.0, *accumulate(ys)]
    spans = ((at - min(half, at), min(at + min(half, at) + 1, end)) for at in range(end))
    return [(sums[last] - sums[first]) / (last - first) for first, last in spans]
