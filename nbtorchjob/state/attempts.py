"""A job's attempts: when each began and ended, why, and which budget its end draws on.

Theory of operation
===================

An attempt ends with a failure or a loss after which nodes are started again. How attempts are told apart
(``parts``) depends on the retry owner:

- *nbtorchjob* (``JobInfo.retry_owner`` is US) starts every node anew, and each fact has the attempt's number.
  A queue (Kueue's) that takes such an attempt's nodes away starts it again later under the same number.
- *An operator* replaces pod by pod, and numbers nothing: attempts are inferred from what it replaced. One end
  is one loss, and begins an attempt if a later run of the same node follows (``_replaced``).

The unit is a run: one life of a container, in one pod of a node. A run belongs to the newest round that it
took part in. What counts as a loss:

    what is seen                            is                       recorded in
    --------------------------------------  -----------------------  ----------------------------------------
    a pod taken away, another in its place  a loss                   job-evict-exit143, ptj-nodegone-exitcode
    a node that fails again and again       a loss each time         ptj-exitcode-exit143-backoff1
    several nodes' ends in one round        one loss                 job-elastic-both-lost-at-once
    one failed, another ended over it       one loss                 job-retries-201-then-200
    a node's second end in one round        another loss, unless     job-restart-while-old-peer-ends
                                            a peer had still to end
    an end that no run follows              no new attempt: an       job-elastic-lost-index-scaled-down
                                            elastic job goes on      ptj-elastic-staggered
    ranks started again in their node       none (``max_restarts``)  (no torch is in the recordings)
    pods that a suspension took             none, on any kind        vcjob-abort-resume
                                                                     ptj-suspend-resume-clean
    pods that a queue took, and gave back   a loss, unless a person  kueue-preempted, kueue-drained
                                            deactivated the job      kueue-deactivated
    pods made after the job was stopped     none                     ptj-elastic-exitcode-suspended-by-client

In the last recording the operator made a fourth pod 90 ms after nbtorchjob suspended the job.

Two things blur this. Times are whole seconds, so in the second of a stop or of a suspension the exit code
decides: a run that failed by itself is a loss, one that ended when told to is not
(``tj-container-restarted-in-place-sigkill``). And a log may be gone before it is read, which leaves a run's
rounds unknown: then its rounds are those of the runs that were started with it, where pods record how often
nodes were started before, else the newest round at its birth.

The cause of an end decides which budget it draws on (``budget``): INFRA draws on the preemptions, an end that
another try may avoid on the failures, anything else on nothing.

What follows an attempt that ended badly (``following``) depends on the facts alone: a supervisor on this
machine, a follower of a cluster's job and a card that is only drawn all get the same answer, so a retry goes
on wherever it was left.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from itertools import accumulate, pairwise
from typing import NamedTuple

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts import exits
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state.blame import STOPPED, Failure, culprit
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause, Reason
from nbtorchjob.state.info import US
from nbtorchjob.state.jobfacts import Facts
from nbtorchjob.state.nodes import ON_DEMAND, Life, Node

_LINES = 5  # the last lines kept from the log of the rank that ended an attempt
_MOST = 1000  # attempts considered, the newest ones
_UNSEEN = Reason(Cause.UNKNOWN, "ended, and the reason is unknown")
_CAUSES = {"failures": Cause.UNKNOWN, "preemptions": Cause.INFRA}  # a cause that draws on each budget


class Budget(Enum):
    """What pays for the attempt after this one."""

    FAILURES = "failures"
    PREEMPTIONS = "preemptions"


class Attempt(FrozenDataclass):
    """One try of the job, from 1. Times are seconds since the epoch; ``end`` is None while it goes on.

    There is none for an attempt without any facts.
    ``failure`` is None unless it ended badly, ``budget`` where no attempt may follow its failure.
    ``left`` is how its ranks saved and left as a node was about to end; None where they didn't.
    """

    number: int
    start: float
    end: float | None = None
    failure: Failure | None = None
    budget: Budget | None = None
    hosts: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # the last ones in the log of the rank to blame
    left: ev.RankLeft | None = None


def budget(failure: Failure) -> Budget | None:
    """Return the budget that another attempt after ``failure`` draws on; None where none may follow.

    A lost node, or one that was taken away, isn't the code's fault. Only exceptions that were declared
    recoverable count. After a crash or an unexplained end, another try may succeed.
    """
    cause = failure.reason.cause
    if cause is Cause.INFRA:
        return Budget.PREEMPTIONS
    recoverable = failure.error is not None and failure.error.recoverable
    again = recoverable or cause is Cause.UNKNOWN or (cause is Cause.USER and failure.reason.crash)
    return Budget.FAILURES if again else None


class _Unit(NamedTuple):
    """One run of one pod of a node, the rounds it took part in, and whether the node had a later run.

    Runs that the operator starts after nbtorchjob has stopped the job don't count as later: see ``_stopped``.
    """

    node: Node
    life: Life
    rounds: tuple[int, ...]
    followed: bool


class _Loss:
    """Ends in one round that count as one loss."""

    def __init__(self) -> None:
        self.units: list[_Unit] = []
        self.nodes: set[int] = set()
        self.end = 0.0

    def add(self, unit: _Unit) -> None:
        self.units.append(unit)
        self.nodes.add(unit.node.index)
        self.end = max(self.end, unit.life.end)


class Part:
    """The runs and rounds of one attempt."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.units: list[_Unit] = []
        self.rounds: set[int] = set()


