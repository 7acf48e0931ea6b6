"""All that is known of one job, and the only way it changes: ``apply(state, event)``.

The law of this file: a state is what a set of facts says, so any order and any repetition of the
same events gives the same state. Facts are stored; what follows from them (phase, failure,
attempt) is derived when asked for and stored nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from nbtorchjob import events as ev
from nbtorchjob import failure
from nbtorchjob.failure import Cause, Reason
from nbtorchjob.logs import LogTail
from nbtorchjob.runtime.errors import Error

K = TypeVar("K")
V = TypeVar("V")

# Points kept of one metric: more than a chart of 600 px can show, and a bound for long jobs.
MAX_POINTS = 512


class Phase(Enum):
    """Where a job stands, in TorchX's words."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Whether nothing can follow."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


@dataclass(frozen=True)
class JobInfo:
    """What is known of a job from its submission on, and never changes."""

    name: str
    backend: str = "local"
    created: float = 0.0  # seconds since the epoch
    label: str = ""  # what runs, in a few words: "cell", "train(model, lr=0.1)"
    nodes: tuple[int, int] = (1, 1)  # fewest, most
    nproc_per_node: int = 1
    max_restarts: int = 0
    ships: str = ""  # one line: what travelled, with sizes
    all_ranks: bool = False
    ttl_s: int | None = None  # seconds to live once ended
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # file -> (label, text)
    spec: Mapping[str, Any] = field(default_factory=dict)  # as ``JobSpec.to_json`` gives it


@dataclass(frozen=True)
class Node:
    """One agent."""

    index: int
    host: str = ""
    pid: int = 0
    started: float | None = None
    ended: float | None = None
    code: int | None = None
    signal: int | None = None
    workers: tuple[ev.WorkersStarted, ...] = ()  # one entry a round, by round

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks it had in its newest round."""
        return self.workers[-1].ranks if self.workers else ()

    @property
    def round(self) -> int:
        """Its newest round; -1 before the first."""
        return self.workers[-1].round if self.workers else -1


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
    """Give the power of two by which reports are thinned when the newest has that number."""
    return 1 << max(0, (newest // MAX_POINTS).bit_length())


def _thinned(points: list[Point]) -> list[Point]:
    newest = points[-1].seq
    stride = _stride(newest)
    return [p for p in points if p.seq % stride == 0 or p.seq == newest]


@dataclass(frozen=True)
class Failure:
    """How a job failed: the reason, and where a rank or node is to blame, which."""

    reason: Reason
    time: float
    rank: int | None = None
    node: int | None = None
    error: Error | None = None
    round: int = -1


@dataclass(frozen=True)
class JobState:
    """All that is known of a job. ``apply`` gives the next one; nothing else does."""

    info: JobInfo
    nodes: Mapping[int, Node] = field(default_factory=dict)
    errors: tuple[ev.RankFailed, ...] = ()  # by time
    exits: tuple[ev.RankExited, ...] = ()  # by time
    agents: tuple[ev.NodeFailed, ...] = ()  # by time
    values: Mapping[int, ev.ValueReady] = field(default_factory=dict)  # by rank
    series: Mapping[int, Series] = field(default_factory=dict)  # by rank
    logs: Mapping[int, LogTail] = field(default_factory=dict)  # by rank
    notices: tuple[ev.Notice, ...] = ()  # by time
    cancelled: float | None = None
    deadline: ev.DeadlineExceeded | None = None
    lost: ev.Lost | None = None
    closed: float | None = None

    @cached_property
    def phase(self) -> Phase:
        """Where the job stands."""
        if self.closed is None and self.lost is None:
            if any(node.workers for node in self.nodes.values()):
                return Phase.RUNNING
            return Phase.PENDING if self.nodes else Phase.SUBMITTED
        if self._succeeded:
            return Phase.SUCCEEDED
        cancelled = self.cancelled is not None and self.deadline is None
        return Phase.CANCELLED if cancelled else Phase.FAILED

    @cached_property
    def round(self) -> int:
        """The newest round of the worker group; -1 before the first."""
        return max((node.round for node in self.nodes.values()), default=-1)

    @cached_property
    def attempt(self) -> int:
        """torch's restart count: 0 in the first life of the worker group."""
        return max((w.attempt for n in self.nodes.values() for w in n.workers), default=0)

    @cached_property
    def world_size(self) -> int:
        """Ranks in the newest round; 0 before the first."""
        newest = (w for n in self.nodes.values() for w in n.workers if w.round == self.round)
        return next((w.world_size for w in newest), 0)

    @cached_property
    def members(self) -> tuple[Node, ...]:
        """The nodes of the newest round, by index."""
        nodes = sorted(self.nodes.values(), key=lambda n: n.index)
        return tuple(n for n in nodes if n.round == self.round and n.workers)

    @property
    def started(self) -> float | None:
        """When the first node started."""
        return min((n.started for n in self.nodes.values() if n.started is not None), default=None)

    @property
    def ended(self) -> float | None:
        """When the last process ended; None while the job lives."""
        return self.closed if self.closed is not None else self.lost.time if self.lost else None

    @property
    def reforming(self) -> bool:
        """Whether the world of the newest round lost a node and its other nodes still live."""
        gone = [n for n in self.members if n.ended is not None and n.code != 0]
        return bool(gone) and len(gone) < len(self.members) and self.phase is Phase.RUNNING

    def elapsed(self, now: float) -> float:
        """Seconds since submission, or from submission to the end."""
        return max(0.0, (self.ended if self.ended is not None else now) - self.info.created)

    @property
    def _succeeded(self) -> bool:
        # A node that was lost before the newest round doesn't count: the rest went on without it.
        return bool(self.members) and all(n.code == 0 for n in self.members) and self.lost is None

    @cached_property
    def failure(self) -> Failure | None:
        """The first failure by time, with its cause; None unless the job failed or was cancelled."""
        if not self.phase.terminal or self.phase is Phase.SUCCEEDED:
            return None
        return _first_failure(self)


