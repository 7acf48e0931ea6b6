"""The only way a state changes: ``apply(state, event)``.

The law of this package: a state is what a set of facts says, so any order and any repetition of the
same events gives the same state. Facts are stored; what follows from them (phase, failure, attempt)
is derived when asked for and stored nowhere. Where two facts can't both stand, the same one stays
whichever came first: see ``merged``. What there may be many of is bounded, and the same ones stay:
a state takes no more memory than so many facts, whatever a job tells.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, cast

from nbtorchjob.errors import DamagedError
from nbtorchjob.runtime.api import displays
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import events as ev
from nbtorchjob.state import failure
from nbtorchjob.state.blame import ABANDONED, STOPPED
from nbtorchjob.state.job import JobState
from nbtorchjob.state.known import described
from nbtorchjob.state.logs import LogTail
from nbtorchjob.state.nodes import Life, Node
from nbtorchjob.state.series import MAX_POINTS, Point, Series, Use

K = TypeVar("K")
V = TypeVar("V")

_OURS = (STOPPED, ABANDONED, failure.DEADLINE_EXCEEDED, failure.NEVER_STARTED)
# Lines kept of what the pods wrote beside their ranks: enough for Python's last words.
_OUTPUT_LINES = 40
# Of anything that a job has one of a node or a rank, and of what one of those does again and again.
_MOST = 8192
_MOST_TIMES = 1024
_MOST_REFUSED = 100
_MOST_WHY = 160  # characters of why a fact doesn't fit
_MOST_DESCRIBED = 16  # errors with their variables: the first ones of the newest rounds
_MAX_NAME, _MAX_PATH = 256, 4096  # characters of where each rank is stopped
_MAX_EARLY = 1000  # characters
_MOST_SAMPLES = 256  # nodes, with what was sampled of them and what they use: one's may have a megabyte


def apply(state: JobState, event: ev.Event) -> JobState:
    """Return the state that also knows ``event``; a fact known already changes nothing.

    Raises ``DamagedError`` for a fact that doesn't fit what is known, which nothing honest tells.
    """
    try:
        return _APPLY[type(event)](state, event)
    except ev.UNREADABLE as exc:
        info, kind = state.info, type(event).__name__
        raise DamagedError(info.backend, info.address, f"{kind} fact", f"{exc}"[:_MOST_WHY]) from exc


@cache
def _names(type_: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(type_))


def replace(known: V, **changes: Any) -> V:
    """Return what ``dataclasses.replace`` does, of a class without ``__post_init__``, in half the time.

    A state has thirty fields, and a frozen class sets each by a call.
    """
    type_: Any = type(known)
    held, new = vars(known), object.__new__(type_)
    vars(new).update({name: held[name] for name in _names(type_)}, **changes)
    return cast(V, new)


def merged(
    known: tuple[V, ...],
    new: V,
    slot: Callable[[V], Any],
    worth: Callable[[V], Any],
    most: int = _MOST_TIMES,
) -> tuple[V, ...]:
    """Return the facts with ``new`` among them, by slot; of two in one slot the worthier stays.

    Of more than ``most`` the last stay.
    """
    at = bisect_left(known, slot(new), key=slot)
    if at == len(known) or slot(known[at]) != slot(new):
        return (*known[:at], new, *known[at:])[-most:]
    best = max(known[at], new, key=lambda each: (worth(each), repr(each)))
    return known if best == known[at] else (*known[:at], best, *known[at + 1 :])


def bounded(mapping: Mapping[K, V], key: K, value: V, most: int = _MOST) -> Mapping[K, V]:
    """Return the mapping with ``value`` in it; of more than ``most`` those of the lowest keys are kept."""
    found: dict[K, V] = mapping | {key: value}  # type: ignore[operator]  # ten times as fast as {**mapping}
    if len(found) > most:
        del found[max(found)]  # type: ignore[type-var]
    return MappingProxyType(found)


def _newer(known: V | None, new: V, worth: Callable[[V], Any]) -> V:
    return new if known is None else max(known, new, key=lambda each: (worth(each), repr(each)))


def _node(state: JobState, event: Any, change: Callable[[Node], Node]) -> JobState:
    node = state.nodes.get(event.node, Node(event.node))
    return replace(state, nodes=bounded(state.nodes, event.node, change(node)))


def _life(state: JobState, event: Any, change: Callable[[Life], Life]) -> JobState:
    def changed(node: Node) -> Node:
        life = node.lives.get(event.pod, Life(event.pod))
        life = replace(change(life), since=min(life.since, event.time))
        return replace(node, lives=bounded(node.lives, event.pod, life, _MOST_TIMES))

    return _node(state, event, changed)


def _node_started(state: JobState, event: ev.NodeStarted) -> JobState:
    def add(life: Life) -> Life:
        starts = merged(life.starts, event, lambda e: e.run, lambda e: e.time)
        return replace(life, starts=starts, attempt=max(life.attempt, event.attempt))

    return _life(state, event, add)


def _node_exited(state: JobState, event: ev.NodeExited) -> JobState:
    def add(life: Life) -> Life:
        return replace(life, exits=merged(life.exits, event, lambda e: e.run, _of_use))

    return _life(state, event, add)


def _of_use(event: ev.NodeExited) -> tuple[Any, ...]:
    # The kubelet adds the pod's reason a second or two after the container's code.
    return (failure.tells(event), event.code is not None, len(event.text), event.time)


def _node_disrupted(state: JobState, event: ev.NodeDisrupted) -> JobState:
    # A deletion follows a disruption's condition, and says less.
    def add(life: Life) -> Life:
        known = [event] if life.disruption is None else [event, life.disruption]
        return replace(life, disruption=min(known, key=lambda e: (e.reason == ev.DELETED, e.age, repr(e))))

    return _life(state, event, add)


def _node_gone(state: JobState, event: ev.NodeGone) -> JobState:
    def add(life: Life) -> Life:
        return replace(life, gone=event.time if life.gone is None else min(life.gone, event.time))

    return _life(state, event, add)


def _waiting(state: JobState, event: ev.Waiting) -> JobState:
    if event.node is None:
        same = [wait for wait in state.waits if wait.reason == event.reason]
        others = tuple(wait for wait in state.waits if wait.reason != event.reason)
        newest = _newest_wait([*same, event], lambda w: (w.reason,))
        return replace(state, waits=merged(others, newest, lambda w: w.reason, lambda w: w.time))

    def add(life: Life) -> Life:
        known = [event] if life.wait is None else [life.wait, event]
        wait = _newest_wait(known, lambda w: (w.stage, w.run))
        attempt, restarts = max(life.attempt, event.attempt), life.restarts
        if event.restarts is not None:
            restarts = max(event.restarts, restarts or 0)
        return replace(life, wait=wait, attempt=attempt, restarts=restarts)

    return _life(state, event, add)


def _newest_wait(waits: Sequence[ev.Waiting], step: Callable[[ev.Waiting], Any]) -> ev.Waiting:
    """Return the newest of the furthest step, with when the first of that step began."""
    newest = max(waits, key=lambda w: (step(w), w.time, w.reason, repr(replace(w, since=0.0))))
    began = [w.since for w in waits if step(w) == step(newest) and w.since]
    return replace(newest, since=min(began, default=0.0))


def _node_output(state: JobState, event: ev.NodeOutput) -> JobState:
    lines = {*state.output, event}
    return replace(
        state, output=tuple(sorted(lines, key=lambda e: (e.time, e.node, repr(e)))[-_OUTPUT_LINES:])
    )


def _workers_started(state: JobState, event: ev.WorkersStarted) -> JobState:
    if state.base(event.round) != event.round:
        return state  # that a lab's ranks begin a turn starts none of them

    def add(node: Node) -> Node:
        workers = merged(node.workers, event, lambda w: w.round, lambda w: (w.time, w.pod))
        return replace(node, workers=workers)

    return _node(state, event, add)


def _turn_taken(state: JobState, event: ev.TurnTaken) -> JobState:
    turns = merged(state.turns, event, lambda e: e.round, lambda e: -e.time, _MOST)
    nodes = state.nodes
    if event.base != event.round:  # as above: a turn's beginning may be heard of before it
        others = {index: _without(node, event.round) for index, node in nodes.items()}
        nodes = MappingProxyType({i: node for i, node in others.items() if node.lives or node.workers})
    return replace(state, turns=turns, nodes=nodes)


def _without(node: Node, round_: int) -> Node:
    if all(worker.round != round_ for worker in node.workers):
        return node
    return replace(node, workers=tuple(worker for worker in node.workers if worker.round != round_))


def _turn_ended(state: JobState, event: ev.TurnEnded) -> JobState:
    def slot(each: ev.TurnEnded) -> tuple[int, int]:
        return each.round, each.node

    return replace(state, turns_over=merged(state.turns_over, event, slot, lambda e: -e.time, _MOST))


def _lab_ends(state: JobState, event: ev.LabEnds) -> JobState:
    return replace(state, lab_ends=_newer(state.lab_ends, event, lambda e: -e.time))


def _installs(state: JobState, event: ev.Installing | ev.Installed) -> JobState:
    def age(each: ev.Installing | ev.Installed) -> tuple[float, bool, tuple[str, ...]]:
        return each.time, isinstance(each, ev.Installed), each.packages

    newest = max(state.installs.get(event.node, event), event, key=age)
    return replace(state, installs=bounded(state.installs, event.node, newest))


def _node_meets(state: JobState, event: ev.NodeMeets) -> JobState:
    return replace(state, met=bounded(state.met, event.node, max(event.time, state.met.get(event.node, 0.0))))


def _checkout_told(state: JobState, event: ev.CheckoutTold) -> JobState:
    return replace(state, checkout=_newer(state.checkout, event, lambda e: e.time))


def _environment_told(state: JobState, event: ev.EnvironmentTold) -> JobState:
    newest = _newer(state.environments.get(event.node), event, lambda e: e.time)
    return replace(state, environments=bounded(state.environments, event.node, newest))


def _rank_began(state: JobState, event: ev.RankBegan) -> JobState:
    known = state.began.get(event.rank, event)
    newest = max(known, event, key=lambda each: (each.round, each.time))
    return replace(state, began=bounded(state.began, event.rank, newest))


def _node_leaves(state: JobState, event: ev.NodeLeaves) -> JobState:
    return replace(state, leaves=merged(state.leaves, event, lambda e: e.round, lambda e: -e.time))


def _rank_left(state: JobState, event: ev.RankLeft) -> JobState:
    # Of frameworks only rank 0 reports.
    return replace(
        state, left=merged(state.left, event, lambda e: e.round, lambda e: (len(e.metrics), -e.time))
    )


def _rank_stops(state: JobState, event: ev.RankStops) -> JobState:
    event = replace(event, function=event.function[:_MAX_NAME], filename=event.filename[:_MAX_PATH])
    newest = _newer(state.stops.get(event.rank), event, lambda e: (e.round, e.time))
    return replace(state, stops=bounded(state.stops, event.rank, newest))


def _rank_goes_on(state: JobState, event: ev.RankGoesOn) -> JobState:
    newest = _newer(state.goes_on.get(event.rank), event, lambda e: (e.round, e.time))
    return replace(state, goes_on=bounded(state.goes_on, event.rank, newest))


def _in_full(error: Error) -> tuple[int, int]:
    # A termination message holds 4 KiB, so it may tell in short what the log tells in full.
    return (len(error.frames), len(error.message))


def _rank_failed(state: JobState, event: ev.RankFailed) -> JobState:
    if event.stays:
        return state  # it is a turn's failure, not the lab's: ``state/turns``

    def slot(e: ev.RankFailed) -> tuple[float, int, int]:
        return (e.error.time, e.rank, e.round)

    if event.error.told:
        key = described(event)
        fullest = _newer(state.variables.get(key), event.error, lambda e: (e.told, *_in_full(e)))
        state = replace(state, variables=bounded(state.variables, key, fullest, _MOST_DESCRIBED))
        event = replace(event, error=event.error.bare())
    return replace(state, errors=merged(state.errors, event, slot, lambda e: _in_full(e.error), _MOST))


def _rank_exited(state: JobState, event: ev.RankExited) -> JobState:
    exits = merged(state.exits, event, lambda e: (e.time, e.rank, e.round), lambda e: e.time, _MOST)
    return replace(state, exits=exits)


def _node_failed(state: JobState, event: ev.NodeFailed) -> JobState:
    event = replace(event, error=event.error.bare()) if event.error.told else event
    agents = merged(
        state.agents, event, lambda e: (e.time, e.node), lambda e: (_in_full(e.error), e.pod), _MOST
    )
    return replace(state, agents=agents)


def _reported(state: JobState, event: ev.Reported) -> JobState:
    series = state.series.get(event.rank, Series())
    series = series.add(event.round, Point(event.seq, event.time, event.metrics))
    return replace(state, series=bounded(state.series, event.rank, series))


def _trainer_status(state: JobState, event: ev.TrainerStatus) -> JobState:
    told = merged(state.trainer_told, event, lambda e: (e.attempt, e.time), lambda e: -1, MAX_POINTS)
    return replace(state, trainer_told=told)


def _sampled(state: JobState, event: ev.Sampled) -> JobState:
    newest = _newer(state.samples.get(event.node), event, lambda e: (e.round, e.time))
    return replace(state, samples=bounded(state.samples, event.node, newest, _MOST_SAMPLES))


def _used(state: JobState, event: ev.Used) -> JobState:
    use = state.uses.get(event.node, Use(event)).add(event)
    return replace(state, uses=bounded(state.uses, event.node, use, _MOST_SAMPLES))


def _log(state: JobState, event: ev.LogChunk) -> JobState:
    tail = state.logs.get(event.rank, LogTail()).add(event.round, event.offset, event.data)
    return replace(state, logs=bounded(state.logs, event.rank, tail))


def _wrote(state: JobState, event: ev.Wrote) -> JobState:
    known = event.time if state.wrote is None else max(state.wrote, event.time)
    return state if known == state.wrote else replace(state, wrote=known)


def _value_ready(state: JobState, event: ev.ValueReady) -> JobState:
    known = state.values.get(event.rank)
    if known is not None and known.round >= event.round:
        return state
    return replace(state, values=bounded(state.values, event.rank, event))


def _artifacts_ready(state: JobState, event: ev.ArtifactsReady) -> JobState:
    of = (event.attempt, event.node)
    newest = _newer(state.artifacts.get(of), event, lambda e: e.time)
    return replace(state, artifacts=bounded(state.artifacts, of, newest))


def _displayed(state: JobState, event: ev.Displayed) -> JobState:
    def slot(each: ev.Displayed) -> tuple[int, int]:
        return each.round, each.seq

    if event.rank != 0:
        return state
    return replace(state, displays=merged(state.displays, event, slot, lambda e: -e.time, displays.MOST))


def _notice(state: JobState, event: ev.Notice) -> JobState:
    return replace(state, notices=merged(state.notices, event, lambda n: (n.time, n.text), lambda n: n.time))


def _refused(state: JobState, event: ev.Refused) -> JobState:
    refused = merged(state.refused, event, lambda e: e.digest, lambda e: e.why, _MOST_REFUSED)
    return replace(state, refused=refused)


def _cancel_requested(state: JobState, event: ev.CancelRequested) -> JobState:
    new = event.time, event.early[:_MAX_EARLY]
    time, early = new if state.cancelled is None else min(new, (state.cancelled, state.early))
    return replace(state, cancelled=time, early=early)


def _deadline_exceeded(state: JobState, event: ev.DeadlineExceeded) -> JobState:
    return replace(state, deadline=_newer(state.deadline, event, lambda e: -e.time))


def _verdict(state: JobState, event: ev.Verdict) -> JobState:
    # An attempt that we ended is aborted, or terminated, by its operator then.
    verdicts = merged(state.verdicts, event, lambda e: e.attempt, lambda e: (e.reason in _OURS, e.time))
    return replace(state, verdicts=verdicts)


def _attempt_began(state: JobState, event: ev.AttemptBegan) -> JobState:
    return replace(state, begun=tuple(sorted({*state.begun, event.attempt}))[-_MOST_TIMES:])


def _attempt_paid(state: JobState, event: ev.AttemptPaid) -> JobState:
    event = replace(event, text=event.text[:_MAX_PATH])
    paid = merged(state.paid, event, lambda e: e.attempt, lambda e: -e.time)
    return replace(state, paid=paid)


def _suspended(state: JobState, event: ev.Suspended) -> JobState:
    # Within one second a job that is created suspended may be resumed; hardly the other way round.
    # A run's turn is awaited, then maybe held, and then it has come.
    pauses = merged(
        state.pauses, event, lambda e: (e.time, not e.suspended), lambda e: (not e.turn, e.turn == ev.HELD)
    )
    return replace(state, pauses=pauses)


def _queued(state: JobState, event: ev.Queued) -> JobState:
    return replace(state, queue=_newer(state.queue, event, lambda e: e.age))


def _standing(state: JobState, event: ev.Standing) -> JobState:
    return replace(state, standing=_newer(state.standing, event, lambda e: e.time))


def _evicted(state: JobState, event: ev.Evicted) -> JobState:
    evictions = merged(state.evictions, event, lambda e: (e.time, e.reason), lambda e: e.text)
    return replace(state, evictions=evictions)


def _removed(state: JobState, event: ev.Removed) -> JobState:
    return replace(state, removed=event.time if state.removed is None else min(state.removed, event.time))


def _lost(state: JobState, event: ev.Lost) -> JobState:
    return replace(state, lost=_newer(state.lost, event, lambda e: -e.time))


def _closed(state: JobState, event: ev.Closed) -> JobState:
    last = event.time if state.closed is None else max(state.closed, event.time)
    return replace(state, closed=last)


_APPLY: dict[type, Callable[[JobState, Any], JobState]] = {
    ev.NodeStarted: _node_started,
    ev.NodeExited: _node_exited,
    ev.NodeDisrupted: _node_disrupted,
    ev.NodeGone: _node_gone,
    ev.NodeFailed: _node_failed,
    ev.NodeOutput: _node_output,
    ev.Waiting: _waiting,
    ev.TurnTaken: _turn_taken,
    ev.TurnEnded: _turn_ended,
    ev.LabEnds: _lab_ends,
    ev.Installing: _installs,
    ev.Installed: _installs,
    ev.NodeMeets: _node_meets,
    ev.CheckoutTold: _checkout_told,
    ev.EnvironmentTold: _environment_told,
    ev.WorkersStarted: _workers_started,
    ev.RankBegan: _rank_began,
    ev.NodeLeaves: _node_leaves,
    ev.RankLeft: _rank_left,
    ev.RankFailed: _rank_failed,
    ev.RankStops: _rank_stops,
    ev.RankGoesOn: _rank_goes_on,
    ev.RankExited: _rank_exited,
    ev.Reported: _reported,
    ev.TrainerStatus: _trainer_status,
    ev.Sampled: _sampled,
    ev.Used: _used,
    ev.LogChunk: _log,
    ev.Wrote: _wrote,
    ev.ValueReady: _value_ready,
    ev.ArtifactsReady: _artifacts_ready,
    ev.Displayed: _displayed,
    ev.Notice: _notice,
    ev.Refused: _refused,
    ev.CancelRequested: _cancel_requested,
    ev.DeadlineExceeded: _deadline_exceeded,
    ev.Verdict: _verdict,
    ev.AttemptBegan: _attempt_began,
    ev.AttemptPaid: _attempt_paid,
    ev.Suspended: _suspended,
    ev.Queued: _queued,
    ev.Standing: _standing,
    ev.Evicted: _evicted,
    ev.Removed: _removed,
    ev.Lost: _lost,
    ev.Closed: _closed,
}
