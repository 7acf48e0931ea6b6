"""Who failed first: one culprit out of all the failures that a failing job shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from signal import SIGKILL
from typing import NamedTuple

from nbtorchjob import events as ev
from nbtorchjob import failure
from nbtorchjob.failure import Cause, Reason
from nbtorchjob.runtime import exits
from nbtorchjob.runtime.errors import Error
from nbtorchjob.state.known import Known
from nbtorchjob.state.nodes import Life, Node

STOPPED = "Stopped"  # the reason of a verdict of ours, where an operator would have gone on
ABANDONED = "Abandoned"  # and where no other attempt can be started, though there should be one
_LOG_LINES = 200  # of a rank's log that may say why a signal ended it


@dataclass(frozen=True)
class Failure:
    """How a job failed: the reason, and where a rank or node is to blame, which."""

    reason: Reason
    time: float
    rank: int | None = None
    node: int | None = None
    error: Error | None = None
    round: int = -1


def first_failure(known: Known, *, cancelled: bool) -> Failure:
    """Give what ended the job: its deadline, somebody's wish, or the first failure by time."""
    end = known.ended or 0.0
    late = _deadline(known)
    if late is not None:
        return late
    if cancelled:
        line = "was cancelled" if known.cancelled is not None else "was deleted"
        return Failure(Reason(Cause.CANCELLED, line), known.cancelled or known.removed or end)
    return own_failure(known)


def own_failure(known: Known) -> Failure:
    """Give why the job failed, whatever somebody wished of it."""
    end = known.told.time if known.told else known.ended or 0.0
    return culprit(known) or Failure(_verdict(known), end)


def culprit(known: Known) -> Failure | None:
    """Give the first failure that a rank, a node or the backend told of; None where none did."""
    ends = [end for node in known.nodes.values() for end in _bad_ends(node, known.verdict)]
    quiet = _first_quiet(ends)
    told = [*map(_of_error, known.errors), *(_of_exit(e, known) for e in known.exits)]
    told += [end.found for end in ends if end.loud and end.newest]
    if quiet is not None and quiet.deleted:
        told.append(quiet.found)
    round_ = _last_round(known)
    newest = [found for found in told if found.round == round_] or told
    # A rank whose peer died fails as well, in the collective, and may well be the first to say so.
    causes = [f for f in newest if f.error is None or not f.error.lost_peer] or newest
    if causes:
        first = min(causes, key=_when)
        if first.error is None or not first.error.recoverable:
            return first
        # Which of two ranks that fail at once is told of first is chance; whether to try again mustn't be.
        return min((f for f in causes if f.error and not f.error.recoverable), key=_when, default=first)
    if known.agents:
        return _of_agent(known.agents[0])
    if known.lost is not None:
        return Failure(Reason(Cause.INFRA, known.lost.reason), known.lost.time)
    return quiet.found if quiet is not None else _stuck(known)


def _last_round(known: Known) -> int:
    """Give the newest round, but for those of a container that ran on until it was stopped for a failure."""
    verdict = known.verdict
    if verdict is None or verdict.reason != STOPPED:
        return known.round
    rounds = (w.round for node in known.nodes.values() for w in node.workers if w.time <= verdict.time)
    return max(rounds, default=known.round)


def _when(failure: Failure) -> tuple[float, int]:
    return failure.time, failure.rank or 0


class _End(NamedTuple):
    """How a run of a node ended that ended badly, or how its pod was taken away."""

    found: Failure
    newest: bool  # in its node's newest life; what an earlier one died of has been overcome
    loud: bool  # it says why; a bare exit code only says that something was wrong
    deleted: bool = False  # its pod was just deleted, maybe by an operator that cleans up
    age: tuple[float, int, str] = (0.0, 0, "")  # of the deletion
    peers: bool = False  # its agent only noticed that another node is gone


def _bad_ends(node: Node, verdict: ev.Verdict | None) -> Iterator[_End]:
    last = _last(node, verdict)
    for life in node.lives.values():
        newest = life is last
        for exit_ in life.exits:
            if exit_.code != 0 and not life.ended_on_demand(exit_):
                loud = exit_.signal is not None or failure.tells(exit_)
                peers = not loud and exit_.code == exits.INFRASTRUCTURE_ERROR
                found = _at(node, life, exit_.time, failure.of_end(exit_))
                yield _End(found, newest=newest, loud=loud, peers=peers)
        if life.disruption is not None:
            deleted = life.disruption.reason == ev.DELETED
            found, age = _taken(node, life, life.disruption), life.disruption.age
            yield _End(found, newest=newest, loud=not deleted, deleted=deleted, age=age)
        elif life.vanished:
            yield _End(_at(node, life, life.end, failure.of_gone()), newest=newest, loud=False)