def _first_failure(state: JobState) -> Failure:
    end = state.ended or 0.0
    if state.deadline is not None:
        line = f"ran longer than its deadline of {state.deadline.seconds} s"
        hint = "Raise --active-deadline-seconds, or make the work smaller."
        return Failure(Reason(Cause.DEADLINE, line, hint), state.deadline.time)
    if state.phase is Phase.CANCELLED:
        return Failure(Reason(Cause.CANCELLED, "was cancelled"), state.cancelled or end)
    told = [*map(_of_error, state.errors), *map(_of_exit, state.exits), *_killed_nodes(state)]
    newest = [found for found in told if found.round == state.round] or told
    # A rank whose peer died fails as well, in the collective, and may well be the first to say so.
    causes = [f for f in newest if f.error is None or not failure.lost_peer(f.error)] or newest
    if causes:
        return min(causes, key=lambda f: (f.time, f.rank or 0))
    if state.agents:
        return _of_agent(state.agents[0])
    if state.lost is not None:
        return Failure(Reason(Cause.INFRA, state.lost.reason), state.lost.time)
    nodes = [n for n in state.nodes.values() if n.ended is not None and n.code != 0]
    if nodes:
        node = min(nodes, key=lambda n: (n.ended or 0.0, n.index))
        reason = failure.of_signal(node.signal) if node.signal else failure.of_agent(node.code or 0)
        return Failure(reason, node.ended or end, node=node.index)
    return Failure(Reason(Cause.UNKNOWN, "ended, and nothing says why"), end)


def _of_error(event: ev.RankFailed) -> Failure:
    return Failure(
        failure.of_error(event.error), event.error.time, event.rank, event.node, event.error, event.round
    )


def _of_exit(event: ev.RankExited) -> Failure:
    reason = failure.of_signal(event.signal) if event.signal else failure.of_exit(event.code or 0)
    return Failure(reason, event.time, event.rank, event.node, round=event.round)


def _killed_nodes(state: JobState) -> list[Failure]:
    killed = [(n, n.signal, n.ended) for n in state.nodes.values()]
    return [
        Failure(failure.of_signal(number), ended, node=node.index, round=node.round)
        for node, number, ended in killed
        if number is not None and ended is not None
    ]


