"""The turns of a lab: the list of them, the outcome of each, and one of them as a job of its own (pure).

A lab is a job whose ranks stay. They run *turns*: a turn is one cell or one call of a function, shown to
users as *cell 3*. Each turn has a round of its own, and everything that ranks report has a round. So a
:class:`View` only has to pick a lab's facts by round, and to end with the turn: then a turn can be drawn,
fetched and asked like any job.

In a *pool* a turn is a whole job, which has ranks of its own (``runtime/pool``).

A turn runs on all its ranks or on none. It is over once each of its nodes has reported its end. If a lab's
ranks began anew before that, the turn is *lost*, with everything that they held.

One turn of a lab runs at a time, in the order of the rounds. A job of a pool takes some of the pool's nodes,
so others may run beside it. Jobs begin in the order of their numbers: a job that is sent again after it was
lost goes ahead of those that were sent later and still wait.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
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
_NAMED = 5  # how many of the turns that a turn waits for are named
_AGAIN = "."  # in the id of a pool's job that was sent again: in front of how often it was sent
KEEP = "<torchjob keep>"  # the file name of an internal cell that does nothing
PULL = "<torchjob pull>"  # and of an internal cell that only brings a value here
ANEW = "BeganAnew"  # the reason of one of nbtorchjob's own verdicts, as is the next one
UNREAD = "EndedBefore"
ENDED = "the lab ended before the cell was over"
GONE = "the lab's ranks began anew before the cell was over: what they held is gone"
POOL_ENDED = "its pool ended before the job was over"
POOL_GONE = "the pool lost a node, or the ranks on one, before the job ended"
POOL_GONE_BEFORE = "the pool lost a node, or the ranks on one, before the job began"

# What ends nodes, and what is done to the job as a whole: a turn gets those facts that came while it ran.
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
TEXT = (ev.LogChunk, ev.Reported, ev.Used, ev.Displayed, ev.Sampled, ev.Wrote)  # unrelated to an end


def again(id_: str, times: int) -> str:
    """Return the id under which a pool's job is sent the ``times``-th time."""
    return f"{id_}{_AGAIN}{times}" if times > 1 else id_


def _sent_as(id_: str) -> str:
    """Return the id under which a turn was sent first."""
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
    fact: ev.TurnTaken
    stage: Stage
    since: float
    failed: tuple[int, ...] = ()
    word: str = "cell"  # or "job", in a pool
    nodes: tuple[int, ...] = ()  # a job's, once it has them, if they are only a part of its pool

    @property
    def key(self) -> str:
        """What identifies it after its lab's name, known as soon as it is sent."""
        return _sent_as(self.fact.id) or FIRST

    @property
    def group(self) -> str:
        """The group of a run; "" for any other turn."""
        return str(_sweep(self.fact).get("group", ""))

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.word} {self.number}"

    @property
    def over(self) -> bool:
        """Whether it will run no more."""
        return self.stage not in (Stage.WAITS, Stage.RUNS)

    @property
    def full_name(self) -> str:
        """Its name, with who sent it and which part of its pool it has, where that is known."""
        name = f"{self.name} ({self.fact.by})" if self.fact.by else self.name
        return f"{name} on {self.where}" if self.where else name

    @property
    def where(self) -> str:
        """Which nodes of its pool it has, in words; "" where it has all, or none yet."""
        return f"node{'s' if len(self.nodes) > 1 else ''} {words.spell(self.nodes)}" if self.nodes else ""


