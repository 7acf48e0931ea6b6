"""What followers of a job do in place of its operator: start the next attempt, enforce an end that is due.

Any number of processes may follow a job, and each may be killed at any moment: what to do is always derived
from the job's state (``JobState.next``), and doing it twice changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import reduce

from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.control import actions, holding
from nbtorchjob.backends.kubernetes.jobs import abandoned, of_object
from nbtorchjob.backends.kubernetes.kinds import Kind, fit
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.errors import ClusterError, ForbiddenError, NotFoundError, PayloadGoneError
from nbtorchjob.runtime.facts import exits
from nbtorchjob.state import OPERATOR, US, JobInfo, JobState, Life, Next, apply, failure, progress
from nbtorchjob.state.attempts import budget, losses, newest
from nbtorchjob.state.blame import ABANDONED, STOPPED, Failure, culprit
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause

TOLD_WITHIN_S = 5.0  # a log, which says what is to blame for an end, may come after the pod's status
_ENDED_WITHIN_S = 30.0  # for the other nodes of a failed attempt to end
_LOOK_S = 0.2  # between two checks of something that is due, but can't be done yet
AGAIN_S = 10.0  # between two tries of what the cluster refuses or ignores
_HEEDED_WITHIN_S = 12.0  # for the operator to react; the job's events wait meanwhile
_DEADLINE = "active_deadline_seconds"
_OURS = (STOPPED, failure.DEADLINE_EXCEEDED, failure.NEVER_STARTED)  # reasons of verdicts
# Exit codes of an agent that has logged why it ended.
_TELLING = (*exits.FINAL, *exits.AGAIN, exits.CANCELLED, exits.LEFT)


class JobController:
    """Looks after one job. Call ``tend`` whenever something has changed, or the time of ``wake`` has come.

    ``first`` is the object of the first attempt. ``removes`` allows removing a cancelled job if nothing else
    ends it; it requires that all of the job is kept here.
    """

    def __init__(
        self,
        session: Session,
        scope: Scope,
        kind: Kind,
        info: JobInfo,
        first: Object,
        *,
        removes: bool = False,
    ) -> None:
        self._removes = removes
        self._first = first
        self._session = session
        self._scope = scope
        self._kind = kind
        self._info = info
        self._own_policies = fit.own_policies(kind, info.jobspec, info.retry_owner)
        self._stopped: set[int] = set()  # attempts
        self._seen: dict[tuple[str, int], float] = {}  # when, by our own clock, something was first seen
        self._not_before = 0.0
        self._wait_start: float | None = None  # since when something holds the attempt back

    def wake(self, state: JobState) -> float | None:
        """Return the seconds until there may be something to do though nothing changed; None for never."""
        due = [self._start_by(state), *([state.deadline_at] if _DEADLINE in self._own_policies else [])]
        if state.next is not None:
            due.append(max(state.next.at, self._not_before))
        if self._not_before > self._now():
            due.append(self._not_before)
        now = time.monotonic()
        waits = any(now - moment < _ENDED_WITHIN_S + _LOOK_S for moment in self._seen.values())
        soon = [_LOOK_S] if waits or self.owes(state) else []
        return min([*soon, *(max(_LOOK_S, at - self._now()) for at in due if at is not None)], default=None)

    async def tend(self, state: JobState, *, reading: bool) -> list[ev.Event]:
        """Do what is due; return the resulting events. ``reading``: logs of the job are still being read."""
        if self._now() < self._not_before:
            return []
        if state.cancelled is not None:
            if self.owes(state):
                await self._halt(state, labelling.CANCELLED, labelling.wish(state.cancelled, state.early))
        elif state.next is not None:
            if self._late(state):
                # The deadline comes before the next attempt.
                due = state.deadline_at or self._now()
                await self._halt(state, labelling.STOPPED, labelling.mark(due, failure.DEADLINE_EXCEEDED))
                return [ev.Verdict(due, False, failure.DEADLINE_EXCEEDED, attempt=state.tries)]
            # What failed first may be known only when all nodes have ended and their logs are read.
            waited = self._waited("end", state.tries)
            quiet = (state.all_over and not reading) or waited > _ENDED_WITHIN_S
            if quiet and self._now() >= state.next.at:
                return await self._begin(state, state.next)
        elif state.removed is None:
            reason = self._to_stop(state)
            if state.tries in self._stopped:
                return []
            if reason == STOPPED and state.verdict is None:
                try:
                    meanwhile = await self._said_meanwhile(state.tries)
                except ClusterError:
                    self._not_before = self._now() + AGAIN_S
                    return []
                if not self._to_stop(reduce(apply, meanwhile, state)):
                    return meanwhile
            if reason:
                when = _reason_since(state, reason) or self._now()
                await self._halt(state, labelling.STOPPED, labelling.mark(when, reason))
            else:
                # End an attempt that was held back for too long
                latest, wait = self._start_by(state), progress.held_back(state)
                if wait is not None and latest is not None and latest <= self._now():
                    text = f"{wait.reason} {' '.join(wait.text.split())}"
                    why = labelling.mark(latest, failure.NEVER_STARTED, text)
                    await self._halt(state, labelling.STOPPED, why)
        return []

    def owes(self, state: JobState) -> bool:
        """Whether the newest attempt may go on although it was ended.

        Either it was being started when the job was cancelled; or its kind needs a Command besides the mark,
        and the process that wrote the mark never got to send one.
        """
        if state.tries in self._stopped or state.removed is not None:
            return False
        if state.verdict is None and state.cancelled is None:
            return False
        if state.queue is not None and halted(state):
            # Its queue starts a job as soon as there is quota, whatever its annotations say.
            return not state.queue.held and not (state.queue.admitted and state.all_over)
        if state.verdict is not None:
            return marked_only(self._kind, state)
        return state.tries > 1 or not (self._kind.suspend or state.suspended)

    async def clean(self, owned: Callable[[Object], bool]) -> None:
        """Delete the job's pods if its spec requests that and no operator does it; ignore refusals."""
        if "clean_pod_policy" not in self._own_policies:
            return
        client, namespace = self._session.client, self._scope.namespace
        with suppress(ClusterError):
            listing = await client.list(PODS, namespace, labels=labelling.of(self._info.name))
            pods = [pod["metadata"] for pod in listing.items if owned(pod)]
            for pod in pods:
                await client.delete(Target(PODS, namespace, pod["name"]), uid=pod["uid"])
            if pods:
                actions.log_deed(self._info, "deleted pods", "clean_pod_policy is All, and the job has ended")

    def _late(self, state: JobState) -> bool:
        due = state.deadline_at if _DEADLINE in self._own_policies else None
        return due is not None and self._now() >= due

    def _start_by(self, state: JobState) -> float | None:
        """When to end the newest attempt because something holds it back; None while nothing does."""
        wait = progress.held_back(state)
        if wait is None or self._info.start_within_s is None:
            self._wait_start = None
            return None
        self._wait_start = self._wait_start or self._now()
        return (progress.held_since(state, wait) or self._wait_start) + self._info.start_within_s

    def _to_stop(self, state: JobState) -> str:
        """Return why the newest attempt must end though its operator goes on; "" where it needn't."""
        if state.verdict is not None:
            return state.verdict.reason if self.owes(state) else ""
        if self._late(state):
            return failure.DEADLINE_EXCEEDED
        if self._info.retry_owner == OPERATOR and any(spent.over for spent in state.budgets):
            return STOPPED
        if self._info.retry_owner == US:
            # Lives that the newest attempt lost and its operator replaced, ignoring our budgets
            lost = losses(state)
            nodes = newest(state).nodes.values()
            replaced = [
                life
                for node in nodes
                for life in node.lives.values()
                if life in lost and life is not node.life
            ]
            if self._tells(replaced, state.tries):
                return STOPPED
        return STOPPED if self._kind.stubborn and self._lost(state) else ""

    async def _said_meanwhile(self, number: int) -> list[ev.Event]:
        """Return what an attempt's object says by now: suspensions and queues take pods away, too.

        The watch of the objects may lag behind that of the pods.
        """
        try:
            obj = await self._session.client.get(attempts.target(self._kind, self._scope, self._info, number))
        except (ForbiddenError, NotFoundError):  # the watch will report an object that is gone
            return []
        return of_object(self._kind, obj) if labelling.belongs(obj, self._info) else []

    def _lost(self, state: JobState) -> bool:
        """Whether the newest attempt has failed, but its operator would go on with it."""
        lost, numbered = losses(state), self._info.retry_owner == US
        # What ended by itself, in a way that another try would repeat
        final = [
            run
            for run in lost
            if numbered or ((e := run.failure) and not budget(Failure(failure.of_end(e), e.time)))
        ]
        if not final:
            return False
        view = newest(state)
        explained = bool(view.errors or view.exits or view.agents) or self._tells(final, state.tries)
        if not explained or numbered:
            return explained
        # Only failures of the job's own code: a rank that lost its peer fails with the same exit code.
        first = culprit(state)
        if first is None or (first.error is not None and first.error.lost_peer):
            return False
        return first.reason.cause in (Cause.USER, Cause.CONFIG, Cause.UNKNOWN)

    def _tells(self, lost: list[Life], attempt: int) -> bool:
        """Whether it is known why nodes were lost, or their logs have had the time to say so."""
        if not lost:
            return False
        waited = self._waited(f"loss of {','.join(sorted(run.pod for run in lost))}", attempt)
        return any(_says_why(run) for run in lost) or waited > TOLD_WITHIN_S

    def _now(self) -> float:
        return self._session.client.now()

    def _waited(self, key: str, attempt: int) -> float:
        now = time.monotonic()
        return now - self._seen.setdefault((key, attempt), now)

    async def _halt(self, state: JobState, mark: str, text: str) -> None:
        """End the newest attempt for good."""
        target = attempts.target(self._kind, self._scope, self._info, state.tries)
        try:
            last = self._remove if self._removes and mark == labelling.CANCELLED else None
            await holding.halt(
                self._session, self._kind, target, mark, text, within=_HEEDED_WITHIN_S, last=last
            )
        except (ForbiddenError, NotFoundError):
            pass  # a user who may only read leaves the end to the operator; what is gone has ended
        except ClusterError:
            self._not_before = self._now() + AGAIN_S
            return
        else:
            # Derive from the mark why the attempt is ended
            if mark == labelling.CANCELLED:
                why = "as the job was cancelled"
            else:
                reason = text.partition(" ")[2] or STOPPED
                first = culprit(newest(state)) if reason == STOPPED else None
                why = f"{reason}: {first.reason.line}" if first is not None else reason
            actions.log_deed(self._info, "ended an attempt", f"number {state.tries}, {why}")
        self._stopped.add(state.tries)

    async def _remove(self) -> None:
        """Delete the first attempt's object, to which the others belong."""
        target = attempts.target(self._kind, self._scope, self._info, 1)
        await self._session.client.delete(target, uid=self._first["metadata"]["uid"])

    async def _begin(self, state: JobState, following: Next) -> list[ev.Event]:
        try:
            # Write down which budget the newest attempt drew on: its pods, which show it, may be deleted
            ended = state.attempts[-1]
            why = ended.failure.reason.line if ended.failure is not None else ""
            paid = labelling.mark(ended.end or ended.start, following.budget.value, " ".join(why.split()))
            is_new = await attempts.begin(
                self._session,
                self._scope,
                self._kind,
                self._info,
                following,
                state.deadline_at,
                paid,
            )
        except PayloadGoneError:
            now = round(self._now(), 3)
            await self._halt(state, labelling.STOPPED, labelling.mark(now, ABANDONED))
            return abandoned(now, state.tries)
        except ClusterError as exc:
            self._not_before = self._now() + AGAIN_S
            text = f"attempt {following.number} can't be started: {exc}"
            return [ev.Waiting(self._now(), text, reason="Refused", stage=ev.Stage.PLACING)]
        if is_new is None:
            return []
        if is_new:
            # What ended the newest attempt, and which budget that draws on
            used = next(use for use in state.budgets if use.budget is following.budget)
            charged = f"{why or 'the reason is unknown'} ({used.budget.value}: {used.used} of {used.limit:g})"
            deed = f"number {following.number}; number {state.tries} ended: {charged}"
            actions.log_deed(self._info, "began an attempt", deed)
        return [ev.AttemptBegan(self._now(), following.number)]


