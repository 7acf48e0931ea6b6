"""What ranks report and nodes use, thinned: an hour of training and a minute take the same room."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from nbtorchjob.frozen import FrozenDataclass, cached_property
from nbtorchjob.state.facts import events as ev

# Points kept of one metric: more than a chart of 600 px can show, and a bound for long jobs.
MAX_POINTS = 512
# Points kept of each earlier round, enough to draw its curve; and how many earlier rounds.
_EARLIER_POINTS = 64
_EARLIER = 8
# Points of all ranks together, except the one that stands for all: each drawing reads all of them.
_ALL_POINTS = 1 << 15
_NAMES = 256  # metrics whose newest reports are kept, whatever is thinned out
_OF_STEP = 16  # metrics whose reports are thinned separately; if there are more, the first by name
RECENT = 8  # newest reports that are kept whole: they tell how fast a rank is now
UNITS = ("step", "epoch")  # the metrics that count a rank's progress, the finer first


def as_float(value: float) -> float:
    """Return a metric's value, infinite where a Python int is bigger than any float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def points_each(ranks: int) -> int:
    """Return how many points are kept of each rank, given how many ranks there are: a power of two."""
    return min(MAX_POINTS, 1 << max(2, (_ALL_POINTS // max(1, ranks)).bit_length() - 1))


class Point(FrozenDataclass):
    """One ``report(...)``."""

    seq: int
    time: float
    metrics: Mapping[str, float]


class Stretch(NamedTuple):
    """The reports of one round."""

    round: int
    points: tuple[Point, ...]


class Series(FrozenDataclass):
    """The reports of one rank in its newest round, thinned evenly to at most ``most`` of each metric.

    Of every 2^k reports the first is kept, and the first with each metric: some are reported once an epoch.
    The newest report is kept, too, and the newest with each metric. k depends only on the newest report.
    Fewer points are kept of some earlier rounds; of one only, where many ranks leave little room for each.
    """

    round: int = -1
    thinned: tuple[Point, ...] = ()
    earlier: tuple[Stretch, ...] = ()  # by round
    most: int = MAX_POINTS
    newest_of: Mapping[str, Point] = field(default_factory=dict)  # by metric
    recent: tuple[Point, ...] = ()  # the newest reports of its round, none of them left out
    # For each unit, the round, the number and the value of the first report with it.
    firsts: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """All points kept of the newest round, in order."""
        newest = {point.seq: point for point in self.newest_of.values()}
        if newest.keys() <= {point.seq for point in self.thinned[-1:]}:  # nearly always
            return self.thinned
        numbered = newest | {point.seq: point for point in self.thinned}
        return tuple(numbered[seq] for seq in sorted(numbered))

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """All rounds that have points, the newest last."""
        return (*self.earlier, Stretch(self.round, self.points)) if self.points else ()

    @cached_property
    def newest(self) -> dict[str, float]:
        """The newest value of each metric in its round, in the order in which the metrics first came."""
        values: dict[str, float] = {}
        for point in self.points:
            values.update(point.metrics)
        return values

    @cached_property
    def ascending(self) -> frozenset[str]:
        """Which of :data:`UNITS` its newest round counts without ever counting back."""
        counted = {
            unit: [as_float(p.metrics[unit]) for p in self.points if unit in p.metrics] for unit in UNITS
        }
        return frozenset(
            unit for unit, many in counted.items() if many and all(a <= b for a, b in pairwise(many))
        )

    @cached_property
    def from_zero(self) -> frozenset[str]:
        """Which of :data:`UNITS` the first of its rounds counts from 0."""
        return frozenset(unit for unit, (_, _, many) in self.firsts.items() if many == 0)

    def add(self, round: int, point: Point) -> Series:
        """Return the series with one more report."""
        firsts = self.firsts
        for unit in UNITS:
            if unit in point.metrics:
                first, before = (round, point.seq, point.metrics[unit]), firsts.get(unit)
                # If two claim the same number, their texts decide, as elsewhere.
                if (
                    before is None
                    or first[:2] < before[:2]
                    or (first[:2] == before[:2] and repr(first) < repr(before))
                ):
                    firsts = {**firsts, unit: first}
        if round == self.round:
            recent = (*self.recent, point)
            if (
                self.recent and point.seq <= self.recent[-1].seq
            ):  # it comes late, or another claims its number
                by_seq = {some.seq: some for some in sorted(recent, key=repr)}
                recent = tuple(by_seq[seq] for seq in sorted(by_seq))
            recent = recent[-min(RECENT, self.most) :]
            points, newest_of = _added(self.thinned, point, self.most), _with_newest(self.newest_of, point)
            # Takes a third of the time of ``replace``
            return Series(round, points, self.earlier, self.most, newest_of, recent, firsts)
        if round > self.round:
            last = [*self.thinned]
            ended = [Stretch(self.round, _thinned(last, self._most_earlier))] if last else []
            earlier = (*self.earlier, *ended)[-self._rounds :]
            newest_of = _with_newest({}, point)
            return Series(round, (point,), earlier, self.most, newest_of, (point,), firsts)
        by_round = {stretch.round: stretch.points for stretch in self.earlier}
        by_round[round] = _added(by_round.get(round, ()), point, self._most_earlier)
        stretches = [Stretch(*item) for item in sorted(by_round.items())]
        return replace(self, earlier=tuple(stretches[-self._rounds :]), firsts=firsts)

    def within(self, most: int) -> Series:
        """Return the series that the same reports make if at most ``most`` are kept."""
        thinned = _thinned([*self.thinned], most) if self.thinned else ()
        recent = self.recent[-min(RECENT, most) :]
        fewer = Series(self.round, thinned, (), most, self.newest_of, recent, self.firsts)
        earlier = [Stretch(r, _thinned([*points], fewer._most_earlier)) for r, points in self.earlier]
        return replace(fewer, earlier=tuple(earlier[-fewer._rounds :]))

    @property
    def _most_earlier(self) -> int:
        return min(_EARLIER_POINTS, self.most)

    @property
    def _rounds(self) -> int:
        return _EARLIER if self.most >= _EARLIER_POINTS else 1


def _added(points: tuple[Point, ...], point: Point, most: int) -> tuple[Point, ...]:
    if points and point.seq > points[-1].seq:  # the usual case: the next report
        step = stride(point.seq, most)
        if step != stride(points[-1].seq, most):
            return _thinned([*points, point], most)
        if step == 1:
            return (*points, point)
        begins = len(points) - 1  # where the stretch of the newest so far begins: that point may go now
        while begins and points[begins - 1].seq // step == points[-1].seq // step:
            begins -= 1
        return (*points[:begins], *_leading(points[begins:], step), point)
    kept = list(points)
    at = bisect_left(kept, point.seq, key=lambda p: p.seq)
    if at < len(kept) and kept[at].seq == point.seq:
        kept[at] = max(kept[at], point, key=repr)
        return tuple(kept)
    kept.insert(at, point)
    return _thinned(kept, most)


def _with_newest(newest_of: Mapping[str, Point], point: Point) -> Mapping[str, Point]:
    many = {**newest_of}
    for name in point.metrics:
        newest = many.get(name)
        if (
            newest is None
            or newest.seq < point.seq
            or (newest.seq == point.seq and repr(newest) < repr(point))
        ):
            many[name] = point
    if len(many) <= _NAMES:
        return many
    ordered = sorted(many, key=lambda name: (many[name].seq, name))
    return {name: many[name] for name in ordered[-_NAMES:]}


def stride(newest: int, most: int) -> int:
    """Return the power of two by which reports are thinned when the newest has the number ``newest``."""
    return 1 << max(0, (newest // most).bit_length())


def _thinned(points: list[Point], most: int) -> tuple[Point, ...]:
    step = stride(points[-1].seq, most)
    if step == 1:
        return tuple(points)
    stretches = (tuple(some) for _, some in groupby(points[:-1], key=lambda p: p.seq // step))
    return (*(p for some in stretches for p in _leading(some, step)), points[-1])


def _leading(points: tuple[Point, ...], step: int) -> tuple[Point, ...]:
    """Return the first of the reports that one step spans, and the first with each metric."""
    first = points[0]
    if first.metrics and all(point.metrics.keys() <= first.metrics.keys() for point in points):
        return points[:1]  # nearly always
    names = {name for point in points for name in point.metrics}
    left = {*sorted(names)[:_OF_STEP]}
    leading = []
    for point in points:
        if point.seq % step == 0 or not left.isdisjoint(point.metrics):
            leading.append(point)
            left -= point.metrics.keys()
    return tuple(leading)


def axis_of(several: Sequence[Sequence[Point]]) -> tuple[str, list[list[float]]] | None:
    """Return the unit of the x axis for several stretches of reports, and its values; None where none fits.

    It is the finest of :data:`UNITS` that grows with each report: a step that begins anew with each epoch
    would draw a line that runs back.
    """
    for unit in UNITS:
        values = [[as_float(point.metrics.get(unit, math.nan)) for point in points] for points in several]
        if all(math.isfinite(axis[0]) and all(a < b for a, b in pairwise(axis)) for axis in values):
            return unit, values
    return None


_POINTS = 128
# A GPU with less than this in its memory is used by another job, or not at all.
_GPU_BYTES = 256_000_000


class Use(FrozenDataclass):
    """What a node uses, as it last reported it, and the course of that: see :func:`point`."""

    newest: ev.Used
    series: Series = field(default_factory=lambda: Series(most=_POINTS))

    def add(self, event: ev.Used) -> Use:
        """Return the use with one more report."""
        newest = max(self.newest, event, key=lambda used: (used.round, used.seq, used.time, repr(used)))
        return Use(newest, self.series.add(event.round, point(event)))


def point(event: ev.Used) -> Point:
    """Return the point that is kept of one report; the seconds of CPUs and GPUs only grow.

    The busy seconds are those of all GPUs, used or not, all watched from one moment on: a sum over the GPUs
    now in use would jump by the whole past of a GPU that comes into use.
    """
    amounts = {
        "memory": event.memory,
        "limit": event.limit,
        "shm": event.shm,
        "cores": event.cores,
        "cpu": sum(use.cpu for use in event.uses),
        "running": sum(item.running for item in event.uses),
        "gpus": sum(item.memory >= _GPU_BYTES for item in event.gpus),
        "busy": sum(item.busy for item in event.gpus),
        "watched": max((item.watched for item in event.gpus), default=0.0),
    }
    return Point(event.seq, event.time, amounts)