def turns(lab: JobState) -> list[Turn]:
    """Return a lab's turns in order; if there are very many, the newest."""
    ends: dict[int, dict[int, ev.TurnEnded]] = {}
    for end in lab.turns_over:
        ends.setdefault(end.round, {})[end.node] = end
    # The first turn is sent again if ranks began anew before it was over once, and by the pods of a resumed
    # job, which can't know that there were turns before.
    firsts = [fact.round for fact in lab.turns if not fact.id]
    word = what_of(lab.info)
    in_order: list[Turn] = []
    free = lab.info.created  # when the ranks were through with the turn before
    placed = {place.round: place for place in lab.turns_placed}
    load = 0  # nodes that the turns before have, or are to have
    going: Counter[str] = Counter()  # runs before that aren't over, by group
    number_of = numbers(lab)
    newest = {_sent_as(fact.id): fact.round for fact in lab.turns}
    # A lab's turns follow each other: of those before one that has ended on a node, the ends may be dropped.
    begun = {end.round for end in lab.turns_over if end.begun and not lab.info.is_pool}
    reached = {fact.base: fact.round for fact in lab.turns if fact.round in begun}
    for fact in sorted(lab.turns, key=partial(_place, lab)) if lab.info.is_pool else lab.turns:
        if not fact.id and fact.round != firsts[-1]:
            continue
        sent_as = _sent_as(fact.id)
        if fact.id and fact.round != newest[sent_as]:  # it was sent again since
            continue
        number, ended = number_of[sent_as], ends.get(fact.round, {})
        place = placed.get(fact.round)
        nodes = place.nodes if place is not None and place.nodes else fact.nodes
        part = nodes if len(nodes) < len(fact.nodes) else ()
        if all(node in ended for node in nodes) or fact.round < reached.get(fact.base, fact.round):
            failed = tuple(sorted({rank for end in ended.values() for rank in end.failed}))
            free = max([free, *(end.time for end in ended.values())])
            stage = Stage.FAILED if failed else Stage.DONE
            in_order.append(Turn(number, fact, stage, free, failed, word, part))
        elif fact.base != lab.round or lab.phase.terminal:
            in_order.append(Turn(number, fact, Stage.LOST, fact.time, word=word, nodes=part))
        else:
            group, at_once = _limit(fact)
            if place is not None and place.nodes:
                in_order.append(Turn(number, fact, Stage.RUNS, place.time, word=word, nodes=part))
                load += sum(node not in ended for node in nodes)
            else:
                full = 0 < at_once <= going[group]
                fits = place is None and not full and _fits(lab.info, fact, load)
                stage = Stage.RUNS if fits else Stage.WAITS
                in_order.append(Turn(number, fact, stage, max(free, fact.time), word=word))
                load += len(fact.nodes) if full else _needs(lab.info, fact)  # none overtakes it
            going[group] += 1
    return in_order


def numbers(lab: JobState) -> dict[str, int]:
    """Return the number of each turn by the id under which it was sent first; a lab's own call has ""."""
    number_of: dict[str, int] = {}
    most = min(1, sum(not fact.id for fact in lab.turns))
    for fact in lab.turns:
        sent_as = _sent_as(fact.id)
        if sent_as not in number_of:
            number_of[sent_as] = (fact.number or most + 1) if fact.id else 1
            most = max(most, number_of[sent_as])
    return number_of


def _place(lab: JobState, fact: ev.TurnTaken) -> tuple[int, bool, float, int]:
    """Return the key that sorts turns in the order in which they begin, those of former ranks first.

    Turns that have begun go ahead of those that wait: of two jobs sent again, the later may have come first.
    """
    place = _placed(lab, fact.round)
    return fact.base, place is None or not place.nodes, fact.number or inf, fact.round