def marked_only(kind: Kind, state: JobState) -> bool:
    """Whether an attempt may only carry the mark of an end, without its Command having been sent."""
    return _stopped(state) and not kind.suspend and not state.all_over


def halted(state: JobState) -> bool:
    """Whether the job was cancelled, or ended by nbtorchjob for a reason of its own."""
    return state.cancelled is not None or _stopped(state)


def _stopped(state: JobState) -> bool:
    return state.verdict is not None and state.verdict.reason in _OURS


def _says_why(run: Life) -> bool:
    """Whether it is known how a node's life ended even without its log."""
    if run.disruption is not None:
        # A suspension deletes pods, too, and may be reported later than their deletion.
        return run.disruption.reason != ev.DELETED
    if run.exit is None:
        return True
    return run.exit.code not in _TELLING or failure.tells(run.exit)


def _reason_since(state: JobState, reason: str) -> float | None:
    """Return since when there has been a reason to end the newest attempt."""
    if state.verdict is not None:
        return state.verdict.time
    if reason == failure.DEADLINE_EXCEEDED and state.deadline_at is not None:
        return state.deadline_at
    if (first := culprit(newest(state))) is not None:
        return first.time
    # If a budget is used up, the reason is the end of the attempt before.
    return max(
        (attempt.failure.time for attempt in state.attempts[:-1] if attempt.failure is not None), default=None
    )
