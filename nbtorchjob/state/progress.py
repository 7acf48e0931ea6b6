"""A job's progress: how far it is, how fast, whether it is still or hangs, and what keeps it from running.

Pure, and the same for cards, lists and pages: derived from what ranks reported and from when anything last
came from them.

A job is as far as its slowest rank, in the newest round that any rank reported in. When that rank's next
report is overdue, the time left is unknown, and the time since the last step is shown instead. A job that
used to report and has stopped is *stalled* after ``STALLED_S``, and one that gives no sign of life at all is
*quiet* after ``QUIET_S``: it may just compute. It *hangs* while the diagnosis of its samples holds; a job
that ended as a collective gave up has a diagnosis, too.

A job is *held back* only by problems that a cluster has a word for: a pod that no host has room for, an image
that can't be pulled, a quota. Waiting in a queue or for an image that is being pulled has no time limit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter

from nbtorchjob.frozen import FrozenDataclass, remembered
from nbtorchjob.runtime.api.report import TOTALS, total
from nbtorchjob.state.blame import Failure
from nbtorchjob.state.diagnosis import Diagnosis, diagnose
from nbtorchjob.state.diagnosis.seen import ASKED
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import Sampled
from nbtorchjob.state.facts.series import RECENT, UNITS, Point, Series, as_float
from nbtorchjob.state.job import JobState, Phase
from nbtorchjob.state.jobfacts import Facts

_GATED = "SchedulingGated"  # it waits to be admitted, which is not a problem


def held_back(facts: Facts) -> ev.Waiting | None:
    """Return the wait that has held the newest attempt back longest; None where none has a reason."""
    ends = (facts.cancelled, facts.removed, facts.verdict, facts.ended)
    if facts.working or facts.suspended or any(end is not None for end in ends):
        return None
    waits = [w for w in facts.waiting if w.reason not in ("", _GATED) and w.stage < ev.Stage.RESTARTING]
    return min(waits, key=lambda w: (not w.since, w.since), default=None)


def held_since(facts: Facts, wait: ev.Waiting) -> float | None:
    """Return when the newest attempt began to wait for that; None where the cluster doesn't say."""
    if not wait.since:
        return None
    retry, pause = facts.info.retry, facts.pause
    ended = [v for v in facts.verdicts if v.attempt < facts.tries]
    begun = [v.time + (retry.delay(v.attempt) if retry else 0.0) for v in ended]
    # The whole job may have waited for the same reason before, but not while it ran.
    lives = [life for node in facts.nodes.values() for life in node.lives.values()]
    ran = [life.end for life in lives if life.starts and life.over and wait.node is None]
    return max([wait.since, *begun, *ran, *([pause.time] if pause else [])])


REPORT = "report"  # what is counted where neither steps nor epochs are
PERCENT = "percent"  # what an operator counts that receives its job's progress

_MANY = 3  # this many reports of one count mean that it is under way, if there is no other count yet
OVERDUE = 1.5  # usual intervals between two reports after which the next is overdue,
OVERDUE_S = 3.0  # plus these seconds: a report from a cluster may take a second or two
STALLED_S = 60.0  # at least; or STALLED usual intervals between reports, if that is longer
STALLED = 10
QUIET_S = 120.0


class Progress(FrozenDataclass):
    """How much the slowest rank has done; ``total`` is None where it is unknown how much there is to do.

    Times are in seconds, None where they are unknown. ``reported_at``, the time of the newest report, and
    ``done_at``, when this much was done, are since the epoch.
    """

    unit: str  # step, epoch, PERCENT or REPORT
    done: float
    total: float | None
    pace: float | None  # for one unit
    every: float | None  # between two reports
    reported_at: float
    done_at: float

    def left(self, now: float) -> float | None:
        """Return how long the rest will take; None where that is unknown, as when a report is overdue."""
        if self.total is None or self.pace is None or self.overdue(now) is not None:
            return None
        return max(0.0, (self.total - self.done) * self.pace - max(0.0, now - self.done_at))

    def overdue(self, now: float) -> float | None:
        """Return how long ago the last report was, if that is longer than usual; else None."""
        age = now - self.reported_at
        if self.every is None or (self.total is not None and self.done >= self.total):
            return None
        return age if age > OVERDUE * self.every + OVERDUE_S else None

    @property
    def told_each(self) -> bool:
        """Whether each unit is reported once; a rank that reports every 100th step may be further by now."""
        if self.unit == REPORT or self.pace is None or self.every is None:
            return False
        return self.pace <= OVERDUE * self.every and self.every <= OVERDUE * self.pace


class Stillness(FrozenDataclass):
    """A running job without a sign of life ``since`` a time (seconds since the epoch).

    ``stalled`` says that it used to report; otherwise it may just compute.
    """

    since: float
    stalled: bool