def _needs(lab: JobInfo, fact: ev.TurnTaken) -> int:
    """Return how many of the lab's nodes a turn takes."""
    if not lab.is_pool:
        return len(fact.nodes)
    return min(len(fact.nodes), -(-len(fact.ranks) // max(1, lab.nproc_per_node)))


def _fits(lab: JobInfo, fact: ev.TurnTaken, load: int) -> bool:
    """Whether a turn can begin beside turns that hold ``load`` nodes."""
    return load + _needs(lab, fact) <= len(fact.nodes) if lab.is_pool else not load


def _placed(lab: JobState, round: int) -> ev.TurnPlaced | None:
    at = bisect_left(lab.turns_placed, round, key=lambda place: place.round)
    return next((place for place in lab.turns_placed[at : at + 1] if place.round == round), None)


def _nodes(lab: JobState, fact: ev.TurnTaken) -> tuple[int, ...]:
    """Return the nodes that a turn runs on, or all that it may run on until it is placed."""
    place = _placed(lab, fact.round)
    return place.nodes if place is not None and place.nodes else fact.nodes


def what_of(lab: JobInfo) -> str:
    """Return the word for a turn that is shown to people."""
    return "job" if lab.is_pool else "cell"


def find(lab: JobState, key: str) -> Turn | None:
    """Return the turn with that number or id."""
    return next((turn for turn in turns(lab) if key in (turn.key, str(turn.number))), None)


def sent(lab: JobState, known_as: str) -> tuple[int, ev.TurnTaken] | None:
    """Return the turn with the id ``known_as`` and its number; None until it is known to be taken."""
    for at in reversed(range(len(lab.turns))):
        if (fact := lab.turns[at]).id == known_as:
            if lab.info.is_pool:
                number = fact.number or next(t.number for t in turns(lab) if t.key == _sent_as(known_as))
                return number, fact
            return len({*map(attrgetter("id"), islice(lab.turns, at + 1))}), fact
    return None


def round_of(lab: JobState, turn: Turn, attempt: int) -> int:
    """Return the round of that attempt of a pool's job, or of its newest one if that isn't known."""
    of_turn = (fact for fact in reversed(lab.turns) if _sent_as(fact.id) == turn.key)
    return next((fact.round for fact in of_turn if fact.attempt == attempt), turn.fact.round)


def newest(lab: JobState) -> Turn | None:
    """Return the turn that was taken last."""
    lab_turns = turns(lab)
    return lab_turns[-1] if lab_turns else None


def running(lab: JobState) -> list[Turn]:
    """Return the turns that are running: at most one, except in a pool."""
    return [turn for turn in turns(lab) if turn.stage is Stage.RUNS]


def ahead(lab: JobState, round: int) -> list[Turn]:
    """Return the turns that have to be over before the turn of that round begins."""
    # Usually there are none: then thousands of turns needn't be looked at.
    this = _fact_of(lab, round)
    if this is None or not _waits(lab, round):
        return []
    return [turn for turn in turns(lab) if not turn.over and _place(lab, turn.fact) < _place(lab, this)]


def _fact_of(lab: JobState, round: int) -> ev.TurnTaken | None:
    at = bisect_left(lab.turns, round, key=lambda fact: fact.round)
    return next((fact for fact in lab.turns[at : at + 1] if fact.round == round), None)


def _waits(lab: JobState, round: int) -> bool:
    """Whether the turn of that round can't have begun, by what is known of the turns before it.

    A turn with an older base doesn't keep others waiting: it was lost with its ranks.
    """
    this, load, going = _fact_of(lab, round), 0, Counter[str]()
    place = _placed(lab, round)
    if this is None or place is not None:
        return place is not None and not place.nodes
    at = bisect_left(lab.turns, round, key=lambda fact: fact.round)
    earlier = (lab.turns[other] for other in reversed(range(at)))
    alike = (
        takewhile(lambda fact: fact.base == this.base, facts)
        for facts in (earlier, islice(lab.turns, at + 1, None))
    )
    for before in chain.from_iterable(alike):
        if _place(lab, before) > _place(lab, this):
            continue
        # The nodes that haven't reported its end yet
        first = bisect_left(lab.turns_over, before.round, key=attrgetter("round"))
        last = bisect_right(lab.turns_over, before.round, lo=first, key=attrgetter("round"))
        ends = lab.turns_over[first:last]
        left = {*_nodes(lab, before)} - {end.node for end in ends}
        load += min(len(left), _needs(lab.info, before))
        if not _fits(lab.info, this, load):
            return True
        group, at_once = _limit(before) if left else ("", 0)
        going[group] += 1
        # A run that its group holds back also keeps those behind it waiting: none overtakes it.
        if at_once > 0 and going[group] >= at_once + (group != _limit(this)[0]):
            return True
        if not lab.info.is_pool and any(end.begun for end in ends):  # all turns before that one are over, too
            return False
    return False


def idle_since(lab: JobState) -> float | None:
    """Return since when a lab's ranks have waited for a turn; None while they run one, or don't exist."""
    lab_turns = turns(lab)
    has_ranks = lab.working and not lab.suspended and not lab.phase.terminal and lab.round >= 0
    if not has_ranks or any(not turn.over for turn in lab_turns):
        return None
    began = [worker.time for node in lab.members for worker in node.workers if worker.round == lab.round]
    # Until its first cell is taken, a lab is still starting. Ranks that began anew hold nothing, and run that
    # cell again only if it has never ended.
    firsts = [turn for turn in lab_turns if not turn.fact.id]
    empty = lab.tries > 1 or any(turn.over and turn.stage is not Stage.LOST for turn in firsts)
    starts = not any(turn.fact.base == lab.round for turn in lab_turns) and not empty
    if starts and not lab.info.is_pool:
        return None
    return max([*began, *(turn.since for turn in lab_turns if turn.stage is not Stage.LOST)])


def ends_at(lab: JobState) -> float | None:
    """Return when an idle lab ends by itself; None where it doesn't, or isn't idle."""
    since = idle_since(lab)
    return since + lab.info.lab if since is not None and lab.info.lab else None


def lead(lab: JobState) -> int | None:
    """Return the node that takes turns, which has rank 0; None while the lab has no ranks.

    Between two attempts, a node that has ended is still a member of the last round.
    """
    for node in lab.members:
        if node.working and not node.life.over and 0 in node.ranks:
            return node.index
    return None


def ranks(lab: JobState) -> list[int]:
    """Return a lab's ranks; empty before it has any."""
    return sorted(rank for node in lab.members for rank in node.ranks)


def began_anew(lab: JobState) -> float | None:
    """Return when a lab's ranks last began anew after they had run something; None where they didn't."""
    before = [turn for turn in turns(lab) if turn.fact.base < lab.round]
    if not before:
        return None
    return min(w.time for node in lab.nodes.values() for w in node.workers if w.round == lab.round)


def info(lab: JobInfo, turn: Turn) -> JobInfo:
    """Return a turn's record, like that of a job."""
    fact = turn.fact
    sources = dict(lab.sources)
    if fact.text:
        sources[fact.filename] = (fact.by or turn.name, fact.text)
    key, created = str(turn.number), fact.sent or fact.time
    fields: dict[str, object] = {"created": created, "label": fact.label, "turn": fact.ranks}
    if lab.is_pool:
        fields |= {"nodes": (_needs(lab, fact),) * 2, **_sweep(fact)}
    record = of(lab, key=key, sources=sources, **fields)
    retry = _retry(fact)
    return replace(record, spec={**record.spec, "retry": retry}, retry_owner=US) if retry else record


def _retry(fact: ev.TurnTaken) -> dict[str, object] | None:
    """Return a job's budgets, as its spec has them."""
    try:
        retry: dict[str, object] = json.loads(fact.retry or "null") or {}
        build(Retry, retry)
    except (ValueError, TypeError, AttributeError, RecursionError, SpecError):  # forged
        return None
    return retry or None


def _sweep(fact: ev.TurnTaken) -> dict[str, object]:
    """Return the fields of a run's record that describe its group; none for any other turn."""
    try:
        record = json.loads(fact.sweep or "{}")
        group, number, parameters = str(record["group"]), int(record["number"]), dict(record["given"])
        return {"group": group, "number": number, "given": parameters, "early": dict(record["early"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # not a run, or a forged one
        return {}


def _limit(fact: ev.TurnTaken) -> tuple[str, int]:
    """Return a run's group, and how many of its runs go on at a time; 0 if any number may."""
    try:
        record = json.loads(fact.sweep or "{}")
        return str(record["group"]), int(record.get("at_once") or 0)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # as above
        return "", 0


def is_first(lab: JobInfo, key: str) -> bool:
    """Whether the turn with that key is the lab's own call; a pool's does nothing, and isn't a turn."""
    return key == FIRST and lab.lab is not None and not lab.is_pool


def first(lab: JobInfo) -> JobInfo:
    """Return the record of a lab's own call, like that of a job."""
    return of(lab, key=FIRST, label=lab.label, ships=lab.ships, all_ranks=lab.all_ranks, turn=())


def of(lab: JobInfo, *, key: str, **fields: object) -> JobInfo:
    """Return the record of a turn: the lab's, without what only applies to the lab."""
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
    return replace(lab, **{**own, **fields})  # type: ignore[arg-type]


class View:
    """A turn's facts, picked from its lab's: those of a job, which has ended once the turn is over.

    ``lab`` is the lab's state so far, and ``key`` says which turn; without a ``round``, it is found by the
    key. Facts from before the turn was taken needn't be passed again. ``unseen`` says that nothing has
    followed the turn before its lab's ranks began anew.
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
        self.last: tuple[ev.Event, ...] = ()  # the turn's end, once it is over: it goes after all logs
        self.mark = mark  # where its lab's facts ended before it was sent, in its backend's terms
        self._key = key
        self._round = round
        self._unseen = unseen
        self._fact: ev.TurnTaken | None = None
        self._started: set[int] = set()
        self._through: dict[int, ev.TurnEnded] = {}  # by node
        self._elsewhere: set[int] = set()  # nodes that have ranks of a later base
        self._wait_text = ""  # the newest text of what it waits for
        self._early: list[ev.TurnEnded | ev.WorkersStarted] = []  # came before the turn was taken

    @property
    def first(self) -> bool:
        """Whether it is the lab's own call: until that runs, the lab's facts are also the turn's."""
        return is_first(self.lab.info, self._key)

    def wants(self, event: ev.WorkersStarted) -> bool:
        """Whether what these ranks write belongs to the turn."""
        return event.round == self._round or (self.first and self._fact is None)

    def begin(self) -> list[ev.Event]:
        """Return the turn's facts that follow from what is known of the lab so far."""
        return [*self._look()]

    def take(self, event: ev.Event) -> list[ev.Event]:
        """Return the facts of the turn that follow from one of the lab's."""
        if self.over:
            # Each of its nodes reports everything about a turn before its end; only logs may come later.
            is_own = isinstance(event, _ROUNDS) and event.round == self._round
            return [self._as_a_jobs(event)] if is_own else []
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
            fact = self._fact
            if fact is None:
                if self.first:
                    yield event
            elif self.lab.info.is_pool and not self._started:
                return  # while a job waits, none of these concern it
            elif (
                event.node in _nodes(self.lab, fact)
                and event.node not in self._through
                and event.pod in ("", self._pod(event.node, fact))
            ):
                yield event
        elif isinstance(event, ev.ArtifactsReady) and self.lab.info.is_pool:
            from nbtorchjob.runtime.api.artifacts import of_round  # late: lists have none

            if self._round is not None and event.attempt == of_round(self._round):
                yield replace(event, attempt=1)
        elif isinstance(event, ev.Notice | ev.Wrote):
            if self._fact is None or event.time >= self._fact.time:
                yield event
        elif isinstance(event, ev.Verdict):
            if not event.succeeded:
                yield replace(event, attempt=1)
                if self.lab.next is not None:
                    self._end_if_lost()
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
            self._end_if_lost()
        elif self.first and not isinstance(event, ev.LabEnds | ev.AttemptPaid):
            yield event  # how the lab starts

    def _as_a_jobs(self, event: ev.Event) -> ev.Event:
        if isinstance(event, ev.RankFailed | ev.RankExited):
            return replace(event, stays=False)
        if isinstance(event, ev.Displayed) and self._fact and event.rank == min(self._fact.ranks):
            return replace(event, rank=0)
        return event

    def _turned(self, event: ev.TurnTaken | ev.TurnPlaced | ev.TurnEnded, *, new: bool) -> Iterator[ev.Event]:
        if self._fact is None or (new and not self._started):
            yield from self._look()
        fact = self._fact
        if fact is None:
            # Nodes report independently: a node's end of the turn may arrive before the lead's fact.
            if isinstance(event, ev.TurnEnded):
                self._early.append(event)
            return
        early, self._early = self._early, []
        for turn in early:
            yield from self._facts(turn, self.lab)
        if isinstance(event, ev.TurnTaken) or event.round != fact.round:
            return
        new_end = isinstance(event, ev.TurnEnded) and event.node not in self._through
        if isinstance(event, ev.TurnEnded) and new_end and event.node in fact.nodes:
            self._through[event.node] = event
            code = exits.USER_ERROR if event.failed else exits.OK
            if event.node in self._started or self.first:
                yield ev.NodeExited(event.time, event.node, code, pod=self._pod(event.node, fact))
        if self._through.keys() >= {*_nodes(self.lab, fact)}:
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
        """Find the turn once it is known to be taken, and yield what it waits for."""
        if self._round is not None and not self.first:
            fact = next((fact for fact in reversed(self.lab.turns) if fact.round == self._round), None)
        else:
            turn = find(self.lab, self._key)
            fact = turn.fact if turn is not None else None
        if fact is None:
            return
        self._fact, self._round = fact, fact.round
        before = ahead(self.lab, fact.round)
        text = ""
        if before:
            more = len(before) - _NAMED
            named = [turn.full_name for turn in before[:_NAMED]] + ([f"{more} more"] if more > 0 else [])
            text, needs = f"waits behind {', '.join(named)}", _needs(self.lab.info, fact)
            if any(turn.nodes for turn in before) or (self.lab.info.is_pool and needs < len(fact.nodes)):
                text = f"{text}; it needs {needs} of {words.count(len(fact.nodes), 'node')}"
            group, at_once = _limit(fact)
            if 0 < at_once <= sum(turn.group == group for turn in before):
                text = f"{text}; --at-once allows {words.count(at_once, 'run')} of its sweep at a time"
        if text not in ("", self._wait_text):
            self._wait_text = text
            yield ev.Waiting(max([fact.time, *(turn.since for turn in before)]), text)

    def _workers(self, event: ev.WorkersStarted) -> Iterator[ev.Event]:
        fact, node = self._fact, self._node(event.node)
        if self.first and self.lab.tries == 1:
            if self.lab.base(event.round) == event.round:  # it runs in each round until it ends once
                yield event
        elif fact is None:
            self._early.append(event)
        elif event.round == fact.round:
            # A new life: what the node did before doesn't concern the turn.
            pod = self._pod(event.node, fact)
            yield ev.NodeStarted(event.time, event.node, node.host, node.pid, pod)
            self._started.add(event.node)
            yield replace(event, pod=pod)
        elif self.lab.base(event.round) == event.round > fact.base:
            self._elsewhere.add(event.node)
            self._end_if_lost()

    def _pod(self, index: int, fact: ev.TurnTaken) -> str:
        """Return the pod that ran the turn on a node, which may have had other pods since."""
        node = self._node(index)
        pods = (worker.pod for worker in node.workers if worker.round == fact.base)
        return next(pods, "") or node.life.pod

    def _node(self, index: int) -> Node:
        return self.lab.nodes.get(index, Node(index))

    def _end_if_lost(self) -> None:
        """End the turn if one of its nodes can no longer reach its end."""
        fact = self._fact
        if fact is None:
            return
        for index in set(_nodes(self.lab, fact)) - self._through.keys():
            node = self._node(index)
            if index in self._elsewhere or node.life.over or node.round > fact.base:
                # The turn's beginning may have been missed; a turn that had no room hasn't begun.
                back = _placed(self.lab, fact.round)
                sure = not self._unseen or (back is not None and not back.nodes)
                waited = sure and not self._started and _waits(self.lab, fact.round)
                pool_text = POOL_GONE_BEFORE if waited else POOL_GONE
                text = pool_text if self.lab.info.is_pool else GONE
                lab = self.lab
                began = [w.time for node in lab.nodes.values() for w in node.workers if w.round == lab.round]
                lives = [node.life.end for node in lab.nodes.values() if node.life.over]
                when = max([*began, *lives, lab.operator_verdict.time if lab.operator_verdict else 0.0])
                self._end(when, well=False, reason=ANEW, text=text)
                return

    def _end(self, time: float, *, well: bool, reason: str = "", text: str = "") -> None:
        self.over = True
        notices = (ev.Notice(time, text),) if reason else ()
        self.last = (*notices, ev.Verdict(time, well, reason, text), ev.Closed(time))
