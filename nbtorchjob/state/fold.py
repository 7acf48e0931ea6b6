"""The only way a state changes: ``apply(state, event)``.

The law of this package: a state depends only on the set of facts, so the same events in any order, and
repeated any number of times, give the same state. Facts are stored; what follows from them (phase, failure,
attempt) is derived on demand and never stored. If two facts conflict, the same one stays, whichever came
first: see ``merged``. ``_APPLY`` has a rule for each type of fact: a function marked with ``_of``, or a row
at the end. All collections are bounded, and keep the same facts in any order, so the memory of a state is
bounded, whatever a job reports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from nbtorchjob.errors import DamagedError
from nbtorchjob.frozen import NumberedMapping, replace
from nbtorchjob.runtime.api import displays
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import failure
from nbtorchjob.state.blame import ABANDONED, STOPPED
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.facts.logs import LogTail, tail_bytes
from nbtorchjob.state.facts.series import MAX_POINTS, Point, Series, Use, points_each
from nbtorchjob.state.job import JobState
from nbtorchjob.state.jobfacts import described
from nbtorchjob.state.nodes import Life, Node

K = TypeVar("K")
V = TypeVar("V")
Kept = TypeVar("Kept", Series, LogTail)
_Fields: TypeAlias = dict[str, Any]  # of a frozen dataclass, some of which change

_OURS = (STOPPED, ABANDONED, failure.DEADLINE_EXCEEDED, failure.NEVER_STARTED)
# Lines kept of what pods wrote outside their ranks: enough for Python's last words.
_OUTPUT_LINES = 40
# How many are kept: items with one per node or rank, and items that one node or rank repeats.
_MOST = 8192
_MOST_RANKS = 1 << 16
_MOST_TIMES = 1024
_MOST_REFUSED = 100
_MOST_SWAPS = 256
_MOST_WHY = 160  # characters of the reason that a fact doesn't fit
_MOST_DESCRIBED = 16  # errors with their variables: the first ones of the newest rounds
_MAX_NAME, _MAX_PATH = 256, 4096  # characters of where each rank is stopped
_MAX_EARLY = 1000  # characters
_MAX_NOTE = 4000
_MOST_SAMPLES = 256  # nodes with their samples and their use: a megabyte each at worst

_Rule: TypeAlias = Callable[[JobState, Any], JobState]
_APPLY: dict[type, _Rule] = {}


def apply(state: JobState, event: ev.Event) -> JobState:
    """Return the state with ``event`` added; a fact that it has already changes nothing.

    Raises ``DamagedError`` for a fact that doesn't fit the others, which no honest node reports.
    """
    try:
        return _APPLY[type(event)](state, event)
    except factlines.UNREADABLE as exc:
        info, kind = state.info, type(event).__name__
        raise DamagedError(info.backend, info.address, f"{kind} fact", f"{exc}"[:_MOST_WHY]) from exc


def merged(
    facts: tuple[V, ...],
    new: V,
    slot: Callable[[V], Any],
    worth: Callable[[V], Any],
    most: int = _MOST_TIMES,
) -> tuple[V, ...]:
    """Return the facts with ``new`` among them, sorted by slot; of two in one slot the worthier stays.

    If there are more than ``most``, the last ones stay.
    """
    if not facts:
        return (new,)
    at = bisect_left(facts, slot(new), key=slot)
    if at == len(facts) or slot(facts[at]) != slot(new):
        return (*facts[:at], new, *facts[at:])[-most:]
    best = max(facts[at], new, key=lambda candidate: (worth(candidate), repr(candidate)))
    return facts if best == facts[at] else (*facts[:at], best, *facts[at + 1 :])


def bounded(mapping: Mapping[K, V], key: K, value: V, most: int = _MOST) -> Mapping[K, V]:
    """Return the mapping with ``value`` in it; if it has more than ``most`` items, the highest key goes."""
    if isinstance(mapping, NumberedMapping):
        return mapping.with_item(key, value, most)  # type: ignore[arg-type, return-value]
    larger: dict[K, V] = mapping | {key: value}  # type: ignore[operator]  # ten times as fast as {**mapping}
    if len(larger) > most:
        del larger[max(larger)]  # type: ignore[type-var]
    return MappingProxyType(larger)


def _of(kind: type) -> Callable[[_Rule], _Rule]:
    """Make a function the rule for facts of a type."""

    def register(rule: _Rule) -> _Rule:
        _APPLY[kind] = rule
        return rule

    return register


def _newer(current: V | None, new: V, worth: Callable[[V], Any]) -> V:
    return (
        new
        if current is None
        else max(current, new, key=lambda candidate: (worth(candidate), repr(candidate)))
    )


def _node(state: JobState, event: Any, change: Callable[[Node], _Fields]) -> JobState:
    node = state.nodes.get(event.node) or Node(event.node)
    return replace(state, nodes=bounded(state.nodes, event.node, replace(node, **change(node))))


def _life(state: JobState, event: Any, change: Callable[[Life], _Fields]) -> JobState:
    def changed(node: Node) -> _Fields:
        life = node.lives.get(event.pod) or Life(event.pod)
        life = replace(life, **change(life), since=min(life.since, event.time))
        return {"lives": bounded(node.lives, event.pod, life, _MOST_TIMES)}

    return _node(state, event, changed)


@_of(ev.NodeStarted)
def _node_started(state: JobState, event: ev.NodeStarted) -> JobState:
    def add(life: Life) -> _Fields:
        starts = merged(life.starts, event, lambda e: e.run, lambda e: e.time)
        return {"starts": starts, "attempt": max(life.attempt, event.attempt)}

    return _life(state, event, add)


@_of(ev.NodeExited)
def _node_exited(state: JobState, event: ev.NodeExited) -> JobState:
    def worth(event: ev.NodeExited) -> tuple[Any, ...]:
        # The kubelet adds the pod's reason a second or two after the container's code.
        return failure.tells(event), event.code is not None, len(event.text), event.time

    def add(life: Life) -> _Fields:
        return {"exits": merged(life.exits, event, lambda e: e.run, worth)}

    return _life(state, event, add)


@_of(ev.NodeDisrupted)
def _node_disrupted(state: JobState, event: ev.NodeDisrupted) -> JobState:
    # The deletion follows the disruption's condition, and says less.
    def add(life: Life) -> _Fields:
        disruptions = [event] if life.disruption is None else [event, life.disruption]
        return {"disruption": min(disruptions, key=lambda e: (e.reason == ev.DELETED, e.age, repr(e)))}

    return _life(state, event, add)


@_of(ev.NodeGone)
def _node_gone(state: JobState, event: ev.NodeGone) -> JobState:
    def add(life: Life) -> _Fields:
        return {"gone_at": event.time if life.gone_at is None else min(life.gone_at, event.time)}

    return _life(state, event, add)


@_of(ev.Waiting)
def _waiting(state: JobState, event: ev.Waiting) -> JobState:
    if event.node is None:
        same = [wait for wait in state.waits if wait.reason == event.reason]
        others = tuple(wait for wait in state.waits if wait.reason != event.reason)
        newest = _newest_wait([*same, event], lambda w: (w.reason,))
        return replace(state, waits=merged(others, newest, lambda w: w.reason, lambda w: w.time))

    def add(life: Life) -> _Fields:
        waits = [event] if life.wait is None else [life.wait, event]
        wait = _newest_wait(waits, lambda w: (w.stage, w.run))
        attempt, restarts = max(life.attempt, event.attempt), life.restarts
        if event.restarts is not None:
            restarts = max(event.restarts, restarts or 0)
        return {"wait": wait, "attempt": attempt, "restarts": restarts}

    return _life(state, event, add)


def _newest_wait(waits: Sequence[ev.Waiting], step: Callable[[ev.Waiting], Any]) -> ev.Waiting:
    """Return the newest wait of the furthest step, with the earliest ``since`` of that step."""
    newest = max(waits, key=lambda w: (step(w), w.time, w.reason, repr(replace(w, since=0.0))))
    began = [w.since for w in waits if step(w) == step(newest) and w.since]
    return replace(newest, since=min(began, default=0.0))


@_of(ev.NodeOutput)
def _node_output(state: JobState, event: ev.NodeOutput) -> JobState:
    lines = {*state.output, event}
    return replace(
        state, output=tuple(sorted(lines, key=lambda e: (e.time, e.node, repr(e)))[-_OUTPUT_LINES:])
    )


@_of(ev.WorkersStarted)
def _workers_started(state: JobState, event: ev.WorkersStarted) -> JobState:
    if state.base(event.round) != event.round:
        return state  # a lab's ranks begin a turn, which doesn't start them

    def add(node: Node) -> _Fields:
        return {"workers": merged(node.workers, event, lambda w: w.round, lambda w: (w.time, w.pod))}

    return _node(state, event, add)


@_of(ev.TurnTaken)
def _turn_taken(state: JobState, event: ev.TurnTaken) -> JobState:
    turns = merged(state.turns, event, lambda e: e.round, lambda e: -e.time, _MOST)
    nodes = state.nodes
    if event.base != event.round:  # as above: its ranks' beginning may be reported before the turn itself
        others = {}
        for index, node in nodes.items():
            workers = tuple(worker for worker in node.workers if worker.round != event.round)
            others[index] = node if len(workers) == len(node.workers) else replace(node, workers=workers)
        nodes = NumberedMapping((i, node) for i, node in others.items() if node.lives or node.workers)
    return replace(state, turns=turns, nodes=nodes)


@_of(ev.NodeMeets)
def _node_meets(state: JobState, event: ev.NodeMeets) -> JobState:
    return replace(state, met=bounded(state.met, event.node, max(event.time, state.met.get(event.node, 0.0))))


def _in_full(error: Error) -> tuple[int, int]:
    # A termination message holds 4 KiB, so it may have a shorter form of an error that is in the log in full.
    return (len(error.frames), len(error.message))


@_of(ev.RankFailed)
def _rank_failed(state: JobState, event: ev.RankFailed) -> JobState:
    def slot(e: ev.RankFailed) -> tuple[float, int, int]:
        return (e.error.time, e.rank, e.round)

    if event.stays:
        return state  # a failure of the turn, not of its lab: see ``state/turns``
    if event.error.variables_size:
        key = described(event)
        fullest = _newer(state.variables.get(key), event.error, lambda e: (e.variables_size, *_in_full(e)))
        state = replace(state, variables=bounded(state.variables, key, fullest, _MOST_DESCRIBED))
        event = replace(event, error=event.error.bare())
    return replace(state, errors=merged(state.errors, event, slot, lambda e: _in_full(e.error), _MOST))


@_of(ev.NodeFailed)
def _node_failed(state: JobState, event: ev.NodeFailed) -> JobState:
    event = replace(event, error=event.error.bare()) if event.error.variables_size else event
    agents = merged(
        state.agents, event, lambda e: (e.time, e.node), lambda e: (_in_full(e.error), e.pod), _MOST
    )
    return replace(state, agents=agents)


def _with_rank(
    by_rank: Mapping[int, Kept], rank: int, room: Callable[[int], int], new: Callable[[], Kept], speaker: int
) -> tuple[Mapping[int, Kept], Kept]:
    """Return what is kept of all ranks, and of ``rank``; if it is new, each may have to keep less.

    The rank that stands for all keeps as much as if it were alone.
    """
    kept = by_rank.get(rank)
    if kept is not None:
        return by_rank, kept
    most = room(min(len(by_rank) + 1, _MOST_RANKS))
    if most < room(len(by_rank)):
        by_rank = NumberedMapping(
            (other, kept if other == speaker else kept.within(most)) for other, kept in by_rank.items()
        )
    return by_rank, new() if rank == speaker else new().within(most)


@_of(ev.Reported)
def _reported(state: JobState, event: ev.Reported) -> JobState:
    by_rank, series = _with_rank(state.series, event.rank, points_each, Series, state.info.speaker)
    series = series.add(event.round, Point(event.seq, event.time, event.metrics))
    return replace(state, series=bounded(by_rank, event.rank, series, _MOST_RANKS))


@_of(ev.Used)
def _used(state: JobState, event: ev.Used) -> JobState:
    use = (state.uses.get(event.node) or Use(event)).add(event)
    return replace(state, uses=bounded(state.uses, event.node, use, _MOST_SAMPLES))


@_of(ev.LogChunk)
def _log(state: JobState, event: ev.LogChunk) -> JobState:
    by_rank, tail = _with_rank(state.logs, event.rank, tail_bytes, LogTail, state.info.speaker)
    tail = tail.add(event.round, event.offset, event.data)
    return replace(state, logs=bounded(by_rank, event.rank, tail, _MOST_RANKS))


@_of(ev.CancelRequested)
def _cancel_requested(state: JobState, event: ev.CancelRequested) -> JobState:
    new = event.time, event.early[:_MAX_EARLY]
    time, early = new if state.cancelled is None else min(new, (state.cancelled, state.early))
    return replace(state, cancelled=time, early=early)


@_of(ev.AttemptBegan)
def _attempt_began(state: JobState, event: ev.AttemptBegan) -> JobState:
    return replace(state, begun=tuple(sorted({*state.begun, event.attempt}))[-_MOST_TIMES:])


# The rules of most facts: if several say the same thing, one stays, whichever came first.
_Key: TypeAlias = Callable[[Any], Any]


def _one(name: str, worth: _Key) -> _Rule:
    """Return a rule by which a field holds the worthiest of all such facts."""

    def rule(state: JobState, event: Any) -> JobState:
        return replace(state, **{name: _newer(getattr(state, name), event, worth)})

    return rule


def _one_each(name: str, key: _Key, worth: _Key, most: int = _MOST) -> _Rule:
    """Return a rule by which a mapping holds the worthiest fact for each key."""

    def rule(state: JobState, event: Any) -> JobState:
        facts = getattr(state, name)
        best = _newer(facts.get(key(event)), event, worth)
        return replace(state, **{name: bounded(facts, key(event), best, most)})

    return rule


def _sorted(name: str, slot: _Key, worth: _Key, most: int = _MOST_TIMES) -> _Rule:
    """Return a rule by which a tuple, sorted by slot, holds the worthiest fact for each slot."""

    def rule(state: JobState, event: Any) -> JobState:
        return replace(state, **{name: merged(getattr(state, name), event, slot, worth, most)})

    return rule


def _time(name: str, choose: Callable[[float, float], float]) -> _Rule:
    """Return a rule by which a field holds the first or the last time of such facts."""

    def rule(state: JobState, event: Any) -> JobState:
        current = getattr(state, name)
        time = event.time if current is None else choose(current, event.time)
        return state if time == current else replace(state, **{name: time})

    return rule


def _cut(rule: _Rule, **most: int) -> _Rule:
    """Return a rule that first cuts some texts of a fact to as many characters as ``most`` says."""

    def of_cut(state: JobState, event: Any) -> JobState:
        texts = {name: getattr(event, name)[:length] for name, length in most.items()}
        return rule(state, replace(event, **texts))

    return of_cut


def _only(counts: Callable[[Any], bool], rule: _Rule) -> _Rule:
    """Return a rule that ignores facts that don't count."""
    return lambda state, event: rule(state, event) if counts(event) else state