@remembered
def progress(state: JobState) -> Progress | None:
    """Return how far the job is, in reports if these count nothing else; None before the first.

    If its ranks' reports don't say that, or aren't read, its operator may know.
    """
    round_ = max((series.round for series in state.series.values()), default=-1)
    by_rank = {rank: item for rank, item in state.series.items() if item.round == round_}
    if round_ == state.round and state.world_size:
        by_rank = {rank: item for rank, item in by_rank.items() if rank < state.world_size}
    over = state.phase is Phase.SUCCEEDED
    candidates = [
        item
        for series in by_rank.values()
        if (item := _progress(series, state.counted_from_zero, over=over)) is not None
    ]
    units = [item.unit for item in candidates if item.total is not None] or [item.unit for item in candidates]
    alike = [item for item in candidates if item.unit == units[0]]
    slowest = min(alike, key=lambda item: (item.done / (item.total or 1.0), item.reported_at), default=None)
    if slowest is not None and round_ < state.round:  # its ranks start again from an unknown point
        slowest = replace(slowest, pace=None, every=None)
    if slowest is not None and slowest.unit != REPORT:
        return slowest
    status = state.trainer
    if status is None or status.percent is None:
        of_operator = None
    else:
        ahead = 100 - status.percent
        seconds = status.left / ahead if status.left is not None and ahead else None
        of_operator = Progress(PERCENT, status.percent, 100, seconds, None, status.time, status.time)
    return of_operator or slowest


def setback(state: JobState) -> tuple[int, float, float] | None:
    """Return the round in which ranks started again, how much had been done, and where they go on from.

    None once they have caught up; before their first report the last two are equal.
    """
    series = state.spoken
    unit, before = unit_of(series), [s for s in series.stretches if s.round < state.round]
    if unit == REPORT or not before or state.info.lab is not None or state.info.of_lab:
        return None
    extra = unit in state.counted_from_zero
    reached = max((many for s in before for _, many in counts(s.points, unit)), default=math.inf) + extra
    if series.round < state.round:
        return state.round, reached, reached
    first, *_, newest = [many for _, many in counts(series.points, unit)] * 2
    if newest + extra >= reached or not math.isfinite(first):
        return None
    # A rank that logs every tenth step, counting from 1, goes on from ten steps before the first logged one.
    logged = [
        (as_float(later.metrics[unit]) - as_float(earlier.metrics[unit])) / (later.seq - earlier.seq)
        for stretch in before
        for earlier, later in pairwise(point for point in stretch.points if unit in point.metrics)
        if unit == "step"
    ]
    begun = first if extra else max(0.0, math.ceil(first) - max([1.0, *logged]))
    return series.round, reached, begun


def still(state: JobState, now: float) -> Stillness | None:
    """Return the stillness of a running job, once it has lasted long enough to be mentioned.

    A lab is still whenever it isn't used, so only its turns have one.
    """
    if state.info.lab is not None:
        return None
    unread = bool(state.info.cluster) and state.wrote is None  # a list doesn't read logs from a cluster
    if state.phase is not Phase.RUNNING or state.reforming or unread or state.stopped:
        return None
    since, current = last_sign(state), progress(state)
    reports = any(series.round == state.round for series in state.series.values())
    if current is not None and reports and current.overdue(now) is not None and current.every is not None:
        return (
            Stillness(since, stalled=True) if now - since > max(STALLED_S, STALLED * current.every) else None
        )
    return Stillness(since, stalled=False) if now - since > QUIET_S else None


def last_sign(state: JobState) -> float:
    """Return when a running job last gave a sign of life, or one of its nodes came or went."""
    newest = [series.points[-1].time for series in state.series.values() if series.round == state.round]
    lives = [life for node in state.nodes.values() for life in node.lives.values()]
    began = [worker.time for node in state.nodes.values() for worker in node.workers[-1:]]
    ended = [life.end for life in lives if life.over]
    return max([state.info.created, *newest, *began, *ended, *([] if state.wrote is None else [state.wrote])])


def done(series: Series, unit: str, from_zero: Collection[str]) -> float | None:
    """Return how much a rank has done, such as steps: one more than it reported if it counts from 0."""
    counted = counts(series.points[-1:], unit) or counts(series.points, unit)
    if not counted:
        return None
    return counted[-1][1] + (unit in from_zero)


def unit_of(series: Series) -> str:
    """Return the finest unit of a rank's progress; not steps that begin anew with each epoch."""
    return next((unit for unit in UNITS if unit in series.ascending), REPORT)


def counts(points: Sequence[Point], unit: str) -> list[tuple[float, float]]:
    """Return the time and value of each reported count of ``unit``, which may be the reports themselves."""
    if unit == REPORT:
        return [(point.time, point.seq + 1.0) for point in points]
    return [(p.time, as_float(p.metrics[unit])) for p in points if unit in p.metrics]


def pace(counts: Sequence[tuple[float, float]]) -> float | None:
    """Return the seconds per unit from the first count to the newest; None where nothing was counted."""
    if not counts:
        return None
    took, many = counts[-1][0] - counts[0][0], counts[-1][1] - counts[0][1]
    return took / many if took > 0 and 0 < many < math.inf else None