def _of_agent(event: ev.NodeFailed) -> Failure:
    return Failure(failure.of_agent(event.code), event.time, node=event.node, error=event.error)


def apply(state: JobState, event: ev.Event) -> JobState:
    """Give the state that also knows ``event``; a fact known already changes nothing."""
    return _APPLY[type(event)](state, event)


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})


def _insert(known: tuple[V, ...], new: V, key: Callable[[V], Any]) -> tuple[V, ...]:
    return known if new in known else tuple(sorted((*known, new), key=key))


def _node_started(state: JobState, event: ev.NodeStarted) -> JobState:
    node = state.nodes.get(event.node, Node(event.node))
    node = replace(node, host=event.host, pid=event.pid, started=event.time)
    return replace(state, nodes=_with(state.nodes, event.node, node))


def _node_exited(state: JobState, event: ev.NodeExited) -> JobState:
    node = state.nodes.get(event.node, Node(event.node))
    node = replace(node, ended=event.time, code=event.code, signal=event.signal)
    return replace(state, nodes=_with(state.nodes, event.node, node))


def _workers_started(state: JobState, event: ev.WorkersStarted) -> JobState:
    node = state.nodes.get(event.node, Node(event.node))
    workers = _insert(node.workers, event, lambda w: w.round)
    return replace(state, nodes=_with(state.nodes, event.node, replace(node, workers=workers)))


def _rank_failed(state: JobState, event: ev.RankFailed) -> JobState:
    return replace(state, errors=_insert(state.errors, event, lambda e: (e.error.time, e.rank)))


def _rank_exited(state: JobState, event: ev.RankExited) -> JobState:
    return replace(state, exits=_insert(state.exits, event, lambda e: (e.time, e.rank)))


def _node_failed(state: JobState, event: ev.NodeFailed) -> JobState:
    return replace(state, agents=_insert(state.agents, event, lambda e: (e.time, e.node)))


def _reported(state: JobState, event: ev.Reported) -> JobState:
    series = state.series.get(event.rank, Series())
    series = series.add(event.round, Point(event.seq, event.time, event.metrics))
    return replace(state, series=_with(state.series, event.rank, series))


def _log(state: JobState, event: ev.LogChunk) -> JobState:
    tail = state.logs.get(event.rank, LogTail()).add(event.round, event.offset, event.data)
    return replace(state, logs=_with(state.logs, event.rank, tail))


def _value_ready(state: JobState, event: ev.ValueReady) -> JobState:
    known = state.values.get(event.rank)
    if known is not None and known.round >= event.round:
        return state
    return replace(state, values=_with(state.values, event.rank, event))


def _notice(state: JobState, event: ev.Notice) -> JobState:
    return replace(state, notices=_insert(state.notices, event, lambda n: (n.time, n.text)))


def _cancel_requested(state: JobState, event: ev.CancelRequested) -> JobState:
    first = event.time if state.cancelled is None else min(state.cancelled, event.time)
    return replace(state, cancelled=first)


def _deadline_exceeded(state: JobState, event: ev.DeadlineExceeded) -> JobState:
    known = state.deadline
    return state if known and known.time <= event.time else replace(state, deadline=event)


def _lost(state: JobState, event: ev.Lost) -> JobState:
    return state if state.lost and state.lost.time <= event.time else replace(state, lost=event)


def _closed(state: JobState, event: ev.Closed) -> JobState:
    last = event.time if state.closed is None else max(state.closed, event.time)
    return replace(state, closed=last)


_APPLY: dict[type, Callable[[JobState, Any], JobState]] = {
    ev.NodeStarted: _node_started,
    ev.NodeExited: _node_exited,
    ev.NodeFailed: _node_failed,
    ev.WorkersStarted: _workers_started,
    ev.RankFailed: _rank_failed,
    ev.RankExited: _rank_exited,
    ev.Reported: _reported,
    ev.LogChunk: _log,
    ev.ValueReady: _value_ready,
    ev.Notice: _notice,
    ev.CancelRequested: _cancel_requested,
    ev.DeadlineExceeded: _deadline_exceeded,
    ev.Lost: _lost,
    ev.Closed: _closed,
}