def _time_of(event: Any) -> Any:
    return event.time


def _first(event: Any) -> Any:
    return -event.time


def _round(event: Any) -> Any:
    return event.round


def _round_and_time(event: Any) -> Any:
    return event.round, event.time


def _node_index(event: Any) -> Any:
    return event.node


def _rank(event: Any) -> Any:
    return event.rank


_INSTALLS = _one_each("installs", _node_index, lambda e: (e.time, isinstance(e, ev.Installed), e.packages))

_FETCHES = _one_each(
    "fetches",
    lambda e: (e.node, e.name),
    lambda e: (e.time, isinstance(e, ev.Fetched), e.seconds if isinstance(e, ev.Fetched) else e.done),
)

_APPLY |= {
    # The lives of nodes.
    ev.Installing: _INSTALLS,
    ev.Installed: _INSTALLS,
    ev.Fetching: _FETCHES,
    ev.Fetched: _FETCHES,
    ev.NodeLeaves: _sorted("leaves", _round, _first),
    ev.EnvironmentTold: _one_each("environments", _node_index, _time_of),
    ev.Sampled: _one_each("samples", _node_index, _round_and_time, _MOST_SAMPLES),
    # What ranks do.
    ev.RankBegan: _one_each("began", _rank, _round_and_time, _MOST_RANKS),
    # With frameworks only rank 0 reports, so the fact with the most metrics is kept.
    ev.RankLeft: _sorted("left", _round, lambda e: (len(e.metrics), -e.time)),
    # Each node reports the swap, but only rank 0's node has the metrics.
    ev.Swapped: _sorted("swaps", lambda e: (e.round, e.id), lambda e: (len(e.metrics), -e.time), _MOST_SWAPS),
    ev.RankStops: _cut(_one_each("stops", _rank, _round_and_time), function=_MAX_NAME, filename=_MAX_PATH),
    ev.RankGoesOn: _one_each("goes_on", _rank, _round_and_time),
    # The exit of a turn's rank isn't one of the lab's: see ``state/turns``.
    ev.RankExited: _only(
        lambda e: not e.stays, _sorted("exits", lambda e: (e.time, e.rank, e.round), _time_of, _MOST)
    ),
    ev.Wrote: _time("wrote", max),
    ev.ValueReady: _one_each("values", _rank, _round, _MOST_RANKS),
    ev.ArtifactsReady: _one_each("artifacts", lambda e: (e.attempt, e.node), _time_of),
    ev.Displayed: _only(
        lambda e: e.rank == 0, _sorted("displays", lambda e: (e.round, e.seq), _first, displays.MOST)
    ),
    # A lab's turns.
    ev.TurnPlaced: _sorted("turns_placed", lambda e: e.round, _first, _MOST),
    ev.TurnEnded: _sorted("turns_over", lambda e: (e.round, e.node), _first, _MOST_RANKS),
    ev.LabEnds: _one("lab_ends", _first),
    # The job as a whole.
    ev.CheckoutTold: _one("checkout", _time_of),
    ev.FilesSeen: _cut(_one_each("files_seen", lambda e: (e.what, e.node), _first), what=_MAX_NAME),
    ev.Annotated: _cut(_one("annotated", _time_of), note=_MAX_NOTE),
    ev.TrainerStatus: _sorted("trainer_told", lambda e: (e.attempt, e.time), lambda e: -1, MAX_POINTS),
    ev.Notice: _sorted("notices", lambda e: (e.time, e.text), _time_of),
    ev.Refused: _sorted("refused", lambda e: e.digest, lambda e: e.why, _MOST_REFUSED),
    ev.DeadlineExceeded: _one("deadline", _first),
    # After nbtorchjob has ended an attempt, its operator reports it as aborted or terminated.
    ev.Verdict: _sorted("verdicts", lambda e: e.attempt, lambda e: (e.reason in _OURS, e.time)),
    ev.AttemptPaid: _cut(_sorted("paid", lambda e: e.attempt, _first), text=_MAX_PATH),
    # In one second a job may be created suspended and resumed; hardly the other way round.
    # A run's turn is awaited, then maybe held, and then it comes.
    ev.Suspended: _sorted(
        "pauses",
        lambda e: (e.began or e.time, not e.suspended),
        lambda e: (not e.turn, e.turn == ev.HELD, -e.time),
    ),
    ev.Queued: _one("queue", lambda e: e.age),
    ev.Standing: _one("standing", _time_of),
    ev.Evicted: _sorted("evictions", lambda e: (e.time, e.reason), lambda e: e.text),
    ev.Removed: _time("removed", min),
    ev.Lost: _one("lost", _first),
    ev.Closed: _time("closed", max),
}