def parts(facts: Facts) -> list[Part]:
    """Return the runs and rounds of each of the newest attempts, the newest last; a part may be empty."""
    # The runs of all nodes, each node's in order
    units: list[_Unit] = []
    stopped = _stopped(facts)
    for node in sorted(facts.nodes.values(), key=lambda n: n.index):
        runs = [run for life in node.aged for run in life.runs()]
        # A run that began and failed by itself in the second of the stop is why the job was stopped.
        before = [run for run in runs if run.since < stopped or ((e := run.failure) and e.time < stopped + 1)]
        rounds: dict[int, list[int]] = {}
        for worker in node.workers:
            candidates = [at for at, run in enumerate(runs) if worker.pod in ("", run.pod)]
            born = [at for at in candidates if runs[at].since <= worker.time] or candidates[:1]
            rounds.setdefault(max(born, default=0), []).append(worker.round)
        for at, run in enumerate(runs):
            units.append(_Unit(node, run, tuple(rounds.get(at, ())), at + 1 < len(before)))
    return (_numbered(facts, units) if facts.info.retry_owner == US else _replaced(facts, units))[-_MOST:]


def newest(facts: Facts) -> Facts:
    """Return the facts of the newest attempt only."""
    return view(facts, parts(facts)[-1], newest=True)


def losses(facts: Facts) -> list[Life]:
    """Return the lives of the newest attempt that ended badly, but weren't taken by a pause or a queue."""
    ended = [unit for unit in parts(facts)[-1].units if unit.life.ended_badly]
    return [
        u.life
        for u in ended
        if not (
            (facts.evicted(u.life) is not None and not _by_itself(facts, u.life))
            or _taken_by_us(facts, u.node, u.life)
        )
    ]


