"""What a rank reports, thinned: an hour of training and a minute take the same room."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

# Points kept of one metric: more than a chart of 600 px can show, and a bound for long jobs.
MAX_POINTS = 512


@dataclass(frozen=True)
class Point:
    """One ``report(...)``."""

    seq: int
    time: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Series:
    """The reports of one rank in its newest round, thinned evenly to at most ``MAX_POINTS``.

    Every 2^k-th report is kept, and the newest: which ones depends on the newest alone.
    """

    round: int = -1
    points: tuple[Point, ...] = ()

    def add(self, round: int, point: Point) -> Series:
        """Take in one report; an earlier round's reports give way to a later one's."""
        if round < self.round:
            return self
        points = list(self.points) if round == self.round else []
        if points and point.seq > points[-1].seq:  # the usual case: the next report
            if points[-1].seq % _stride(point.seq):
                points.pop()
            points.append(point)
            unchanged = _stride(point.seq) == _stride(point.seq - 1)
            return Series(round, tuple(points if unchanged else _thinned(points)))
        at = bisect_left(points, point.seq, key=lambda p: p.seq)
        if at < len(points) and points[at].seq == point.seq:
            return self
        points.insert(at, point)
        return Series(round, tuple(_thinned(points)))


def _stride(newest: int) -> int:
    """Return the power of two by which reports are thinned when the newest has that number."""
    return 1 << max(0, (newest // MAX_POINTS).bit_length())


def _thinned(points: list[Point]) -> list[Point]:
    newest = points[-1].seq
    stride = _stride(newest)
    return [p for p in points if p.seq % stride == 0 or p.seq == newest]
