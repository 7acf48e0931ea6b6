"""The first failure: one culprit out of all the failures that a failing job shows.

Theory of operation
===================

A job that fails shows many failures: that of the rank or node that failed first, those of its peers, which
fail in the collective or are told to end, and what the operator does to the remaining pods. Only the first is
useful. Clocks alone don't settle which it is: the API's times are whole seconds, a rank that only noticed may
be the first to report, and an operator deletes pods milliseconds after it failed the job.

A deadline, and then a user's request to end the job, come before any failure (``first_failure``). A pod that
ends while the job is taken down says nothing about the job: ``ptj-activedeadline-quiet``,
``trainjob-activedeadline``, ``ptj-delete-running-foreground``.

Otherwise it is the first available of these, from the most to the least informative (``culprit``):

    source               what                                        recorded in
    -------------------  ------------------------------------------  -------------------------------
    a rank, or its node  an error, a signal, a reason                job-oom, job-evicted-emptydir
    a disruption         the condition; it wins over exit code 0     ptj-evict-elastic-exit0
    a deletion           if nothing failed before it                 ptj-delete-never
    a node's agent       that it couldn't go on                      (no torch is in the recordings)
    the backend          that the job was lost                       (jobs of this machine)
    a bare exit code     a container's; or a pod vanished            vcjob-exit1-no-policy
    an unstarted pod     why the pod waits (``_stuck``)              (jobs that are ended over it)
    the operator         the words of its verdict (``own_failure``)  (nothing else is known)

The first three are equally informative. To choose among several:

1. Only the newest round counts, and a node's newest life: it has overcome what ended an earlier one.
2. But lives after the verdict don't count: operators make pods for a job that they have failed
   (``ptj-exitcode-exit143-backoff0``).
3. A rank or node that lost a peer, or ended because a peer was gone (exit code 201), isn't to blame, even if
   it ended first: ``job-retries-201-then-200`` and ``job-retries-perindex-201-then-200``, where node 1 failed
   with 200.
4. A run that ended because its pod was taken away isn't a failure of its own (``job-evict-exit143``).
5. A deletion in the second of a failure follows from it: ``ptj-cleanpodpolicy-none-backoff``, whose operator
   removes pods as it fails the job. The API's order of writing tells which of two deletions was first.
6. Then the first by time, and of those the lowest rank. An error that allows another try yields to one that
   doesn't: which of the two is reported first is chance, and whether to try again mustn't depend on chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGKILL
from typing import NamedTuple

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import failure
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause, Reason
from nbtorchjob.state.jobfacts import Facts, described
from nbtorchjob.state.nodes import Life, Node

STOPPED = "Stopped"  # reason of nbtorchjob's own verdict where an operator would have gone on
ABANDONED = "Abandoned"  # and where another attempt is due, but can't be started
_TOLD_TO_END = (exits.CANCELLED, exits.LEFT)  # codes of a node that got SIGTERM
_LOG_LINES = 200  # lines at the end of a rank's log that may say why a signal ended it


class Failure(FrozenDataclass):
    """How a job failed: the reason, and which rank or node is to blame, if any."""

    reason: Reason
    time: float
    rank: int | None = None
    node: int | None = None
    error: Error | None = None
    round: int = -1


def first_failure(facts: Facts, *, cancelled: bool) -> Failure:
    """Return what ended the job: its deadline, a user's request, or the first failure by time."""
    end = facts.ended or 0.0
    verdict, late = facts.verdict, None
    if facts.deadline is not None:
        late = Failure(failure.of_deadline(facts.deadline.seconds), facts.deadline.time)
    elif verdict is not None and not verdict.succeeded:
        if verdict.reason.startswith(ev.GIVEN_UP):
            late = Failure(failure.of_queue(verdict.reason, verdict.text), verdict.time)
        elif verdict.reason == failure.NEVER_STARTED:
            word, _, text = verdict.text.partition(" ")
            late = Failure(failure.of_start(word, text, facts.info.start_within_s), verdict.time)
        elif verdict.reason == failure.DEADLINE_EXCEEDED:
            late = Failure(failure.of_deadline(facts.info.deadline_s), verdict.time)
    if late is not None:
        return late
    if cancelled:
        line = "was cancelled" if facts.cancelled is not None else "was deleted"
        line = f"was stopped early: {facts.early}" if facts.early else line
        return Failure(Reason(Cause.CANCELLED, line), facts.cancelled or facts.removed or end)
    return own_failure(facts)