def attempts(facts: Facts, failure: Failure | None) -> tuple[Attempt, ...]:
    """Return the job's attempts; ``failure`` is how the newest ended, None where it goes on or ended well."""
    built: list[Attempt] = []
    in_order = parts(facts)
    for part, follower in pairwise(in_order):
        end = max((unit.life.end for unit in part.units), default=0.0)
        part_failure = culprit(view(facts, part)) or Failure(_UNSEEN, end)
        # What was recorded when the next attempt was paid for wins over what can still be seen of this one.
        # What a queue took, and gave back under the same number, wasn't recorded.
        payment = next((paid for paid in facts.paid if paid.attempt == part.number), None)
        if (
            payment is None
            or follower.number == part.number
            or payment.budget not in _CAUSES
            or facts.info.retry_owner != US
            or (part_failure.reason is not _UNSEEN and budget(part_failure) is Budget(payment.budget))
        ):
            as_paid = part_failure
        else:
            as_paid = Failure(Reason(_CAUSES[payment.budget], payment.text or _UNSEEN.line), payment.time)
        built.append(_attempt(facts, part, built, as_paid))
    return (*built, _attempt(facts, in_order[-1], built, failure))


def _attempt(facts: Facts, part: Part, before: list[Attempt], failure: Failure | None) -> Attempt:
    born = min((unit.life.since for unit in part.units), default=facts.info.created)
    start = max(born, before[-1].end or born) if before else born
    lives = [unit.life for unit in part.units]
    for node in facts.nodes.values():
        lives += [node.life_of(worker) for worker in node.workers if worker.round in part.rounds]
    hosts = tuple(sorted({life.start.host for life in lives if life.start and life.start.host}))
    left = next((fact for fact in reversed(facts.left) if fact.round in part.rounds), None)
    if failure is None:
        return Attempt(part.number, start, facts.ended, hosts=hosts, left=left)
    ends = [unit.life.end for unit in part.units if unit.life.exit is not None]
    tail = facts.logs.get(failure.rank or 0)
    lines = tail.last_lines(part.rounds, _LINES) if tail else ()
    end = max([*ends, failure.time, start])
    if part.number == facts.tries or facts.info.retry_owner != US:
        # A pod may outlive the job's deadline or its operator's verdict.
        end = max(start, min(end, facts.ended or end))
    return Attempt(part.number, start, end, failure, budget(failure), hosts, lines, left)


def _numbered(facts: Facts, units: list[_Unit]) -> list[Part]:
    """Return the attempts of each number: one for each time that its queue admitted it and it had nodes."""
    by_number: dict[int, list[_Unit]] = {number: [] for number in sorted(facts.numbers)}
    for unit in units:
        by_number[unit.life.attempt].append(unit)
    in_order: list[Part] = []
    for number, own_units in by_number.items():
        by_end: dict[ev.Evicted | None, Part] = {}
        for unit in own_units:
            end = facts.evicted(unit.life)
            took = end if end is not None and end.reason != ev.DEACTIVATED and unit.followed else None
            part = by_end.setdefault(took, Part(number))
            part.units.append(unit)
            part.rounds |= set(unit.rounds)
        last = by_end.pop(None, None)
        in_order += (by_end[end] for end in sorted(filter(None, by_end), key=lambda end: end.time))
        if last is not None or not by_end:
            in_order.append(last or Part(number))
    return in_order