def _last(node: Node, verdict: ev.Verdict | None) -> Life:
    # Operators may create pods again for a job that has failed (PyTorchJob 1.9, trainer 2.3).
    end = verdict.time if verdict is not None and not verdict.succeeded else float("inf")
    return next((life for life in reversed(node.aged) if life.since < end), node.life)


def _at(node: Node, life: Life, time: float, reason: Reason) -> Failure:
    return Failure(reason, time, node=node.index, round=node.round_at(time, life.pod))


def _taken(node: Node, life: Life, disruption: ev.NodeDisrupted) -> Failure:
    # The kubelet says what ran short in the pod's own reason, and nothing of it in the condition.
    told = life.exit is not None and failure.tells(life.exit)
    reason = failure.of_end(life.exit) if told and life.exit else failure.of_disruption(disruption)
    return _at(node, life, disruption.time, reason)


def _first_quiet(ends: list[_End]) -> _End | None:
    """Give the first end that says nothing of its reason, if any; a deletion after it is its sequel."""
    exits_ = [end for end in ends if end.newest and not end.deleted]
    if not exits_:
        exits_ = sorted((e for e in ends if not e.newest and not e.deleted), key=lambda e: e.found.time)[-1:]
    deleted = [end for end in ends if end.newest and end.deleted]
    # Of two nodes the one that noticed may be gone before the one that failed (recorded: 201, then 200).
    exits_ = [end for end in exits_ if not end.peers] or exits_
    return min((*exits_, *deleted), key=lambda end: (end.found.time, end.deleted, end.age), default=None)


def _stuck(known: Known) -> Failure | None:
    """Blame what never got as far as running for a job that ended over it."""
    waits = [*known.waits, *(n.life.waiting for n in known.nodes.values() if n.life.waiting)]
    for wait in waits:
        reason = failure.of_waiting(wait)
        if reason.cause is not Cause.WAIT:
            return Failure(reason, wait.time, node=wait.node)
    return None


def _deadline(known: Known) -> Failure | None:
    if known.deadline is not None:
        return Failure(failure.of_deadline(known.deadline.seconds), known.deadline.time)
    verdict = known.verdict
    if verdict is None or verdict.succeeded:
        return None
    if verdict.reason == failure.NEVER_STARTED:
        word, _, text = verdict.text.partition(" ")
        return Failure(failure.of_start(word, text, known.info.start_within_s), verdict.time)
    if verdict.reason != failure.DEADLINE_EXCEEDED:
        return None
    return Failure(failure.of_deadline(known.info.deadline_s), verdict.time)


def _verdict(known: Known) -> Reason:
    verdict = known.verdict
    if verdict is None:
        return Reason(Cause.UNKNOWN, "ended, and nothing says why")
    return Reason(Cause.UNKNOWN, f"failed: {verdict.text or verdict.reason or 'nothing says why'}")


def _of_error(event: ev.RankFailed) -> Failure:
    return Failure(
        failure.of_error(event.error), event.error.time, event.rank, event.node, event.error, event.round
    )


def _of_exit(event: ev.RankExited, known: Known) -> Failure:
    tail = known.logs.get(event.rank)
    log = "\n".join(tail.last_lines((event.round,), _LOG_LINES)) if tail and event.signal else ""
    reason = failure.of_signal(event.signal, log) if event.signal else failure.of_exit(event.code or 0)
    if event.signal == SIGKILL:
        # The kernel kills the rank; only the end of its container says that it was for its memory.
        life = known.nodes.get(event.node, Node(event.node)).life_at(event.time)
        exit_ = next((exit_ for exit_ in life.exits if exit_.time >= int(event.time)), None)
        reason = failure.of_end(exit_) if exit_ is not None and failure.tells(exit_) else reason
    return Failure(reason, event.time, event.rank, event.node, round=event.round)


def _of_agent(event: ev.NodeFailed) -> Failure:
    reason = failure.of_agent_error(event.code, event.error)
    return Failure(reason, event.time, node=event.node, error=event.error)