def own_failure(facts: Facts) -> Failure:
    """Return why the job failed, whatever users have requested."""
    end = facts.operator_verdict.time if facts.operator_verdict else facts.ended or 0.0
    why = "ended, and the reason is unknown"
    if facts.verdict is not None:
        why = f"failed: {facts.verdict.text or facts.verdict.reason or 'the reason is unknown'}"
    return culprit(facts) or Failure(Reason(Cause.UNKNOWN, why), end)


def culprit(facts: Facts) -> Failure | None:
    """Return the first failure that a rank, a node or the backend reported; None where none did."""
    ends = [end for node in facts.nodes.values() for end in _bad_ends(node, facts)]
    # The first end without a reason, if any; a deletion after it follows from it
    exits_ = [end for end in ends if end.newest and not end.deleted]
    if not exits_:
        earlier = (end for end in ends if not end.newest and not end.deleted)
        exits_ = sorted(earlier, key=lambda end: end.failure.time)[-1:]
    deleted = [end for end in ends if end.newest and end.deleted]
    # A node that only noticed may be gone before the node that failed (recorded: 201, then 200).
    exits_ = [end for end in exits_ if not end.peers] or exits_
    quiet = min((*exits_, *deleted), key=lambda end: (end.failure.time, end.deleted, end.age), default=None)
    # The ends with a reason, and the deletion of a pod if nothing failed before it
    explained: list[Failure] = []
    for event in facts.errors:
        # What a rank raised after its node was told to end, as a handler of SIGTERM may, follows from that.
        life = facts.nodes.get(event.node, Node(event.node)).life_at(event.time)
        if any(exit_.code in _TOLD_TO_END for exit_ in life.exits):
            continue
        error = facts.variables.get(described(event), event.error)
        reason = failure.of_error(event.error)
        explained.append(Failure(reason, error.time, event.rank, event.node, error, event.round))
    explained.extend(_of_exit(event, facts) for event in facts.exits)
    explained.extend(end.failure for end in ends if end.loud and end.newest)
    if quiet is not None and quiet.deleted:
        explained.append(quiet.failure)
    # The newest round; for a job that nbtorchjob stopped, the newest at that time
    verdict = facts.verdict
    if verdict is None or verdict.reason != STOPPED:
        round_ = facts.round
    else:
        rounds = (w.round for node in facts.nodes.values() for w in node.workers if w.time <= verdict.time)
        round_ = max(rounds, default=facts.round)
    newest = [candidate for candidate in explained if facts.base(candidate.round) == round_] or explained
    # A rank whose peer died fails as well, in the collective, and may well be the first to report.
    causes = [f for f in newest if f.error is None or not f.error.lost_peer] or newest
    first = min(causes, key=_when, default=None)
    if first is not None and first.error is not None and first.error.again:
        # Which of two ranks that fail at once reports first is chance; whether to try again mustn't be.
        first = min((f for f in causes if f.error and not f.error.again), key=_when, default=first)
    if first is None and facts.agents:
        agent = facts.agents[0]
        reason = failure.of_agent_error(agent.code, agent.error)
        first = Failure(reason, agent.time, node=agent.node, error=agent.error)
    return (
        first
        or (None if facts.lost is None else Failure(Reason(Cause.INFRA, facts.lost.reason), facts.lost.time))
        or (quiet and quiet.failure)
        or _stuck(facts)
    )


