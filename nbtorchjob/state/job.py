"""The conclusions from the facts: the phase, the failure, whether more can come."""

from __future__ import annotations

from enum import Enum

from nbtorchjob.frozen import cached_property
from nbtorchjob.state import attempts as trying
from nbtorchjob.state.attempts import Attempt, BudgetUse, Next
from nbtorchjob.state.blame import ABANDONED, Failure, first_failure, own_failure
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import GIVEN_UP, NodeLeaves, RankStops
from nbtorchjob.state.failure import DEADLINE_EXCEEDED, NEVER_STARTED, Cause, Reason
from nbtorchjob.state.info import US
from nbtorchjob.state.jobfacts import Facts

_LEFT = "No attempt can follow: run it again; what checkpoint_dir() holds is still there."


class Phase(Enum):
    """Where a job stands, in TorchX's words."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def word(self) -> str:
        """The phase as shown to people: ``succeeded``."""
        return self.value.lower()

    @property
    def terminal(self) -> bool:
        """Whether no other phase can follow."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


class JobState(Facts):
    """All facts of a job, and the conclusions from them."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.info.name

    def __repr__(self) -> str:
        return f"<JobState {self.name} {self.phase.word} on {self.info.backend}>"

    @cached_property
    def phase(self) -> Phase:
        """Where the job stands."""
        if self.ended is None:
            if self.next is None and self.working:
                return Phase.RUNNING
            return Phase.PENDING if self.nodes or self.waits or self.pause or self.queue else Phase.SUBMITTED
        if self._succeeded:
            return Phase.SUCCEEDED
        wished = self.cancelled is not None or (self.removed is not None and self.verdict is None)
        return Phase.CANCELLED if wished and self.deadline is None else Phase.FAILED

    @property
    def stopped_early(self) -> bool:
        """Whether it is a run that was ended because of what it reported (``early`` says why)."""
        return self.phase is Phase.CANCELLED and bool(self.early)

    @property
    def deleted(self) -> bool:
        """Whether it ended by being deleted; False if it was cancelled before."""
        if self.phase is not Phase.CANCELLED or self.removed is None:
            return False
        return self.cancelled is None or self.removed <= self.cancelled

    @property
    def reforming(self) -> bool:
        """Whether the newest round lost a node while other nodes of it still live."""
        lost_nodes = [n for n in self.members if n.left]
        return bool(lost_nodes) and len(lost_nodes) < len(self.members) and self.phase is Phase.RUNNING

    @property
    def leaving(self) -> NodeLeaves | None:
        """The request to the ranks of the newest round to save and leave, while they do so; else None."""
        newest = self.leaves[-1] if self.leaves else None
        if newest is None or newest.round != self.round or self.reforming or self.phase is not Phase.RUNNING:
            return None
        return newest

    @property
    def stopped(self) -> tuple[RankStops, ...]:
        """The ranks of the newest round that are stopped in the debugger, in order."""
        if self.phase is not Phase.RUNNING or self.reforming:
            return ()
        exited_ranks = {fact.rank for fact in self.exits if fact.round == self.round}
        over = {(turn.round, turn.node) for turn in self.turns_over}
        stopped = []
        for rank, stop in sorted(self.stops.items()):
            after = self.goes_on.get(rank)
            gone_on = after is not None and (after.round, after.time) >= (stop.round, stop.time)
            # An interrupt ends a lab's turn even if its ranks are stopped.
            ended = rank in exited_ranks or (stop.round, stop.node) in over
            if stop.round == self.last_round and not gone_on and not ended:
                stopped.append(stop)
        return tuple(stopped)

    @cached_property
    def counted_from_zero(self) -> frozenset[str]:
        """The units that its ranks count from 0: a rank that has reported step 0 has done one step."""
        return frozenset[str]().union(*(series.from_zero for series in self.series.values()))

    def elapsed(self, now: float) -> float:
        """Seconds from submission to the end, or to ``now`` while it lives."""
        return max(0.0, (self.ended if self.ended is not None else now) - self.info.created)

    def waited(self, now: float) -> float:
        """Seconds that it waited before its first node started, as for its turn or a place."""
        times = (self.first_start, self.ended, now)
        return max(0.0, next(time for time in times if time is not None) - self.info.created)

    @cached_property
    def first_start(self) -> float | None:
        """When the first of its nodes started, in its first attempt; None before that."""
        lives = (life for node in self.nodes.values() for life in node.lives.values())
        return min((start.time for life in lives for start in life.starts), default=None)

    @property
    def resumable(self) -> bool | None:
        """Whether it has ended with a checkpoint to resume from; None where that is unknown."""
        if not self.phase.terminal or self.info.of_lab:
            return False
        return self._has_seen(ev.CHECKPOINT)

    @property
    def shows_curves(self) -> bool | None:
        """Whether its ranks have written event files for TensorBoard; None where that is unknown."""
        return self._has_seen(ev.CURVES)

    def _has_seen(self, file_kind: str) -> bool | None:
        if any(kind == file_kind for kind, _ in self.files_seen):
            return True
        # A list of a cluster's jobs reads no logs.
        return None if self.info.cluster else False

    @property
    def blocked(self) -> ev.Waiting | None:
        """Its wait for a job on this machine that hangs or is stopped in the debugger; else None."""
        return next((wait for wait in self.waiting if wait.stuck), None)

    @property
    def _succeeded(self) -> bool:
        if self.lost is not None:
            return False
        verdict = self.verdict
        if verdict is not None and (verdict.every_node or not verdict.succeeded):
            return verdict.succeeded
        # A node that was lost before the newest round doesn't count: the others went on without it.
        well = [node.ended_well(verdict) for node in self.members]
        if verdict is not None and not well:
            return any(node.ended_well(verdict) for node in self.nodes.values())
        return bool(well) and all(well)

    @cached_property
    def failure(self) -> Failure | None:
        """The first failure by time, with its cause; None unless the job failed or was cancelled."""
        if not self.phase.terminal or self.phase is Phase.SUCCEEDED:
            return None
        if self.lost is not None and self._planned is not None:
            return Failure(Reason(Cause.INFRA, self.lost.reason, _LEFT), self.lost.time)
        return first_failure(self._newest, cancelled=self.phase is Phase.CANCELLED)

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """The job's attempts, the newest last; empty before it has a node."""
        return trying.attempts(self, self._own_end or self.failure) if self._has_attempts else ()

    @property
    def attempt_count(self) -> int:
        """How many attempts there are, which is all that a list shows of them."""
        return len(trying.parts(self)) if self._has_attempts else 0

    @property
    def _has_attempts(self) -> bool:
        return bool(self.nodes or self.paid or self._own_end or self.failure)

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        """What the budgets have paid for; empty where the spec has none."""
        retry = self.info.retry
        return () if retry is None else trying.spent(retry, self.attempts)

    @cached_property
    def next(self) -> Next | None:
        """The attempt that follows the newest, which ended badly; None where none follows.

        Set only where nbtorchjob numbers the attempts (``JobInfo.retry_owner``): operators decide themselves.
        """
        wished = any(wish is not None for wish in (self.cancelled, self.removed, self.deadline))
        over = wished or self.ended is not None or self.missed is not None
        return None if over else self._planned

    @property
    def missed(self) -> Next | None:
        """The attempt that would have followed if it didn't start after the deadline; else None."""
        planned, end = self._planned, self.deadline_at
        return planned if planned is not None and end is not None and planned.at >= end else None

    @cached_property
    def _planned(self) -> Next | None:
        """The attempt that the budgets allow after one that failed, whatever users have requested since."""
        retry, verdict = self.info.retry, self.verdict
        if retry is None or verdict is None or self._own_end is None:
            return None
        if verdict.reason == ABANDONED or (self.pause is not None and self.pause.suspended):
            return None
        return trying.following(retry, trying.attempts(self, self._own_end), verdict.attempt, verdict.time)

    @cached_property
    def _own_end(self) -> Failure | None:
        """Why the newest attempt failed by itself; None if it didn't, or the job was ended before."""
        verdict = self.verdict
        if verdict is None or verdict.succeeded or self.info.retry_owner != US:
            return None
        if verdict.reason in (DEADLINE_EXCEEDED, NEVER_STARTED) or verdict.reason.startswith(GIVEN_UP):
            return None
        late = self.deadline.time if self.deadline is not None else None
        wishes = (self.cancelled, self.removed, late)
        return None if any(w is not None and w < verdict.time for w in wishes) else own_failure(self._newest)

    @property
    def deadline_at(self) -> float | None:
        """When the job has run too long: counted from its creation, or from when it was last resumed.

        None where it has no deadline, is suspended (the semantics are those of Trainer's KEP-2899), or still
        waits for its turn on this machine: the time only starts then. Also None for a job in a pool, where
        each attempt has the whole time, counted from its beginning.
        """
        awaits_turn = self.waiting and not (self.nodes or self.pause or self.verdict or self.info.cluster)
        if self.info.deadline_s is None or self.suspended or self.info.in_pool or awaits_turn:
            return None
        created = self.info.cluster_created or self.info.created
        return (self.pause.time if self.pause else created) + self.info.deadline_s

    @cached_property
    def _newest(self) -> Facts:
        """The facts of the newest attempt; all facts where no budgets tell attempts apart."""
        if not self.info.retry_owner:
            return self
        return trying.newest(self)


def conclusive(state: JobState) -> bool:
    """Whether no further fact is expected to change how the job ended.

    Call it only once every resource has been listed: before that the job seems to have no nodes. What the
    nodes wrote has to be read separately. A node may outlive a verdict indefinitely
    (``cleanPodPolicy: None``), so wait for this only with a time limit.
    """
    verdict = state.verdict
    if state.next is not None:
        return False
    if (
        verdict is not None
        and not verdict.succeeded
        and (first_failure(state._newest, cancelled=False).reason.cause is not Cause.UNKNOWN)
    ):
        return True
    done = verdict is not None or state.removed is not None or state.cancelled is not None
    return done and state.all_over
