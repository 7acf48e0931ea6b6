"""The turns of a lab: which there are, what each came to, and one of them as a job of its own (pure).

A lab is a job whose ranks stay. What they run is a *turn*: one cell, or one call of a function, which people
read as *cell 3*. Each has a round of its own, and all that ranks tell is filed by round. So a :class:`View`
needs only to pick a lab's facts by their round, and to end where the turn does: what is drawn of a turn,
fetched or asked is what is drawn of any job.

In a *pool* a turn is a whole job, which has ranks of its own (``runtime/pool``).

A turn runs on all its ranks or on none. It is over once each of its nodes has said so. Where a lab's ranks
began anew before that, it is *lost*, with all that they held.

One turn of a lab runs at a time, in the order of the rounds. A job of a pool takes some of its nodes, so
others may run beside it. Jobs begin in the order of their numbers: one that is sent again after it was lost
is in front of those that were sent later and still wait.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import chain, islice, takewhile
from math import inf
from operator import attrgetter

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts import exits
from nbtorchjob.spec.jobspec import build
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.fold import apply
from nbtorchjob.state.info import MARK, US, JobInfo
from nbtorchjob.state.job import JobState
from nbtorchjob.state.nodes import Node
from nbtorchjob.text import words

FIRST = "1"  # the key of the turn that a lab begins with
_NAMED = 5  # turns, of those that another one waits for
_AGAIN = "."  # in the id of a job of a pool that was sent again: in front of how often it was sent
KEEP = "<torchjob keep>"  # the file name of a cell of ours that does nothing
PULL = "<torchjob pull>"  # and of one that only brings a value here
ANEW = "BeganAnew"  # the reason of a verdict of ours, as are the next ones
UNREAD = "EndedBefore"
ENDED = "the lab ended before it was over"
GONE = "the lab's ranks began anew before it was over: what they held is gone"
POOL_ENDED = "its pool ended before it was over"
POOL_GONE = "the pool lost a node, or the ranks on one, before the job ended"
POOL_GONE_BEFORE = "the pool lost a node, or the ranks on one, before the job began"

# What ends nodes, and what somebody does to the job as a whole: of it a turn knows what came while it ran.
_OF_NODES = (ev.NodeExited, ev.NodeGone, ev.NodeDisrupted, ev.NodeFailed, ev.NodeOutput)
_OF_JOBS = (
    ev.CancelRequested,
    ev.DeadlineExceeded,
    ev.EnvironmentTold,
    ev.Removed,
    ev.Refused,
    ev.Suspended,
    ev.Queued,
    ev.Standing,
)
_ROUNDS = (
    ev.RankBegan,
    ev.NodeLeaves,
    ev.RankLeft,
    ev.Swapped,
    ev.RankFailed,
    ev.RankStops,
    ev.RankGoesOn,
    ev.RankExited,
    ev.Reported,
    ev.Displayed,
    ev.Sampled,
    ev.Used,
    ev.LogChunk,
    ev.ValueReady,
)
TEXT = (ev.LogChunk, ev.Reported, ev.Used, ev.Displayed, ev.Sampled, ev.Wrote)  # says nothing of an end


def again(id_: str, times: int) -> str:
    """Return the id under which a job of a pool is sent for that time."""
    return f"{id_}{_AGAIN}{times}" if times > 1 else id_


def _sent_as(id_: str) -> str:
    """Return the id under which it was sent first."""
    return id_.partition(_AGAIN)[0]


class Stage(Enum):
    """How far a turn has come."""

    WAITS = "waits"
    RUNS = "runs"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"  # the ranks began anew, or the lab ended, before it was over


class Turn(FrozenDataclass):
    """One turn of a lab, counted from 1; ``since`` is when its stage began, as far as is known."""

    number: int
    taken: ev.TurnTaken
    stage: Stage
    since: float
    failed: tuple[int, ...] = ()
    what: str = "cell"  # or "job", in a pool
    nodes: tuple[int, ...] = ()  # of a job that doesn't have all of its pool, once it has them

    @property
    def key(self) -> str:
        """What it goes by behind a lab's name, which is known once it was sent."""
        return _sent_as(self.taken.id) or FIRST

    @property
    def group(self) -> str:
        """Of a run: the group that it is of; else ""."""
        return str(_sweep(self.taken).get("group", ""))

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.what} {self.number}"

    @property
    def over(self) -> bool:
        """Whether it will run no more."""
        return self.stage not in (Stage.WAITS, Stage.RUNS)

    @property
    def whose(self) -> str:
        """What it is called, with who sent it and which part of its pool it has, where that is known."""
        whose = f"{self.name} ({self.taken.by})" if self.taken.by else self.name
        return f"{whose} on {self.where}" if self.where else whose

    @property
    def where(self) -> str:
        """Which nodes of its pool it has, in words; "" where these are all, or none yet."""
        return f"node{'s' if len(self.nodes) > 1 else ''} {words.spell(self.nodes)}" if self.nodes else ""


