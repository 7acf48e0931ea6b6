"""What whoever follows a job does in its operator's place: the next attempt, an end that is due.

Any number may follow a job, and each may be killed at any moment: what to do is concluded anew from the
job's state (``JobState.next``), and doing it twice changes nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress

from nbtorchjob import events as ev
from nbtorchjob import failure
from nbtorchjob.backends.kubernetes import attempts, halting, objects
from nbtorchjob.backends.kubernetes.kinds import enforcement
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import PODS, Target
from nbtorchjob.backends.kubernetes.places import Place
from nbtorchjob.backends.kubernetes.refusals import Refusal
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.failure import Cause
from nbtorchjob.runtime import exits
from nbtorchjob.state import OPERATOR, US, JobInfo, JobState, Next
from nbtorchjob.state.attempts import losses, newest
from nbtorchjob.state.blame import STOPPED, culprit

_TOLD_WITHIN_S = 5.0  # a log, which says whose fault an end was, may come after the pod's status
_ENDED_WITHIN_S = 30.0  # the other nodes of an attempt that failed
_LOOK_S = 0.2  # between two looks at what is due, but can't be done yet
_AGAIN_S = 10.0  # between two tries to start an attempt that the cluster refuses
_DEADLINE = "active_deadline_seconds"
_FINAL = (exits.USER_ERROR, exits.CONFIG_ERROR)  # another try would end the same way


class Tender:
    """Looks after one job. ``tend`` is to be called whenever something has changed, or ``wake`` has come."""

    def __init__(self, session: Session, place: Place, kind: Kind, info: JobInfo) -> None:
        self._session = session
        self._place = place
        self._kind = kind
        self._info = info
        self._ours = enforcement.ours(kind, info.asked, info.keeper)
        self._stopped: set[int] = set()  # attempts
        self._seen: dict[tuple[str, int], float] = {}  # when, by our own clock, something was first seen
        self._not_before = 0.0

    def wake(self, state: JobState) -> float | None:
        """Give the seconds until there may be something to do though nothing changes; None for never."""
        due = [state.deadline_at] if _DEADLINE in self._ours else []
        if state.next is not None:
            due.append(max(state.next.at, self._not_before))
        soon = [_LOOK_S] if any(number == state.tries for _, number in self._seen) else []
        return min([*soon, *(max(_LOOK_S, at - time.time()) for at in due if at is not None)], default=None)

    async def tend(self, state: JobState, *, reading: bool) -> list[ev.Event]:
        """Do what is due; give what became of it. ``reading``: logs of the job may still tell more."""
        if state.cancelled is not None:
            await self._cancel_newest(state)
        elif state.verdict is None and state.removed is None:
            reason = self._to_stop(state)
            if reason and state.tries not in self._stopped:
                await self._stop(state, reason)
        elif state.next is not None and self._ready(state, reading=reading):
            return await self._begin(state, state.next)
        return []

    async def clean(self) -> None:
        """Delete the job's pods, where that is asked for and no operator does it. What is refused stays."""
        if "clean_pod_policy" not in self._ours:
            return
        client, namespace = self._session.client, self._place.namespace
        with suppress(Refusal):
            listing = await client.list(PODS, namespace, labels=objects.of(self._info.name))
            for pod in listing.items:
                if objects.belongs(pod, self._info):
                    await client.delete(
                        Target(PODS, namespace, pod["metadata"]["name"]), uid=pod["metadata"]["uid"]
                    )

    def _to_stop(self, state: JobState) -> str:
        """Give why the newest attempt must end though its operator goes on; "" where it needn't."""
        late = state.deadline_at is not None and time.time() >= state.deadline_at
        if _DEADLINE in self._ours and late:
            return failure.DEADLINE_EXCEEDED
        if self._info.keeper == OPERATOR and any(spent.over for spent in state.budgets):
            return STOPPED
        return STOPPED if self._kind.stubborn and self._lost(state) else ""

    def _lost(self, state: JobState) -> bool:
        """Whether an attempt has failed that its operator would go on with."""
        ends = [run.time for life in losses(state) for run in life.exits if run.code in _FINAL]
        if not (losses(state) if self._info.keeper == US else ends):
            return False
        view = newest(state)
        told = view.errors or view.exits or view.agents
        waited = self._waited("loss", state.tries) > _TOLD_WITHIN_S
        return bool(told or waited) and (self._info.keeper == US or _own_fault(state))

    def _ready(self, state: JobState, *, reading: bool) -> bool:
        # What failed first may be known only when all nodes have ended and their logs are read.
        waited = self._waited("end", state.tries)
        quiet = (state.all_over and not reading) or waited > _ENDED_WITHIN_S
        return quiet and state.next is not None and time.time() >= max(state.next.at, self._not_before)

    def _waited(self, what: str, attempt: int) -> float:
        now = time.monotonic()
        return now - self._seen.setdefault((what, attempt), now)

    async def _stop(self, state: JobState, reason: str) -> None:
        self._stopped.add(state.tries)
        target = attempts.target(self._kind, self._place, self._info, state.tries)
        with suppress(Refusal):  # who may only look sees it end as its operator has it
            client, mark = self._session.client, objects.mark(_when(state), reason)
            await halting.halt(client, self._kind, target, objects.STOPPED, mark)

    async def _cancel_newest(self, state: JobState) -> None:
        """End an attempt that was started while somebody asked for the job's end."""
        if state.tries == 1 or state.tries in self._stopped or state.verdict is not None:
            return
        self._stopped.add(state.tries)
        target = attempts.target(self._kind, self._place, self._info, state.tries)
        with suppress(Refusal):
            client = self._session.client
            if not objects.cancelled(await client.get(target)):
                mark = objects.mark(state.cancelled or time.time())
                await halting.halt(client, self._kind, target, objects.CANCELLED, mark)

    async def _begin(self, state: JobState, following: Next) -> list[ev.Event]:
        try:
            begun = await attempts.begin(
                self._session, self._place, self._kind, self._info, following, state.deadline_at
            )
        except Refusal as exc:
            self._not_before = time.time() + _AGAIN_S
            text = f"attempt {following.number} can't be started: {exc}"
            return [ev.Waiting(time.time(), text, reason="Refused")]
        return [ev.AttemptBegan(time.time(), following.number)] if begun else []


def _when(state: JobState) -> float:
    """When the newest attempt failed; now, where nothing has."""
    first = culprit(newest(state))
    return first.time if first is not None else time.time()


def _own_fault(state: JobState) -> bool:
    """Whether the job's own code failed first: a rank whose peer was lost fails with the same exit code."""
    first = culprit(state)
    if first is None or (first.error is not None and first.error.lost_peer):
        return False
    return first.reason.cause in (Cause.USER, Cause.CONFIG)