def _replaced(facts: Facts, units: list[_Unit]) -> list[Part]:
    """Return the attempts of a job whose operator replaces lost pods.

    A pod's end belongs to the newest round that the pod took part in; if it never took part in any, to the
    newest round at its birth. Ends in one round are one loss; a node that ended twice in it was lost twice,
    unless peers lost with its first run had still to end when its second began.
    """
    ended_badly = [
        unit for unit in units if unit.life.ended_badly and not _taken_by_us(facts, unit.node, unit.life)
    ]
    in_order = [Part()]
    rounds = sorted({r for unit in units for r in unit.rounds})
    if not ended_badly:  # true of most jobs
        in_order[0].units, in_order[0].rounds = units, {*rounds}
        return in_order
    offset = 0  # how many of the rounds belong to an attempt so far; losses are in the order of rounds
    first: dict[int, float] = {}  # when each round began
    for worker in (worker for node in facts.nodes.values() for worker in node.workers):
        first[worker.round] = min(worker.time, first.get(worker.round, worker.time))
    # The losses of each round, in the order of rounds
    began = sorted((time, round_number) for round_number, time in first.items())
    starts = [time for time, _ in began]
    newest = [*accumulate((round_number for _, round_number in began), max)]
    rounds_of_restarts: dict[int | None, set[int]] = {}
    for unit in units:
        if unit.life.restarts is not None:
            rounds_of_restarts.setdefault(unit.life.restarts, set()).update(unit.rounds)
    by_round: dict[int, list[_Loss]] = {}
    # Of two pods born in the same second, the first to end came first.
    for unit in sorted(ended_badly, key=lambda unit: (unit.life.since, unit.life.end)):
        before = bisect_right(starts, unit.life.since)
        rounds_taken = rounds_of_restarts.get(unit.life.restarts, set())
        round_number = max(unit.rounds or rounds_taken or newest[max(0, before - 1) : before], default=-1)
        losses = by_round.setdefault(round_number, [_Loss()])
        if unit.node.index in losses[-1].nodes and losses[-1].end <= unit.life.since:
            losses.append(_Loss())
        losses[-1].add(unit)
    lost_by_round = [
        (round_number, loss.units) for round_number, losses in sorted(by_round.items()) for loss in losses
    ]
    for round_, lost in lost_by_round:
        in_order[-1].units += lost
        end = max(offset, bisect_right(rounds, round_))
        in_order[-1].rounds |= {*rounds[offset:end]}
        offset = end
        if any(unit.followed for unit in lost):
            in_order.append(Part(len(in_order) + 1))
    seen = {id(unit) for part in in_order for unit in part.units}
    in_order[-1].units += [unit for unit in units if id(unit) not in seen]
    in_order[-1].rounds |= {*rounds[offset:]}
    return in_order


def _stopped(facts: Facts) -> float:
    """When nbtorchjob stopped a job that its operator would go on with; infinite where it didn't.

    From that second on (times are whole seconds), what begins is no attempt, and what ends is no loss.
    """
    verdict = facts.operator_verdict
    return int(verdict.time) if verdict is not None and verdict.reason == STOPPED else math.inf


def _taken_by_us(facts: Facts, node: Node, life: Life) -> bool:
    """Whether a pod went because the job was suspended, or ended for good."""
    took = life.taken_at
    if took is None or _by_itself(facts, life):
        return False
    evicted = facts.evicted(life)
    if evicted is not None:  # the job is suspended for that
        return evicted.reason == ev.DEACTIVATED
    if took >= _stopped(facts):
        return life.exit is None or life.ended_on_demand(life.exit)
    # Times are whole seconds.
    last = max((p.time for p in facts.pauses if p.suspended and p.time <= took + 1.0), default=None)
    if last is not None:
        resumed = [p.time for p in facts.pauses if not p.suspended and p.time >= last]
        if took <= min(resumed, default=math.inf) + 1.0:
            return True
    # A condition shows only its newest change, here the end of a suspension. No pod outlives a suspension:
    # it took the pods that are older than its end and had ended by then.
    if any(
        life.since < p.time <= took + 1.0 and life.end <= p.time + 1.0
        for p in facts.pauses
        if not p.suspended
    ):
        return True
    after = next((pause for pause in facts.pauses if pause.time > took + 1.0), None)
    if after is None or not after.suspended:
        return after is not None
    # The operator writes the condition once all pods are deleted, and again a second or more later if that
    # write conflicted with another. Until the condition shows, it makes no pod.
    return not any(took <= other.since < after.time for other in node.lives.values())


def _by_itself(facts: Facts, life: Life) -> bool:
    """Whether a pod failed before it was deleted; losing a peer doesn't count: the deletion may cause that.

    A deletion that was noticed late may seem to come after the end that it caused.
    """
    exit_ = life.exit
    if exit_ is None or exit_.code in (0, None, exits.INFRASTRUCTURE_ERROR):
        return False
    turns = [(pause.time, pause.suspended) for pause in facts.pauses if pause.time <= exit_.time]
    turns += [(eviction.time, True) for eviction in facts.evictions if eviction.time <= exit_.time]
    suspended = max(turns, key=lambda turn: (turn[0], not turn[1]), default=(0.0, False))[1]
    return not (life.ended_on_demand(exit_) or (suspended and exit_.code in ON_DEMAND))