def turns(lab: JobState) -> list[Turn]:
    """Return a lab's turns in their order, of very many the newest."""
    ends: dict[int, dict[int, ev.TurnEnded]] = {}
    for end in lab.turns_over:
        ends.setdefault(end.round, {})[end.node] = end
    # The first one is sent again where ranks began anew before it was over once, and where the pods of a job
    # that was resumed can't know that there were others.
    firsts = [taken.round for taken in lab.turns if not taken.id]
    what = what_of(lab.info)
    in_order: list[Turn] = []
    free = lab.info.created  # when the ranks were through with the one before
    placed = {place.round: place for place in lab.turns_placed}
    held = 0  # nodes that those before have, or are to have
    number_of = numbers(lab)
    newest = {_sent_as(taken.id): taken.round for taken in lab.turns}
    for taken in sorted(lab.turns, key=partial(_place, lab)) if lab.info.is_pool else lab.turns:
        if not taken.id and taken.round != firsts[-1]:
            continue
        sent_as = _sent_as(taken.id)
        if taken.id and taken.round != newest[sent_as]:  # it was sent again since
            continue
        number, ended = number_of[sent_as], ends.get(taken.round, {})
        place = placed.get(taken.round)
        nodes = place.nodes if place is not None and place.nodes else taken.nodes
        part = nodes if len(nodes) < len(taken.nodes) else ()
        if all(node in ended for node in nodes):
            failed = tuple(sorted({rank for end in ended.values() for rank in end.failed}))
            free = max(free, *(end.time for end in ended.values()))
            stage = Stage.FAILED if failed else Stage.DONE
            in_order.append(Turn(number, taken, stage, free, failed, what, part))
        elif taken.base != lab.round or lab.phase.terminal:
            in_order.append(Turn(number, taken, Stage.LOST, taken.time, what=what, nodes=part))
        elif place is not None and place.nodes:
            in_order.append(Turn(number, taken, Stage.RUNS, place.time, what=what, nodes=part))
            held += sum(node not in ended for node in nodes)
        else:
            stage = Stage.RUNS if place is None and _fits(lab.info, taken, held) else Stage.WAITS
            in_order.append(Turn(number, taken, stage, max(free, taken.time), what=what))
            held += _needs(lab.info, taken)
    return in_order


def numbers(lab: JobState) -> dict[str, int]:
    """Return the number of each turn, by the id under which it was sent first: "" of a lab's own call."""
    known: dict[str, int] = {}
    most = min(1, sum(not taken.id for taken in lab.turns))
    for taken in lab.turns:
        sent_as = _sent_as(taken.id)
        if sent_as not in known:
            known[sent_as] = (taken.number or most + 1) if taken.id else 1
            most = max(most, known[sent_as])
    return known


def _place(lab: JobState, taken: ev.TurnTaken) -> tuple[int, bool, float, int]:
    """Return what turns are sorted by that begin one after the other, those of former ranks first.

    What has begun is in front of what waits: of two jobs that are sent again the later one may come first.
    """
    place = _placed(lab, taken.round)
    return taken.base, place is None or not place.nodes, taken.number or inf, taken.round