def _when(failure: Failure) -> tuple[float, int]:
    return failure.time, failure.rank or 0


class _End(NamedTuple):
    """How a run of a node ended badly, or how its pod was taken away."""

    failure: Failure
    newest: bool  # in its node's newest life; the node has overcome what ended an earlier one
    loud: bool  # it says why; a bare exit code only says that something was wrong
    deleted: bool = False  # its pod was simply deleted, maybe by an operator that cleans up
    age: tuple[float, int, str] = (0.0, 0, "")  # of the deletion
    peers: bool = False  # its agent only noticed that another node is gone


def _bad_ends(node: Node, facts: Facts) -> Iterator[_End]:
    verdict = facts.verdict
    # Operators may still create pods for a job that has failed (PyTorchJob 1.9, trainer 2.3).
    end = verdict.time if verdict is not None and not verdict.succeeded else float("inf")
    last = next((life for life in reversed(node.aged) if life.since < end), node.life)
    for life in node.lives.values():
        newest, evicted = life is last, facts.evicted(life)
        for exit_ in life.exits:
            if exit_.code != 0 and not life.ended_on_demand(exit_):
                loud = exit_.signal is not None or failure.tells(exit_) or exit_.code in _TOLD_TO_END
                peers = not loud and exit_.code == exits.INFRASTRUCTURE_ERROR
                ended = _at(node, life, exit_.time, failure.of_end(exit_))
                yield _End(ended, newest=newest, loud=loud, peers=peers)
        if life.disruption is not None:
            deleted = life.disruption.reason == ev.DELETED and evicted is None
            if evicted is not None:
                loss = _at(node, life, life.disruption.time, failure.of_queue(evicted.reason, evicted.text))
            else:
                # The kubelet says what ran short in the pod's own reason, but not in the condition.
                explained = life.exit is not None and failure.explains(life.exit)
                loss_reason = (
                    failure.of_end(life.exit)
                    if explained and life.exit
                    else failure.of_disruption(life.disruption)
                )
                loss = _at(node, life, life.disruption.time, loss_reason)
            ended, age = loss, life.disruption.age
            yield _End(ended, newest=newest, loud=not deleted, deleted=deleted, age=age)
        elif life.vanished:
            reason = failure.of_gone() if evicted is None else failure.of_queue(evicted.reason, evicted.text)
            yield _End(_at(node, life, life.end, reason), newest=newest, loud=evicted is not None)


def _at(node: Node, life: Life, time: float, reason: Reason) -> Failure:
    return Failure(reason, time, node=node.index, round=node.round_at(time, life.pod))


def _stuck(facts: Facts) -> Failure | None:
    """Blame a pod that never ran for a job that ended over it."""
    waits = [*facts.waits, *(n.life.waiting for n in facts.nodes.values() if n.life.waiting)]
    for wait in waits:
        reason = failure.of_waiting(wait)
        if reason.cause is not Cause.WAIT:
            return Failure(reason, wait.time, node=wait.node)
    return None


def _of_exit(event: ev.RankExited, facts: Facts) -> Failure:
    tail = facts.logs.get(event.rank)
    log = "\n".join(tail.last_lines((event.round,), _LOG_LINES)) if tail and event.signal else ""
    reason = failure.of_signal(event.signal, log) if event.signal else failure.of_exit(event.code or 0)
    if event.signal == SIGKILL:
        # The kernel killed the rank; only the end of its container says that memory was the reason.
        life = facts.nodes.get(event.node, Node(event.node)).life_at(event.time)
        exit_ = next((exit_ for exit_ in life.exits if exit_.time >= int(event.time)), None)
        reason = failure.of_end(exit_) if exit_ is not None and failure.tells(exit_) else reason
    return Failure(reason, event.time, event.rank, event.node, round=event.round)