def latest(series: Series) -> dict[str, float]:
    """Return the newest value of each metric, in the order in which the metrics first came."""
    return {name: as_float(value) for name, value in series.newest.items()}


def measures(values: Mapping[str, float], *, counting: bool = False) -> list[str]:
    """Return the names of the newest values, except totals and, unless ``counting``, counts."""
    hidden = {name for unit, name in TOTALS.items() if total(unit, values) is not None}
    return [name for name in values if name not in hidden and (counting or name not in TOTALS)]


@remembered
def _progress(series: Series, from_zero: Collection[str], *, over: bool) -> Progress | None:
    values = latest(series)
    totals = ((unit, most) for unit in TOTALS if (most := total(unit, values)) is not None)
    unit, most = next(totals, (unit_of(series), None))
    reached = done(series, unit, from_zero)
    if reached is None or not math.isfinite(reached):
        return None
    every = seconds = None
    report_time = at = series.points[-1].time
    of_each = [*(stretch.points[-RECENT:] for stretch in series.earlier), series.recent]
    newest = (counts(points, unit) for points in of_each)
    several = any(len({many for _, many in counted}) < len(counted) for counted in newest)
    if len(series.points) > 1:  # a list keeps one for an ended job
        recent = series.recent
        every = pace(counts(recent, REPORT))
        begun = [] if several else counts(recent, unit)
        if len(begun) < 2:  # an epoch may have many reports, with its number or without
            begun = [alike[0] for alike in _by_count(series.points, unit)]
        at = begun[-1][0]
        seconds = pace(begun[-RECENT:]) or pace(counts(series.points, unit))
    if several and not over and _told_throughout(series, unit):
        reached -= 1
    many = min(max(reached, 0.0), reached if most is None else most)
    return Progress(unit, many, most, seconds, every, report_time, at)


def _by_count(points: Sequence[Point], unit: str) -> list[list[tuple[float, float]]]:
    """Return what :func:`counts` does, grouped by count."""
    return [[*alike] for _, alike in groupby(counts(points, unit), key=itemgetter(1))]


def _told_throughout(series: Series, unit: str) -> bool:
    """Whether reports that share a count come while it is under way, as when each step reports its epoch.

    Otherwise they all come at its end, as when an epoch reports its training and then its validation.
    """
    within = between = 0.0
    for stretch in series.stretches:
        by_count = _by_count(stretch.points, unit)
        for alike, following in pairwise(by_count):
            within += alike[-1][0] - alike[0][0]
            between += following[0][0] - alike[0][0]
    return within >= between / 2 if between else len(by_count[-1]) >= _MANY


_TOLD_S = 6.0  # a sample may take that long to be reported, and its report may count as a sign of life, too
_TIMEOUT_S = 1800.0  # torch's default for a collective, where its own timeout is unknown
_GAVE_UP = ("collective timed out", "received data of an unexpected size")  # of ranks that a signal ended
_LATE_S = 60.0  # the longest time after its timeout until a collective gives up


def hang(state: JobState, now: float) -> Diagnosis | None:
    """Return why a running job hangs, if it was sampled and has given no sign of life since; else None.

    It doesn't hang while the ranks that the others wait for compile, or save or load a checkpoint.
    """
    newest = _samples(state)
    if not newest or state.phase is not Phase.RUNNING or state.reforming:
        return None
    # Stacks that a user asked for may show a job that only waits for a moment.
    if all(fact.why == ASKED for fact in newest) and still(state, now) is None:
        return None
    if state.wrote is not None and state.wrote > max(fact.time for fact in newest) + _TOLD_S:
        return None
    diagnosis = None if _reported(state, newest) else diagnose(state)
    if diagnosis is not None and diagnosis.busy:
        return None
    return diagnosis if diagnosis is not None and (diagnosis.ranks or not diagnosis.sure) else None


def missed(state: JobState, failure: Failure) -> Diagnosis | None:
    """Return which ranks a failed job's collective waited for in vain; None where that isn't sure."""
    newest = _samples(state)
    text = failure.reason.line
    gave_up = failure.error.collective if failure.error else any(item in text for item in _GAVE_UP)
    if not newest or not gave_up or failure.round != state.round or _reported(state, newest):
        return None
    calls = (c for fact in newest for rank in fact.samples for group in rank.groups for c in group.calls)
    ends = [call.since + (call.timeout or _TIMEOUT_S) for call in calls if not call.done]
    if (
        failure.time > max([*ends, *(item.time for item in newest)], default=0.0) + _LATE_S
    ):  # it was another collective
        return None
    diagnosis = diagnose(state, over=True)
    return diagnosis if diagnosis is not None and diagnosis.sure and diagnosis.ranks else None


def _samples(state: JobState) -> list[Sampled]:
    return [sample for sample in state.samples.values() if sample.round == state.round]


def _reported(state: JobState, samples: list[Sampled]) -> bool:
    """Whether a rank has reported since the job was sampled."""
    last = max(sample.time for sample in samples)
    return any(s.round == state.round and s.points[-1].time > last for s in state.series.values())