def _needs(lab: JobInfo, taken: ev.TurnTaken) -> int:
    """Return how many of its nodes a turn takes."""
    if not lab.is_pool:
        return len(taken.nodes)
    return min(len(taken.nodes), -(-len(taken.ranks) // max(1, lab.nproc_per_node)))


def _fits(lab: JobInfo, taken: ev.TurnTaken, held: int) -> bool:
    """Whether a turn begins beside those that hold so many nodes."""
    return held + _needs(lab, taken) <= len(taken.nodes) if lab.is_pool else not held


def _placed(lab: JobState, round: int) -> ev.TurnPlaced | None:
    at = bisect_left(lab.turns_placed, round, key=lambda place: place.round)
    return next((place for place in lab.turns_placed[at : at + 1] if place.round == round), None)


def _nodes(lab: JobState, taken: ev.TurnTaken) -> tuple[int, ...]:
    """Return the nodes that a turn runs on; all that it may run on where that isn't known yet."""
    place = _placed(lab, taken.round)
    return place.nodes if place is not None and place.nodes else taken.nodes


def what_of(lab: JobInfo) -> str:
    """Return what people call a turn."""
    return "job" if lab.is_pool else "cell"


def find(lab: JobState, key: str) -> Turn | None:
    """Return the turn with that number or id."""
    return next((turn for turn in turns(lab) if key in (turn.key, str(turn.number))), None)


def sent(lab: JobState, known_as: str) -> tuple[int, ev.TurnTaken] | None:
    """Return the number of the turn with that id, and the turn, as soon as it is known that it was taken."""
    for at in reversed(range(len(lab.turns))):
        if (taken := lab.turns[at]).id == known_as:
            if lab.info.is_pool:
                number = taken.number or next(t.number for t in turns(lab) if t.key == _sent_as(known_as))
                return number, taken
            return len({*map(attrgetter("id"), islice(lab.turns, at + 1))}), taken
    return None


def newest(lab: JobState) -> Turn | None:
    """Return the one that was taken last."""
    known = turns(lab)
    return known[-1] if known else None


def running(lab: JobState) -> list[Turn]:
    """Return those that run: of a lab one at most."""
    return [turn for turn in turns(lab) if turn.stage is Stage.RUNS]


def ahead(lab: JobState, round: int) -> list[Turn]:
    """Return those that are to be over before the one of that round begins."""
    # Mostly there is none, so thousands of them needn't be looked at.
    this = _taken(lab, round)
    if this is None or not _waits(lab, round):
        return []
    return [turn for turn in turns(lab) if not turn.over and _place(lab, turn.taken) < _place(lab, this)]


def _taken(lab: JobState, round: int) -> ev.TurnTaken | None:
    at = bisect_left(lab.turns, round, key=lambda taken: taken.round)
    return next((taken for taken in lab.turns[at : at + 1] if taken.round == round), None)


def _waits(lab: JobState, round: int) -> bool:
    """Whether the one of that round can't have begun, as far as was told of those before it.

    One of an older base is in nobody's way: it was lost with its ranks.
    """
    this, held = _taken(lab, round), 0
    place = _placed(lab, round)
    if this is None or place is not None:
        return place is not None and not place.nodes
    at = bisect_left(lab.turns, round, key=lambda taken: taken.round)
    earlier = (lab.turns[other] for other in reversed(range(at)))
    alike = (
        takewhile(lambda taken: taken.base == this.base, taken)
        for taken in (earlier, islice(lab.turns, at + 1, None))
    )
    for before in chain.from_iterable(alike):
        if _place(lab, before) > _place(lab, this):
            continue
        # The nodes that haven't told yet that they are through with it
        first = bisect_left(lab.turns_over, before.round, key=attrgetter("round"))
        last = bisect_right(lab.turns_over, before.round, lo=first, key=attrgetter("round"))
        left = {*_nodes(lab, before)} - {end.node for end in lab.turns_over[first:last]}
        held += min(len(left), _needs(lab.info, before))
        if not _fits(lab.info, this, held):
            return True
        if not lab.info.is_pool:  # all that came before it are over, too
            return False
    return False


def idle_since(lab: JobState) -> float | None:
    """Return since when a lab's ranks wait for a cell; None where they run one, or there are none."""
    known = turns(lab)
    stands = lab.working and not lab.suspended and not lab.phase.terminal and lab.round >= 0
    if not stands or any(not turn.over for turn in known):
        return None
    began = [worker.time for node in lab.members for worker in node.workers if worker.round == lab.round]
    # Before its first cell was taken it is still starting. Ranks that began anew hold nothing, and run that
    # cell again only until it ended once.
    firsts = [turn for turn in known if not turn.taken.id]
    empty = lab.tries > 1 or any(turn.over and turn.stage is not Stage.LOST for turn in firsts)
    starts = not any(turn.taken.base == lab.round for turn in known) and not empty
    if starts and not lab.info.is_pool:
        return None
    return max([*began, *(turn.since for turn in known if turn.stage is not Stage.LOST)])


def ends_at(lab: JobState) -> float | None:
    """Return when a lab ends by itself that nobody uses; None where it doesn't, or one uses it."""
    since = idle_since(lab)
    return since + lab.info.lab if since is not None and lab.info.lab else None


def lead(lab: JobState) -> int | None:
    """Return the node that takes turns: the one of rank 0; None while the lab has no ranks.

    Between two attempts a node that has ended still counts as one of its last round.
    """
    for node in lab.members:
        if node.working and not node.life.over and 0 in node.ranks:
            return node.index
    return None


def ranks(lab: JobState) -> list[int]:
    """Return a lab's ranks; empty before it has any."""
    return sorted(rank for node in lab.members for rank in node.ranks)


def began_anew(lab: JobState) -> float | None:
    """Return when a lab's ranks began anew last, after they had run something; None where they didn't."""
    before = [turn for turn in turns(lab) if turn.taken.base < lab.round]
    if not before:
        return None
    return min(w.time for node in lab.nodes.values() for w in node.workers if w.round == lab.round)


def info(lab: JobInfo, turn: Turn) -> JobInfo:
    """Return what is known of a turn, as a job's record."""
    taken = turn.taken
    sources = dict(lab.sources)
    if taken.text:
        sources[taken.filename] = (taken.by or turn.name, taken.text)
    key, created = str(turn.number), taken.sent or taken.time
    known: dict[str, object] = {"created": created, "label": taken.label, "turn": taken.ranks}
    if lab.is_pool:
        known |= {"nodes": (_needs(lab, taken),) * 2, **_sweep(taken)}
    record = of(lab, key=key, sources=sources, **known)
    retry = _retry(taken)
    return replace(record, spec={**record.spec, "retry": retry}, retry_owner=US) if retry else record


def _retry(taken: ev.TurnTaken) -> dict[str, object] | None:
    """Return a job's budgets, as its spec has them."""
    try:
        retry: dict[str, object] = json.loads(taken.retry or "null") or {}
        build(Retry, retry)
    except (ValueError, TypeError, AttributeError, RecursionError, SpecError):  # as above
        return None
    return retry or None


def _sweep(taken: ev.TurnTaken) -> dict[str, object]:
    """Return the fields of a run's record that say of which group it is."""
    try:
        record = json.loads(taken.sweep or "{}")
        group, number, parameters = str(record["group"]), int(record["number"]), dict(record["given"])
        return {"group": group, "number": number, "given": parameters, "early": dict(record["early"])}
    except (ValueError, KeyError, TypeError, RecursionError):  # of none, or what nobody honest tells
        return {}


def is_first(lab: JobInfo, key: str) -> bool:
    """Whether a turn of that key is the lab's own call; that of a pool does nothing, and is no turn."""
    return key == FIRST and lab.lab is not None and not lab.is_pool


def first(lab: JobInfo) -> JobInfo:
    """Return what is known of a lab's own call, as a job's record."""
    return of(lab, key=FIRST, label=lab.label, ships=lab.ships, all_ranks=lab.all_ranks, turn=())


def of(lab: JobInfo, *, key: str, **known: object) -> JobInfo:
    """Return the record of a turn: the lab's, without what is the lab's alone."""
    spec = {**lab.spec, "retry": None, "lab": not lab.is_pool, "fresh": False} if lab.spec else {}
    own = {
        "name": f"{lab.name}{MARK}{key}",
        "spec": spec,
        "retry_owner": "",
        "max_restarts": 0,
        "ttl_s": None,
        "deadline_s": None,
        "leave_before_s": None,
        "start_within_s": None,
        "lab": None,
        "ships": "",
        "captured": None,
        "all_ranks": False,
        "began": 0.0,
        "packed": 0.0,
        "payload": 0,
    }
    return replace(lab, **{**own, **known})  # type: ignore[arg-type]


class View:
    """A turn's facts, picked from its lab's: those of a job that has ended once the turn is over.

    ``lab`` is what is known of the lab already, and ``key`` says which turn; its ``round`` is found by that
    where it isn't known. Of what came before the turn was taken nothing need be told again. Of one that is
    ``unseen`` nobody has followed what it did before its lab's ranks began anew.
    """

    def __init__(
        self,
        lab: JobState,
        key: str,
        round: int | None = None,
        mark: int | None = None,
        *,
        unseen: bool = False,
    ) -> None:
        self.lab = lab
        self.over = False
        self.last: tuple[ev.Event, ...] = ()  # the turn's end, once it is over: behind all that was written
        self.mark = mark  # where its lab's facts ended before it was sent, in its backend's terms
        self._key = key
        self._round = round
        self._unseen = unseen
        self._taken: ev.TurnTaken | None = None
        self._started: set[int] = set()
        self._through: dict[int, ev.TurnEnded] = {}  # by node
        self._elsewhere: set[int] = set()  # nodes that have ranks of a later base
        self._said = ""  # of what it waits for
        self._early: list[ev.TurnEnded | ev.WorkersStarted] = []  # heard before it was heard who runs it

    @property
    def first(self) -> bool:
        """Whether it is the lab's own call: until it runs, what is known of the lab is known of it."""
        return is_first(self.lab.info, self._key)

    def wants(self, event: ev.WorkersStarted) -> bool:
        """Whether what these ranks write is of the turn."""
        return event.round == self._round or (self.first and self._taken is None)

    def begin(self) -> list[ev.Event]:
        """Return what follows from what is known of the lab."""
        return [*self._look()]

    def take(self, event: ev.Event) -> list[ev.Event]:
        """Return the facts of the turn that follow from one of the lab's."""
        if self.over:
            # Of its nodes each tells all of a turn before its end. Logs may come behind that.
            mine = isinstance(event, _ROUNDS) and event.round == self._round
            return [self._as_a_jobs(event)] if mine else []
        before = self.lab
        if not isinstance(event, TEXT):
            self.lab = apply(before, event)
        return [*self._facts(event, before)]

    def _facts(self, event: ev.Event, before: JobState) -> Iterator[ev.Event]:
        if isinstance(event, ev.TurnTaken | ev.TurnPlaced | ev.TurnEnded):
            names = ("turns", "turns_placed", "turns_over")
            new = any(getattr(before, name) is not getattr(self.lab, name) for name in names)
            yield from self._turned(event, new=new)
        elif isinstance(event, ev.WorkersStarted):
            yield from self._workers(event)
        elif isinstance(event, _ROUNDS):
            if event.round == self._round or (self.first and event.round <= self.lab.round):
                yield self._as_a_jobs(event)
        elif isinstance(event, _OF_NODES):
            taken = self._taken
            if taken is None:
                if self.first:
                    yield event
            elif self.lab.info.is_pool and not self._started:
                return  # nothing of a job that waits
            elif (
                event.node in _nodes(self.lab, taken)
                and event.node not in self._through
                and event.pod in ("", self._pod(event.node, taken))
            ):
                yield event
        elif isinstance(event, ev.ArtifactsReady) and self.lab.info.is_pool:
            from nbtorchjob.runtime.api.artifacts import of_round  # late: a list has none

            if self._round is not None and event.attempt == of_round(self._round):
                yield replace(event, attempt=1)
        elif isinstance(event, ev.Notice | ev.Wrote):
            if self._taken is None or event.time >= self._taken.time:
                yield event
        elif isinstance(event, ev.Verdict):
            if not event.succeeded:
                yield replace(event, attempt=1)
                if self.lab.next is not None:
                    self._gone()
        elif isinstance(event, ev.Closed | ev.Lost):
            lab = self.lab
            wishes = (lab.cancelled, lab.deadline, lab.removed)
            if isinstance(event, ev.Lost) or any(wish is not None for wish in wishes):
                self.over, self.last = True, (event,)
            else:
                ended = POOL_ENDED if lab.info.is_pool else ENDED
                self._end(event.time, well=False, reason=UNREAD, text=ended)
        elif isinstance(event, _OF_JOBS):
            yield event
        elif isinstance(event, ev.AttemptBegan):
            self._gone()
        elif self.first and not isinstance(event, ev.LabEnds | ev.AttemptPaid):
            yield event  # how the lab comes to start

    def _as_a_jobs(self, event: ev.Event) -> ev.Event:
        if isinstance(event, ev.RankFailed | ev.RankExited):
            return replace(event, stays=False)
        if isinstance(event, ev.Displayed) and self._taken and event.rank == min(self._taken.ranks):
            return replace(event, rank=0)
        return event

    def _turned(self, event: ev.TurnTaken | ev.TurnPlaced | ev.TurnEnded, *, new: bool) -> Iterator[ev.Event]:
        if self._taken is None or (new and not self._started):
            yield from self._look()
        taken = self._taken
        if taken is None:
            # Nodes are heard of side by side: one may tell of its end before the lead's word is here.
            if isinstance(event, ev.TurnEnded):
                self._early.append(event)
            return
        early, self._early = self._early, []
        for turn in early:
            yield from self._facts(turn, self.lab)
        if isinstance(event, ev.TurnTaken) or event.round != taken.round:
            return
        new_end = isinstance(event, ev.TurnEnded) and event.node not in self._through
        if isinstance(event, ev.TurnEnded) and new_end and event.node in taken.nodes:
            self._through[event.node] = event
            code = exits.USER_ERROR if event.failed else exits.OK
            if event.node in self._started or self.first:
                yield ev.NodeExited(event.time, event.node, code, pod=self._pod(event.node, taken))
        if self._through.keys() >= {*_nodes(self.lab, taken)}:
            ends = self._through.values()
            time = max(end.time for end in ends)
            deadline = max(end.deadline for end in ends)
            if deadline or any(end.cancelled for end in ends):
                why = max(end.early for end in ends)
                yield ev.DeadlineExceeded(time, deadline) if deadline else ev.CancelRequested(time, why)
                self.over, self.last = True, (ev.Closed(time),)
            else:
                self._end(time, well=not any(end.failed for end in ends))

    def _look(self) -> Iterator[ev.Event]:
        """Find the turn once it is known that it was taken, and yield what it waits for."""
        if self._round is not None and not self.first:
            taken = next((taken for taken in reversed(self.lab.turns) if taken.round == self._round), None)
        else:
            turn = find(self.lab, self._key)
            taken = turn.taken if turn is not None else None
        if taken is None:
            return
        self._taken, self._round = taken, taken.round
        before = ahead(self.lab, taken.round)
        text = ""
        if before:
            more = len(before) - _NAMED
            named = [turn.whose for turn in before[:_NAMED]] + ([f"{more} more"] if more > 0 else [])
            text, needs = f"waits behind {', '.join(named)}", _needs(self.lab.info, taken)
            if any(turn.nodes for turn in before) or (self.lab.info.is_pool and needs < len(taken.nodes)):
                text = f"{text}; it needs {needs} of {words.count(len(taken.nodes), 'node')}"
        if text not in ("", self._said):
            self._said = text
            yield ev.Waiting(max([taken.time, *(turn.since for turn in before)]), text)

    def _workers(self, event: ev.WorkersStarted) -> Iterator[ev.Event]:
        taken, node = self._taken, self._node(event.node)
        if self.first and self.lab.tries == 1:
            if self.lab.base(event.round) == event.round:  # it runs again in each, until it was over once
                yield event
        elif taken is None:
            self._early.append(event)
        elif event.round == taken.round:
            # A life of its own: what the node did before says nothing of the turn.
            pod = self._pod(event.node, taken)
            yield ev.NodeStarted(event.time, event.node, node.host, node.pid, pod)
            self._started.add(event.node)
            yield replace(event, pod=pod)
        elif self.lab.base(event.round) == event.round > taken.base:
            self._elsewhere.add(event.node)
            self._gone()

    def _pod(self, index: int, taken: ev.TurnTaken) -> str:
        """Return the pod that has run the turn on a node, which may have had others since."""
        node = self._node(index)
        pods = (worker.pod for worker in node.workers if worker.round == taken.base)
        return next(pods, "") or node.life.pod

    def _node(self, index: int) -> Node:
        return self.lab.nodes.get(index, Node(index))

    def _gone(self) -> None:
        """End it where one of its nodes can't come to its end any more."""
        taken = self._taken
        if taken is None:
            return
        for index in set(_nodes(self.lab, taken)) - self._through.keys():
            node = self._node(index)
            if index in self._elsewhere or node.life.over or node.round > taken.base:
                # Of its beginning nobody may have heard; one that others left no room hasn't begun.
                back = _placed(self.lab, taken.round)
                known = not self._unseen or (back is not None and not back.nodes)
                waited = known and not self._started and _waits(self.lab, taken.round)
                ours = POOL_GONE_BEFORE if waited else POOL_GONE
                gone = ours if self.lab.info.is_pool else GONE
                lab = self.lab
                began = [w.time for node in lab.nodes.values() for w in node.workers if w.round == lab.round]
                lives = [node.life.end for node in lab.nodes.values() if node.life.over]
                when = max([*began, *lives, lab.operator_verdict.time if lab.operator_verdict else 0.0])
                self._end(when, well=False, reason=ANEW, text=gone)
                return

    def _end(self, time: float, *, well: bool, reason: str = "", text: str = "") -> None:
        self.over = True
        notices = (ev.Notice(time, text),) if reason else ()
        self.last = (*notices, ev.Verdict(time, well, reason, text), ev.Closed(time))
