"""A backend whose jobs are the turns of labs: a cell can be followed, drawn and asked like any job.

A turn's address is its lab's, followed by ``#`` and the turn's number or id. Following a turn follows its
lab, through a view (``state/turns``), and everything that it left lies with its lab's files. Cancelling a
turn interrupts it, which leaves its ranks as they are.

Following a job on a cluster takes watches, a stream for each pod's log, and all earlier facts. A listener
that joins later is spared that: it begins with the state at that time, and receives what follows.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nbtorchjob.backends.base import Backend, NodeAnswer, Stores, Talks, able
from nbtorchjob.backends.resending import ResendFolder, SendMoment, SentTurn, TakenTurn, numbered, unclosed
from nbtorchjob.errors import AskError, JobEndedError, JobNotFoundError, NBTorchJobError, SpecError
from nbtorchjob.machine import loop
from nbtorchjob.state import JobInfo, JobState, apply, turns
from nbtorchjob.state.facts.events import (
    ArtifactsReady,
    AttemptBegan,
    Closed,
    Event,
    LogChunk,
    ValueReady,
    Verdict,
    Waiting,
)
from nbtorchjob.state.info import MARK
from nbtorchjob.state.text import lifetime
from nbtorchjob.state.turns import Turn, View
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Talk
    from nbtorchjob.capture import Call
    from nbtorchjob.payload.results import FetchedValue
    from nbtorchjob.spec.jobspec import JobSpec

_MOST = 4096  # events that wait for a listener; one without a reader is closed then


class Listener:
    """The events since it was made, for one reader."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._listens = False
        self._let_go = False

    async def put(self, event: Event) -> None:
        """Add an event; wait for room if there is a reader, else close it if it is full."""
        while self._listens and len(self._events) >= _MOST and not self._let_go:
            self._room.clear()
            await self._room.wait()
        if len(self._events) >= _MOST:
            self.close()
        if not self._let_go:
            self._events.append(event)
            self._news.set()

    def wake(self) -> None:
        """Make its reader check whether the feed is over."""
        self._news.set()

    def take(self) -> bool:
        """Become its reader; return False if it has one already, or if events were lost."""
        first, self._listens = not self._listens and not self._let_go, True
        return first

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events until the end of the job; raises what following the job raises."""
        try:
            while True:
                while self._events:
                    yield self._events.popleft()
                    self._room.set()
                if self._feed.over:
                    if self._feed.error is not None:
                        raise self._feed.error
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening."""
        self._let_go = True
        self._events.clear()
        self._room.set()
        self._feed.leave(self)