def view(facts: Facts, part: Part, *, newest: bool = False) -> Facts:
    """Return the facts of one attempt only; those without a number or round go to the newest."""
    numbered = facts.info.retry_owner == US
    nodes: dict[int, Node] = {}
    for unit in part.units:
        at = unit.node.index
        if at in nodes and not numbered:
            continue  # it came too late: the first unit says how the attempt ended
        workers = tuple(worker for worker in unit.node.workers if worker.round in part.rounds)
        node = nodes.get(at, Node(at, {}, workers))
        nodes[at] = replace(node, lives={**node.lives, f"{unit.life.pod}/{len(node.lives)}": unit.life})
    pods = {(unit.node.index, unit.life.pod) for unit in part.units}
    events = ((event, facts.nodes.get(event.node)) for event in facts.agents)
    return replace(
        facts,
        nodes=nodes,
        errors=tuple(e for e in facts.errors if facts.base(e.round) in part.rounds),
        exits=tuple(e for e in facts.exits if facts.base(e.round) in part.rounds),
        agents=tuple(e for e, node in events if node is not None and (e.node, node.life_of(e).pod) in pods),
        verdicts=tuple(v for v in facts.verdicts if newest or (numbered and v.attempt == part.number)),
        waits=facts.waits if newest else (),
        lost=facts.lost if newest else None,
    )


class BudgetUse(FrozenDataclass):
    """One budget: how many attempts it has paid for, and how many it can; infinite where unlimited."""

    budget: Budget
    used: int
    limit: float

    @property
    def over(self) -> bool:
        """Whether more was used than the limit, as when an operator that doesn't count went on."""
        return self.used > self.limit


class Next(FrozenDataclass):
    """The attempt that follows: its number, when it starts (seconds since the epoch), and what pays for it.

    With ``on_demand`` it must not be placed where it may be preempted.
    """

    number: int
    at: float
    budget: Budget
    on_demand: bool = False


def spent(retry: Retry, attempts: Sequence[Attempt]) -> tuple[BudgetUse, ...]:
    """Return how many attempts each budget has paid for; a newest end beyond its limit isn't counted."""
    used = [attempt.budget for attempt in attempts]
    last = used[-1] if used else None
    return tuple(
        BudgetUse(budget, used.count(budget) - (last is budget and used.count(budget) > limit), limit)
        for budget, limit in _limits(retry).items()
    )


def _limits(retry: Retry) -> dict[Budget, float]:
    return {Budget.FAILURES: float(retry.retries), Budget.PREEMPTIONS: retry.most_preemptions}


def following(retry: Retry, attempts: Sequence[Attempt], tries: int, ended: float) -> Next | None:
    """Return the attempt that follows the newest of ``attempts``, which ended badly; None where none may.

    ``tries`` is the newest attempt's number, ``ended`` when it ended.
    """
    budget = attempts[-1].budget
    counts = {use.budget: use for use in spent(retry, attempts)}
    if budget is None or sum(attempt.budget is budget for attempt in attempts) > _limits(retry)[budget]:
        return None
    used_up = any(spent.used >= spent.limit for spent in counts.values() if 0 < spent.limit < math.inf)
    last = used_up or counts[Budget.PREEMPTIONS].limit == 0
    return Next(tries + 1, ended + retry.delay(tries), budget, retry.on_demand_last and last)


def first_on_demand(retry: Retry | None) -> bool:
    """Whether even the first attempt is the last, and so must not be preemptible."""
    return retry is not None and retry.on_demand_last and retry.most_preemptions == 0
