"""A job of a pool is sent again, by whoever follows it in the process that sent it.

What its nodes had of it may be gone with them, so it needs its payload, which is kept here until it ends.

    how an attempt ended                            what follows
    ----------------------------------------------  -----------------------------------------------------
    badly, and a budget pays for another one        that attempt, after its pause, once the pool has ranks
    the pool lost its ranks before the job began    the same attempt, as soon as the pool has ranks
    with the pool                                   nothing

Each time it goes by another id (``turns.again``). A lead takes each id once, and all who follow the job here
share one sending, so no attempt runs twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.state import JobInfo, JobState, apply, turns
from nbtorchjob.state.events import (
    ArtifactsReady,
    AttemptBegan,
    CancelRequested,
    Closed,
    Event,
    NodeStarted,
    Notice,
    Verdict,
)
from nbtorchjob.state.turns import View

if TYPE_CHECKING:
    from nbtorchjob.backends.turns import Since

_LOOK_S = 0.1


class Taken(NamedTuple):
    """A turn as it was taken: what was known of its lab before, its round, and a moment before that."""

    lab: JobState
    round: int
    since: Since


class Plan(NamedTuple):
    """The attempt that follows, and when."""

    attempt: int
    at: float


class Sent:
    """A turn that was sent from here, as it was ``taken`` last.

    ``again`` sends a job of a pool once more: for that time, and as that attempt. ``past`` are the facts of
    attempts before.
    """

    def __init__(self, info: JobInfo, taken: Taken, again: Callable[[int, int], Taken] | None) -> None:
        self.info = info
        self.taken = taken
        self.attempt = 1
        self.past: tuple[Event, ...] = ()
        self.cancelled = False
        self._again = again
        self._times = 1
        self._problem = ""
        self._end: tuple[Event, ...] = ()
        self._sending: asyncio.Future[None] | None = None

    @property
    def may_go_on(self) -> bool:
        """Whether another attempt may follow."""
        return self._again is not None

    def view(self, key: str) -> View:
        """Return the view of its newest attempt, which goes by that key."""
        return View(self.taken.lab, key, self.taken.round, self.taken.since.mark)

    def plan(self, facts: Sequence[Event]) -> Plan | None:
        """Return what follows an attempt of which these are the facts; None where nothing does."""
        return self._planned(facts) if not self.cancelled else None

    def given_up(self, facts: Sequence[Event]) -> bool:
        """Whether another attempt would have followed, had the job not been cancelled."""
        return self.cancelled and self._planned(facts) is not None

    def _planned(self, facts: Sequence[Event]) -> Plan | None:
        verdicts = {fact.reason: fact for fact in facts if isinstance(fact, Verdict)}
        if self._again is None or self._problem or not verdicts or turns.UNREAD in verdicts:
            return None
        if turns.ANEW in verdicts and verdicts[turns.ANEW].text == turns.POOL_GONE_BEFORE:
            return Plan(self.attempt, verdicts[turns.ANEW].time)
        state = reduce(apply, unclosed([*self.past, *facts]), JobState(self.info))
        return Plan(state.next.number, state.next.at) if state.next is not None else None

    async def go_on(
        self, lost: Taken, plan: Plan, facts: Sequence[Event], lab: Callable[[], JobState]
    ) -> bool:
        """Have the attempt that follows ``lost`` sent; return whether it was.

        ``facts`` are those of the lost one, and ``lab`` returns what is known of the pool, for which it may
        have to wait.
        """
        if self.taken is lost and not self._problem:
            if self._sending is None:
                self._sending = asyncio.ensure_future(self._send(plan, facts, lab))
            await asyncio.shield(self._sending)
        return self.taken is not lost

    async def _send(self, plan: Plan, facts: Sequence[Event], lab: Callable[[], JobState]) -> None:
        try:
            while time.time() < plan.at or not _takes(await asyncio.to_thread(lab)):
                if self.cancelled:
                    return
                await asyncio.sleep(_LOOK_S)
            if self._again is None or self.cancelled:  # or somebody else heard that it is over
                return
            taken = await asyncio.to_thread(self._again, self._times + 1, plan.attempt)
            self._times += 1
            began = [AttemptBegan(time.time(), plan.attempt)] if plan.attempt > self.attempt else []
            # Of one that never began there is nothing to be told.
            self.past = (*self.past, *unclosed(facts), *began) if began else self.past
            self.attempt, self.taken, self._end = plan.attempt, taken, ()
        except NBTorchJobError as exc:
            self._problem = str(exc)
        finally:
            self._sending = None

    def over(self) -> None:
        """Keep its payload no longer."""
        self._again = None

    def end(self, now: float) -> tuple[Event, ...]:
        """Return what is told of a job that was to be sent again, and wasn't: to all the same."""
        if not self._end:
            why = f"it can't be sent to its pool again: {self._problem}"
            self._end = (CancelRequested(now) if self.cancelled else Notice(now, why), Closed(now))
        return self._end

    def told(self, facts: Sequence[Event]) -> list[Event]:
        """Return the facts of its newest attempt with the end that the job came to."""
        return [*unclosed(facts), *self._end] if self._end else [*facts]


def _takes(lab: JobState) -> bool:
    """Whether it is worth asking a pool now: it has ranks, or never will again."""
    return turns.lead(lab) is not None or lab.phase.terminal


def unclosed(facts: Sequence[Event]) -> list[Event]:
    """Return the facts of an attempt that another one follows."""
    return [fact for fact in facts if not isinstance(fact, Closed)]


def numbered(event: Event, attempt: int) -> Event:
    """Return a fact of a turn as one of that attempt, for which a node and its pod have another life."""
    if attempt == 1:
        return event
    if isinstance(event, NodeStarted | Verdict | ArtifactsReady):
        event = replace(event, attempt=attempt)
    pod: str = getattr(event, "pod", "")
    if pod:
        of_attempt: Any = {"pod": f"{pod}.{attempt}"}
        event = replace(event, **of_attempt)
    return event
