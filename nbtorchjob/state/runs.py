"""The runs of a group as plain data: their parameters and results, and which to stop early (pure).

Whether a run is stopped early follows from what the runs have reported. Runs are compared where they are
equally far, in the unit ``Early.by``: so a run that begins late, or trains slowly, isn't held to results that
others only reached later. In a condition, the group's best is the best that any run had reported when it
was as far, and the group's median is that of the runs that came as far. A condition is checked on each run's
newest report.

A report that names an epoch may come at its end, or be one of many within it. If any run of the group has
reported an epoch twice, an epoch counts as done once the next one is reported, or the run has ended. Until a
second report shows which it is, no run is judged.

Halving follows asynchronous successive halving, ASHA (Li et al. 2018, arXiv:1810.05934: the top ``1/factor``
of a rung go on), but stops runs instead of pausing them, as Ray Tune does. Rungs are at ``at_least``,
``at_least * factor``, ``at_least * factor**2`` and so on. A run is judged once at each rung, when it reaches
it, among the runs that were there by then; no run waits for slower ones. This depends only on recorded times,
so every process that looks, at any time, comes to the same decision.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

from nbtorchjob.runtime.api.report import TOTALS, total
from nbtorchjob.spec.condition import BEST, OWN, Name
from nbtorchjob.spec.grid import Early
from nbtorchjob.state.facts.events import AWAITED, HELD
from nbtorchjob.state.facts.series import Point, Series, as_float, axis_of
from nbtorchjob.state.job import JobState, Phase
from nbtorchjob.state.progress import REPORT, counts, latest, unit_of
from nbtorchjob.text import words

T = TypeVar("T")  # whatever identifies a run

STOPPED = "STOPPED"  # shown instead of the phase for a run that was stopped early


def metrics(state: JobState) -> dict[str, float]:
    """Return what a run last reported, from rank 0 or the first rank that reports."""
    return latest(state.series[min(state.series)]) if state.series else {}


def curves(states: Sequence[JobState], metric: str) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """Return the curves of a metric by run id, and before them their x axis: a unit, or the reports."""
    points: dict[str, list[Point]] = {}
    for state in states:
        series = state.series.get(min(state.series, default=0))
        with_metric = [point for point in series.points if metric in point.metrics] if series else []
        points.update({state.info.id: with_metric} if with_metric else {})
    by_report = REPORT, [[float(point.seq) for point in of_run] for of_run in points.values()]
    along, xs = axis_of([*points.values()]) or by_report
    return along, {
        id_: [*zip(axis, (as_float(point.metrics[metric]) for point in of_run), strict=True)]
        for (id_, of_run), axis in zip(points.items(), xs, strict=True)
    }


def seconds(state: JobState, now: float) -> float | None:
    """Return how long a run has run, without its wait for its turn; None before it began."""
    return None if state.first_start is None else state.elapsed(now) - state.waited(now)


def row(state: JobState, now: float, value: object) -> dict[str, Any]:
    """Return a run, with its value, as a row of its group's table.

    A parameter or metric with the name of another column becomes ``params.NAME`` or ``metrics.NAME``, as in
    MLflow: many runs report the ``lr`` that they were given.
    """
    own = {"run": state.info.number}
    phase = {"phase": STOPPED if state.stopped_early else state.phase.value}
    ends = {
        "seconds": seconds(state, now),
        "attempts": max(1, len(state.attempts)),
        "value": value,
        "job": state.info.name,
    }
    used_names = {*own, *phase, *ends}
    parameters = _disambiguate("params", state.info.given, used_names)
    return {
        **own,
        **parameters,
        **phase,
        **_disambiguate("metrics", metrics(state), used_names | parameters.keys()),
        **ends,
    }


def _disambiguate(kind: str, columns: Mapping[str, Any], used_names: Container[str]) -> dict[str, Any]:
    return {f"{kind}.{name}" if name in used_names else name: value for name, value in columns.items()}


def varied(states: Sequence[JobState]) -> list[str]:
    """Return the names of the parameters, those with differing values first."""
    names = list(dict.fromkeys(name for state in states for name in state.info.given))
    return sorted(names, key=lambda name: len({repr(state.info.given.get(name)) for state in states}) < 2)


def waits(state: JobState) -> bool | None:
    """Return True if a run waits for its turn, False if it is under way.

    None for a run that takes no place in its group: it has ended, or its user suspended it before its turn.
    """
    if state.phase.terminal:
        return None
    turn = state.pause.turn if state.pause is not None and state.suspended and not state.nodes else ""
    return None if turn == HELD else turn == AWAITED and state.cancelled is None


def due(left: Mapping[T, bool | None], at_once: int) -> list[T]:
    """Return the runs of a group to start now, in order; ``left`` has what :func:`waits` returns for each.

    ``at_once`` of them should be under way; a run that its user suspended keeps its place.
    """
    under_way = sum(waits is False for waits in left.values())
    return [run for run, waits in left.items() if waits][: max(0, at_once - under_way)]


# How far a run was at a report: its count of epochs, say, and how many reports since the first of that epoch.
Mark: TypeAlias = tuple[float, int]


class Judge:
    """Decides about a group's runs each time they are looked at; it only keeps what saves recomputation."""

    def __init__(self, early: Early) -> None:
        self._early = early
        self._units: dict[str, tuple[Series, str]] = {}  # by address, here and below
        self._tracks: dict[str, _Track] = {}
        # When each run arrived at a rung, as first seen: a long job keeps fewer and fewer of its reports.
        self._arrivals: dict[tuple[str, float], dict[str, _Arrival]] = {}  # by unit and rung

    def stops(self, states: Sequence[JobState]) -> dict[str, str]:
        """Return the runs to stop, by address, and why."""
        series = {state.info.address: state.series[min(state.series)] for state in states if state.series}
        by = self._early.by or self._unit(series)
        for address, reports in series.items():
            previous = self._tracks.get(address)
            if previous is None or previous.series is not reports or previous.by != by:
                self._tracks[address] = _Track(reports, by)
        tracks = {address: track for address in series if (track := self._tracks[address]).marks}
        ended = {state.info.address for state in states if state.phase.terminal}
        several = any(track.repeats for track in tracks.values())
        if not several and not any(track.goes_on or address in ended for address, track in tracks.items()):
            return {}
        for address, track in tracks.items():
            track.several, track.ended = several, address in ended
        reasons = {**self._halved(tracks, by), **_met(self._early, tracks)}
        # Not a run that is being debugged at a stopped rank.
        running = [state for state in states if state.phase is Phase.RUNNING and not state.stopped]
        runs = (state.info.address for state in running if state.cancelled is None)
        return {address: reasons[address] for address in runs if address in reasons}

    def unheard(self, states: Sequence[JobState]) -> str | None:
        """Return the needed metrics that no run has reported; None until one has succeeded with reports.

        Runs of which none has reported anything are judged once all have ended.
        """
        over = all(state.phase.terminal for state in states)
        if not any(state.phase is Phase.SUCCEEDED and (state.series or over) for state in states):
            return None
        reported = {name for state in states for series in state.series.values() for name in latest(series)}
        missing = sorted(self._early.metrics - reported - {REPORT})
        they = ", ".join(sorted(reported)) or "nothing"
        return f"{', '.join(missing)}: they report {they}" if missing else ""

    def _unit(self, series: Mapping[str, Series]) -> str:
        """Return the unit to compare runs by: the finest that every run counts that counts anything.

        A run that counts nothing yet may still begin to: measured by reports until then, the others would
        seem further than ``at_least``.
        """
        for address, reports in series.items():
            if address not in self._units or self._units[address][0] is not reports:
                units = [unit_of(Series(*stretch)) for stretch in reversed(reports.stretches)]
                self._units[address] = reports, next((unit for unit in units if unit != REPORT), REPORT)
        counting = {self._units[address][1] for address in series} - {REPORT}
        # If the steps of some runs begin anew with each epoch, steps can't be compared.
        return "epoch" if len(counting) > 1 else next(iter(counting), REPORT)

    def _halved(self, tracks: Mapping[str, _Track], by: str) -> dict[str, str]:
        """Return the runs that weren't among the best of a rung when they reached it, and why."""
        early, reasons = self._early, dict[str, str]()
        if early.halve is None:
            return reasons
        most = max((track.done for track in tracks.values()), default=0.0)
        rung = float(early.at_least)
        while rung <= most:
            arrivals = self._arrivals.setdefault((by, rung), {})
            for address, track in tracks.items():
                if address not in arrivals and (arrival := track.arrival(rung, early.halve)):
                    arrivals[address] = arrival
            entries = [(address, arrivals[address]) for address in tracks if address in arrivals]
            before: list[float] = []  # the best one first
            for address, (_, value) in sorted(entries, key=lambda item: (item[1].time, item[0])):
                worth = -value if early.halve in early.largest else value
                worth = worth if math.isfinite(value) else math.inf
                place = 1 + bisect_left(before, worth)
                before.insert(place - 1, worth)
                goes_on = math.isfinite(value) and place <= max(1, len(before) // early.factor)
                if not goes_on and rung < tracks[address].total:
                    progress = words.count(int(rung), by) if by in (*TOTALS, REPORT) else f"{rung:g} of {by}"
                    many = f"number {place} of {len(before)}" if math.isfinite(value) else "not finite"
                    reasons.setdefault(
                        address, f"{early.halve}={words.number(value)} after {progress} was {many}"
                    )
            rung *= early.factor
        return reasons


class _Arrival(NamedTuple):
    """When a run reached a rung, and its metric then."""

    time: float
    value: float


class _Track:
    """What a run reported, ordered by how far it was."""

    def __init__(self, series: Series, by: str) -> None:
        self.series, self.by = series, by
        counted = [item for stretch in series.stretches for item in _counted(stretch.points, by)]
        self._points = [point for point, _ in counted]
        first: dict[float, int] = {}
        marks = [(count, point.seq - first.setdefault(count, point.seq)) for point, count in counted]
        self.marks = [*accumulate(marks, max)]  # after a restart a run is behind for a while
        self.latest = latest(series)
        # A run that counts from 0 has done one unit when it reports 0. After many restarts its first reports
        # are left out, and of other metrics the first count isn't kept.
        first_count = 0 if by in series.from_zero else next((count for count, _ in self.marks), math.nan)
        self._more = 1 if by != REPORT and first_count == 0 else 0
        stretch_counts = [[count for _, count in counts(stretch.points, by)] for stretch in series.stretches]
        self.repeats = any(count == other for many in stretch_counts for count, other in pairwise(many))
        self.goes_on = by == REPORT or any(len(many) > 1 for many in stretch_counts)
        # Whether runs of the group send several reports with one count, and whether this run has ended
        self.several = self.ended = False
        self._values: dict[str, list[float]] = {}
        self._bests: dict[tuple[str, bool], list[tuple[Mark, float]]] = {}

    @property
    def done(self) -> float:
        """How much it has done."""
        under_way = self.several and not self.ended
        at = bisect_left(self.marks, (self.marks[-1][0], 0)) if under_way else len(self.marks)
        return self.marks[at - 1][0] + self._more if at else 0.0

    @property
    def total(self) -> float:
        """How much there is to do, where that is reported."""
        return total(self.by, self.latest) or math.inf

    def values(self, metric: str) -> list[float]:
        """Return the newest value of a metric at each mark; nan before the first."""
        if metric not in self._values:
            values, value = [], math.nan
            for point in self._points:
                value = as_float(point.metrics[metric]) if metric in point.metrics else value
                values.append(value)
            self._values[metric] = values
        return self._values[metric]

    def at(self, mark: Mark, metric: str) -> float:
        """Return the newest value of a metric when the run was as far as ``mark``."""
        passed = bisect_right(self.marks, mark)
        return self.values(metric)[passed - 1] if passed else math.nan

    def bests(self, metric: str, *, largest: bool) -> list[tuple[Mark, float]]:
        """Return the values of a metric that were better than all before, each with its mark."""
        if (metric, largest) not in self._bests:
            bests: list[tuple[Mark, float]] = []
            for mark, value in zip(self.marks, self.values(metric), strict=True):
                better = not bests or (value > bests[-1][1] if largest else value < bests[-1][1])
                if math.isfinite(value) and better:
                    bests.append((mark, value))
            self._bests[metric, largest] = bests
        return self._bests[metric, largest]

    def arrival(self, rung: float, metric: str) -> _Arrival | None:
        """Return when the run reached ``rung`` and had the metric, and its value; None before that."""
        first = seen = bisect_left(self.marks, (rung - self._more, 0))
        if self.several and first < len(self.marks):
            seen = bisect_right(self.marks, (self.marks[first][0], math.inf))
            if seen == len(self.marks) and not self.ended:
                return None
            first, seen = seen - 1, min(seen, len(self.marks) - 1)
        values = self.values(metric)
        for at in range(first, len(self.marks)):
            if not math.isnan(values[at]) or metric in self._points[at].metrics:
                return _Arrival(self._points[max(at, seen)].time, values[at])
        return None


def _counted(points: Sequence[Point], by: str) -> Iterator[tuple[Point, float]]:
    """Yield a round's reports and how far each was; one without a count is as far as the one before."""
    count = math.nan
    for point in points:
        count = point.seq + 1.0 if by == REPORT else as_float(point.metrics.get(by, count))
        if math.isfinite(count):
            yield point, count


def _met(early: Early, tracks: Mapping[str, _Track]) -> dict[str, str]:
    """Return the runs whose newest report meets the condition, and why."""
    condition, reasons = early.condition, dict[str, str]()
    if condition is None:
        return reasons
    group = _Group(early, tracks)
    for address, track in tracks.items():
        look_up = partial(group.value, track)
        if track.done >= early.at_least and condition.holds(look_up):
            metrics = ((name, look_up(name)) for name in sorted(condition.names))
            values = ", ".join(
                f"{name}={words.number(value)}" for name, value in metrics if value is not None
            )
            reasons[address] = f"{condition.text} ({values})" if values else condition.text
    return reasons


class _Group:
    """What names in a condition mean for each run."""

    def __init__(self, early: Early, tracks: Mapping[str, _Track]) -> None:
        self._early, self._tracks = early, tracks
        self._bests: dict[str, tuple[list[Mark], list[float]]] = {}
        self._medians: dict[tuple[str, Mark], float | None] = {}

    def value(self, track: _Track, name: Name) -> float | None:
        """Return what a name means for a run now; None where that is unknown."""
        if name.of == OWN:
            return track.latest.get(name.metric)
        return (self._best if name.of == BEST else self._median)(name.metric, track.marks[-1])

    def _best(self, metric: str, mark: Mark) -> float | None:
        if metric not in self._bests:
            largest = metric in self._early.largest
            bests = [
                report for track in self._tracks.values() for report in track.bests(metric, largest=largest)
            ]
            bests.sort()
            best = accumulate((value for _, value in bests), max if largest else min)
            self._bests[metric] = [mark for mark, _ in bests], [*best]
        marks, values = self._bests[metric]
        passed = bisect_right(marks, mark)
        return values[passed - 1] if passed else None

    def _median(self, metric: str, mark: Mark) -> float | None:
        if (metric, mark) not in self._medians:
            from statistics import median  # late: it imports fractions and decimal, 5 ms of a command's start

            values = (track.at(mark, metric) for track in self._tracks.values() if track.marks[-1] >= mark)
            finite = [value for value in values if math.isfinite(value)]
            self._medians[metric, mark] = median(finite) if finite else None
        return self._medians[metric, mark]