class Feed:
    """Follows a job to its end, for all listeners."""

    def __init__(self, backend: Backend, info: JobInfo) -> None:
        self.info = info
        self.over = False  # whether nothing more comes
        self.error: Exception | None = None  # that ended it early
        self._backend = backend
        self._listeners: list[Listener] = []
        self._state = JobState(info)
        with suppress(NBTorchJobError):  # following the job leads to the same state, only later
            self._state = backend.snapshot(info.address)
        self._lock = threading.Lock()
        self._process = os.getpid()
        loop.start(self._follow())

    @property
    def state(self) -> JobState:
        """The job's state now."""
        return self._state

    @property
    def follows(self) -> bool:
        """Whether it follows its job, or did so to the end; False in a fork of the process that made it."""
        return self.error is None and self._process == os.getpid()

    def listen(self) -> Listener:
        """Return a listener that receives events from now on."""
        with self._lock:
            listener = Listener(self)
            self._listeners.append(listener)
            return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener."""
        with self._lock, suppress(ValueError):
            self._listeners.remove(listener)

    async def _follow(self) -> None:
        try:
            async for event in self._backend.follow(self.info.address, since={}):
                with self._lock:
                    self._state = apply(self._state, event)
                    listeners = tuple(self._listeners)
                for listener in listeners:
                    await listener.put(event)
        except Exception as exc:  # each listener raises it
            self.error = exc
        finally:
            self.over = True
            for listener in tuple(self._listeners):
                listener.wake()


_MOST_SENT = 64  # turns whose beginning is remembered, beside those that may be sent again
_ASKED_S = 10.0
_WAITS_S = 0.5  # between two checks of why a job can't be sent again yet
_MOST_EARLY = 1000  # characters


class TurnBackend(Backend):
    """The turns of the labs of another backend. See ``backends/base.py`` for what each verb promises."""

    where = "a lab"

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self._sent: dict[str, SentTurn] = {}
        self._feeds: dict[str, Feed] = {}  # of labs on clusters

    def lab(self, info: JobInfo) -> JobState:
        """Return a lab's state now; the first call for a lab on a cluster begins to follow it."""
        return self._feed(info).state if info.cluster else self.inner.brief_state(info.address)

    def _feed(self, info: JobInfo) -> Feed:
        feed = self._feeds.get(info.id)
        if feed is None or not feed.follows or feed.info.run != info.run:
            feed = self._feeds[info.id] = Feed(self.inner, info)
        return feed

    def now(self, info: JobInfo) -> SendMoment:
        """Return this moment of a lab, which the caller passes to :meth:`sent` or forgets."""
        if info.cluster:
            return SendMoment(None, self._feed(info).listen())
        return SendMoment(self.inner.mark(info.address), None)

    def sent(
        self,
        info: JobInfo,
        acceptance: TakenTurn,
        again: Callable[[int, Mapping[str, Any]], TakenTurn] | None = None,
        kept: ResendFolder | None = None,
    ) -> None:
        """Remember a turn that was sent from here, so that its followers needn't read any earlier facts.

        ``again`` sends a job of a pool once more (``resending.Sent``); ``kept`` has everything for that.
        """
        self._sent[info.address] = SentTurn(info, acceptance, again, kept)
        through = [name for name, sent in self._sent.items() if not sent.may_go_on]
        for name in through[:-_MOST_SENT]:
            self._sent.pop(name).acceptance.since.forget()

    def _whole(self, name: str) -> list[Event]:
        """Return all facts of a turn on a cluster once it is over, and none before.

        A follower of its lab may receive the turn's end before its nodes' logs.
        """
        lab, key = parsed(name)
        state = self.inner.brief_state(lab)
        turn = turns.find(state, key) if state.info.cluster else None
        if turn is None or not turn.over:
            return []
        chunks = [chunk for rank_chunks in self.chunks(name, turn.fact.ranks) for chunk in rank_chunks]
        return [*chunks, *(fact for fact in self.facts(name) if not isinstance(fact, LogChunk))]

    def sent_by_user(self, name: str) -> SentTurn | None:
        """Return how a turn was sent: a lab's only if this process sent it, a pool's always."""
        sent, (lab, key) = self._sent.get(name), parsed(name)
        if sent is None and (info := self.inner.info(lab)).is_pool:
            state = self.inner.brief_state(lab)
            turn = turns.find(state, key)
            if turn is None:
                return None
            kept = ResendFolder.of(state.info.run, turn.key, name)
            if kept is None:
                sent_turn = TakenTurn.elsewhere(state, turn.fact.round)
                return SentTurn(turns.info(info, turn), sent_turn, elsewhere=turn.fact)
            if kept[1].address not in self._sent:
                self.sent(kept[1], TakenTurn.elsewhere(state, turn.fact.round), kept=kept[0])
            sent = self._sent[kept[1].address]
        if sent is not None:
            sent.renew(partial(self.inner.brief_state, lab))
        return sent

    def _view(self, name: str, sent: SentTurn | None) -> View:
        lab, key = parsed(name)
        if sent is not None:
            return sent.view(key)
        state = self.inner.brief_state(lab)
        if turns.is_first(state.info, key):
            return View(JobState(state.info), key)
        turn = turns.find(state, key)
        return View(state, key, turn.fact.round if turn is not None else None)

    def turn(self, name: str) -> Turn:
        """Return the turn as it is now; raises ``JobNotFoundError``."""
        lab, key = parsed(name)
        state = self.inner.brief_state(lab)
        if state.info.lab is None:
            raise JobNotFoundError(f"{lab} is neither a lab nor a pool, so it has no {MARK}{key}")
        turn = turns.find(state, key)
        if turn is None:
            # Jobs of a pool that no fact mentions any more are missing.
            numbers, word = [turn.number for turn in turns.turns(state)], turns.what_of(state.info)
            text = f"{word}{'s' * (len(numbers) > 1)} {words.spell(numbers)}" if numbers else f"no {word} yet"
            raise JobNotFoundError(f"{lab} has no {word} {key}: it has {text}")
        return turn

    def info(self, name: str) -> JobInfo:
        """Return the turn's record, made from its lab's."""
        sent, (lab, key) = self.sent_by_user(name), parsed(name)
        info = self.inner.info(lab)
        if sent is not None and sent.acceptance.lab.info.run != info.run:  # of an earlier lab with that name
            self._sent.pop(name).acceptance.since.forget()
            sent = self.sent_by_user(name)
        if sent is not None:
            return sent.info
        if turns.is_first(info, key):
            return turns.first(info)
        return turns.info(info, self.turn(name))

    async def follow(
        self,
        name: str,
        *,
        since: Mapping[tuple[int, int], int] | None = None,
        turn: View | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Follow the lab until the turn is over; a job of a pool is sent again if it is to run again."""
        sent = await asyncio.to_thread(self.sent_by_user, name)
        if sent is None or sent.elsewhere or (sent.info.in_pool and not sent.may_go_on):
            facts = await asyncio.to_thread(self._whole, name) if not since else []
            if any(isinstance(fact, Closed) for fact in facts):
                for fact in facts:
                    yield fact
                return
        if sent is None or not sent.may_go_on:
            view = await asyncio.to_thread(self._view, name, sent)
            past, attempt = (sent.past, sent.attempt) if sent is not None else ((), 1)
            for event in past:
                yield event
            async for event in self._of_view(name, view, since, sent):
                yield numbered(event, attempt)
            last = [numbered(event, attempt) for event in view.last]
            for event in last if sent is None else sent.with_end(last):
                yield event
            return
        with sent.followed():
            async with aclosing(self._attempts(name, sent, since)) as events:
                async for event in events:
                    yield event

    async def _attempts(
        self, name: str, sent: SentTurn, since: Mapping[tuple[int, int], int] | None
    ) -> AsyncGenerator[Event, None]:
        """Yield the facts of a turn that may be sent again, one attempt after the other."""
        for event in sent.past:
            yield event
        while True:
            sent_turn, attempt, view = sent.acceptance, sent.attempt, sent.view(parsed(name)[1])
            facts: list[Event] = []
            last: list[Event] = []
            async with aclosing(self._of_view(name, view, since, sent)) as events:
                async for event in events:
                    fact = numbered(event, attempt)
                    if isinstance(fact, Verdict):  # on this attempt, which may not be the last
                        last.append(fact)
                        continue
                    if not isinstance(fact, turns.TEXT):
                        facts.append(fact)
                    yield fact
            last += [numbered(event, attempt) for event in view.last]
            async with aclosing(self._sent_again(sent, sent_turn, attempt, facts, last)) as events:
                async for event in events:
                    yield event
            if sent.acceptance is sent_turn:  # it wasn't sent again
                return
            if sent.cancelled:
                await asyncio.to_thread(self.cancel, name)
            if sent.attempt > attempt:
                yield AttemptBegan(time.time(), sent.attempt)
            since = None

    async def _sent_again(
        self,
        sent: SentTurn,
        acceptance: TakenTurn,
        attempt: int,
        facts: Sequence[Event],
        last: Sequence[Event],
    ) -> AsyncGenerator[Event, None]:
        """Have a turn sent again if the facts of its attempt call for it; yield the facts that follow."""
        lab = partial(self.lab, acceptance.lab.info)
        while (plan := sent.plan([*facts, *last])) is not None:
            if plan.attempt > attempt:
                for event in unclosed(last):
                    yield event
            going = asyncio.ensure_future(sent.go_on(acceptance, plan, [*facts, *last], lab))
            previous = ""
            while not (await asyncio.wait({going}, timeout=_WAITS_S))[0]:
                why = _why(await asyncio.to_thread(lab))
                if sent.elsewhere or plan.others_decide:
                    why = why or sent.others
                if why not in ("", previous):
                    previous = why
                    yield Waiting(time.time(), why, attempt=attempt)
            if going.result():
                if plan.attempt == attempt < sent.attempt:  # as other processes decided
                    for event in unclosed(last):
                        yield event
                return
            if not (plan.others_decide and sent.may_go_on):
                end = [*(unclosed(last) if plan.attempt == attempt else ()), *sent.end(time.time())]
                sent.over()
                for event in end:
                    yield event
                return
        if sent.given_up([*facts, *last]):
            sent.end(time.time())
        for event in sent.with_end(last):
            yield event
        sent.over()

    async def _of_view(
        self, name: str, view: View, since: Mapping[tuple[int, int], int] | None, sent: SentTurn | None
    ) -> AsyncGenerator[Event, None]:
        """Yield what a view makes of its lab's facts, except the turn's end."""
        for event in view.begin():
            yield event
        async with aclosing(self._events(name, view, since, sent)) as events:
            async for event in events:
                for fact in view.take(event):
                    yield fact

    def _events(
        self, name: str, view: View, since: Mapping[tuple[int, int], int] | None, sent: SentTurn | None
    ) -> AsyncGenerator[Event, None]:
        listener = sent.acceptance.since.listener if sent is not None else None
        if listener is None or since or not listener.take():
            return self.inner.follow(parsed(name)[0], since=since, turn=view)

        async def until_over() -> AsyncGenerator[Event, None]:
            async with aclosing(listener.events()) as events:
                async for event in events:
                    yield event
                    if view.over:  # the caller has passed the event to the view by now
                        return

        return until_over()

    def facts(self, name: str, turn: View | None = None) -> Iterator[Event]:
        """Yield the turn's part of its lab's facts."""
        sent, (lab, _) = self.sent_by_user(name), parsed(name)
        view = self._view(name, sent)
        past, attempt = (sent.past, sent.attempt) if sent is not None else ((), 1)
        facts = view.begin()
        for event in able(self.inner, Stores, "facts", lab).facts(lab, view):
            facts += view.take(event)
        begun, facts = len(facts), [numbered(event, attempt) for event in (*facts, *view.last)]
        plan = sent.plan(facts) if sent is not None else None
        if (
            plan is not None
            and sent is not None
            and sent.elsewhere
            and self.inner.brief_state(lab).phase.terminal
        ):
            plan = None
        if plan is not None and plan.attempt == attempt:  # it hadn't begun, and is to be sent once more
            why = _why(self.inner.brief_state(lab)) or (sent.others if sent is not None else "")
            facts = [fact for fact in facts[:begun] if not isinstance(fact, Waiting)]
            facts.append(Waiting(plan.at, why, attempt=attempt))
        if sent is not None and plan is None:
            if sent.given_up(facts):
                sent.end(time.time())
            facts = sent.with_end(facts)
            if any(isinstance(fact, Closed) for fact in facts):
                sent.over()  # also if no process follows it
        yield from past
        yield from facts if plan is None else unclosed(facts)

    def snapshot(self, name: str) -> JobState:
        """Return the turn's state now."""
        return reduce(apply, self.facts(name), JobState(self.info(name)))

    def jobs(self, *, everyone: bool = False, scope: str | None = None) -> list[JobState]:
        """Return none: labs are listed, not their turns."""
        return []

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Refuse: turns are sent to their lab (``labs.Lab.send``)."""
        self._of_a_lab("submit", info.name)

    def cancel(self, name: str, *, gently: bool = False, early: str = "") -> None:
        """Interrupt the turn, or take it out of the line if it waits; its lab stays as it is."""
        lab, _ = parsed(name)
        sent = self.sent_by_user(name)
        if sent is not None:
            sent.cancel()
        state, turn = self.inner.brief_state(lab), self.turn(name)
        round_ = max(turn.fact.round, sent.acceptance.round if sent is not None else 0)
        node = turns.lead(state)
        if (turn.over and turn.fact.round == round_) or node is None:
            if sent is not None and sent.elsewhere and not self.snapshot(name).phase.terminal:
                where = "cancel it where it was sent, or once it runs again"
                raise SpecError(
                    "cancel", name, f"a running or waiting job; the pool has lost this one: {where}"
                )
            return
        try:
            with able(self.inner, Talks, "cancel", lab).talk(
                lab, node, {"question": "interrupt", "round": round_, "early": early[:_MOST_EARLY]}, _ASKED_S
            ) as talk:
                talk.hear(_ASKED_S)
        except (JobEndedError, TimeoutError):
            return
        except AskError:
            if not self.turn(name).over:
                raise

    def delete(self, name: str) -> None:
        """Refuse: a turn is a part of its lab."""
        self._of_a_lab("delete", name)

    @property
    def login(self) -> str:
        """The inner backend's login."""
        return self.inner.login

    def ours(self, name: str) -> bool:
        """Whether its lab was submitted from here."""
        return self.inner.ours(parsed(name)[0])

    def fetch(self, name: str, value: ValueReady) -> FetchedValue:
        """Fetch a value that the lab's ranks left in the turn."""
        return self.inner.fetch(parsed(name)[0], value)

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Return what a rank wrote in the turn, from byte ``offset`` on."""
        for chunk in self.chunks(name, [rank])[0]:
            data = chunk.data[max(0, offset - chunk.offset) :]
            if data:
                yield data

    def chunks(self, name: str, ranks: Sequence[int]) -> list[Iterator[LogChunk]]:
        """Return what these ranks wrote in the turn."""
        lab, _ = parsed(name)
        round_ = self.turn(name).fact.round
        return [
            (chunk for chunk in rank_chunks if chunk.round == round_)
            for rank_chunks in able(self.inner, Stores, "logs", lab).chunks(lab, ranks)
        ]

    def artifacts(self, name: str, sent: ArtifactsReady) -> Path:
        """Return the artifacts that a node of the lab left; in a pool, those of this turn's attempt."""
        lab, _ = parsed(name)
        if self.inner.info(lab).is_pool:
            from nbtorchjob.runtime.api.artifacts import of_round  # late: lists don't need it

            round_ = turns.round_of(self.inner.brief_state(lab), self.turn(name), sent.attempt)
            sent = replace(sent, attempt=of_round(round_))
        return able(self.inner, Stores, "artifacts", lab).artifacts(lab, sent)

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[NodeAnswer]:
        """Ask the lab's nodes."""
        lab, _ = parsed(name)
        return able(self.inner, Talks, "ask", lab).ask(lab, question, nodes, timeout)

    def talk(self, name: str, node: int, question: Mapping[str, Any], timeout: float = 10.0) -> Talk:
        """Talk with one of the lab's nodes."""
        lab, _ = parsed(name)
        return able(self.inner, Talks, "talk", lab).talk(lab, node, question, timeout)

    def refuse(self, verb: str, name: str) -> NoReturn:
        """Refuse what only a whole job can do."""
        self._of_a_lab(verb, name)

    def _of_a_lab(self, verb: str, name: str) -> NoReturn:
        lab, key = parsed(name)
        if self.inner.info(lab).is_pool:
            raise SpecError(
                verb, name, f"a job with pods of its own; this one is job {key} of the pool {lab}"
            )
        raise SpecError(verb, name, f"the lab {lab}; this is its cell {key}: see {hint('promote', lab)}")


def _why(lab: JobState) -> str:
    """Return why a pool has no ranks; "" if it has some."""
    if turns.lead(lab) is not None:
        return ""
    queued = lifetime.waits(lab)
    status = queued[0].partition(": ")[2] if queued else "getting its pods"
    return f"its pool {lab.info.name} is {status}"


def parsed(address: str) -> tuple[str, str]:
    """Split a turn's address into its lab's address and its key."""
    lab, _, key = address.rpartition(MARK)
    return lab, key
