"""Explain why something ended or waits: from observed facts to a cause in plain words (pure).

All knowledge of signs is in one table (``table.py``); the functions here find an event's row in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from signal import Signals

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import table
from nbtorchjob.state.failure.table import (
    AGENT_KILLED,
    DEADLINE_EXCEEDED,
    INIT_FAILED,
    NEVER_STARTED,
    NO_LIMIT,
    PODS_REFUSED,
    Cause,
    Reason,
    Row,
    find,
)

__all__ = [
    "AGENT_KILLED",
    "DEADLINE_EXCEEDED",
    "INIT_FAILED",
    "NEVER_STARTED",
    "NO_LIMIT",
    "PODS_REFUSED",
    "UNSEEN",
    "Cause",
    "Reason",
    "explains",
    "of_agent",
    "of_agent_error",
    "of_deadline",
    "of_disruption",
    "of_end",
    "of_error",
    "of_exit",
    "of_gone",
    "of_queue",
    "of_signal",
    "of_start",
    "of_waiting",
    "tells",
    "trouble",
]


# Reasons of containers and pods that add nothing to the exit code.
_SAY_NOTHING = ("", "Completed", "Error")
# What the kubelet writes for an end that it never saw, with exit code 137. The pod's own reason, such as
# Evicted, says why.
UNSEEN = "ContainerStatusUnknown"
# Exit codes that mean that a signal ended a process; higher ones are those of nbtorchjob's agent.
_SIGNAL_CODES = range(129, 193)


def tells(event: ev.NodeExited) -> bool:
    """Whether the cluster said more about an end than the exit code does."""
    return event.reason not in _SAY_NOTHING


def explains(event: ev.NodeExited) -> bool:
    """Whether the cluster said why it ended, rather than that it lost sight of the container."""
    return tells(event) and event.reason != UNSEEN


def of_end(event: ev.NodeExited) -> Reason:
    """Explain why a node ended badly."""
    if tells(event):
        return _read(table.ENDS, event.reason, event.text)
    reason = of_signal(event.signal, event.text) if event.signal else of_agent(event.code)
    words = event.text.strip()
    return replace(reason, hint=f"Its last message: {words}") if words and not reason.hint else reason


def of_agent(code: int | None) -> Reason:
    """Explain why a node ended with ``code``: its agent's (``runtime/facts/exits``) or its container's."""
    if code is not None and code in _SIGNAL_CODES:
        return of_signal(code - 128)
    return _read(table.CODES, str(code))


def of_agent_error(code: int, error: Error) -> Reason:
    """Explain why a node's agent gave up with ``code`` over an exception of its own."""
    notes = "\n".join(error.notes)
    short = find(table.SHORTAGES, error.type, notes)
    if short is not None:
        return short.reason(error.type, notes)
    if code != exits.INFRASTRUCTURE_ERROR:
        row = find(table.NODE_ERRORS, f"{code} {error.type}", error.message)
        return row.reason(error.type, error.message) if row is not None else of_agent(code)
    return _read(table.AGENT_ERRORS, error.type, error.message)


def of_signal(number: int, log: str = "") -> Reason:
    """Explain why a signal ended a process; ``log`` is the end of its log."""
    try:
        name = Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return _read(table.SIGNALS, name, log)


def of_exit(code: int) -> Reason:
    """Explain why a rank exited without an exception."""
    return _read(table.RANK_CODES, str(code))


def of_error(error: Error) -> Reason:
    """Explain why a rank raised an exception."""
    name = error.type.rpartition(".")[2]
    row = find(table.ERRORS, name, error.message)
    if row is None and error.frames:
        row = find(table.LINES, name, error.frames[-1].line)
    if row is None and error.lost_peer:
        return _read(table.PEERS, name, error.message)
    return Reason(Cause.USER, error.type) if row is None else row.reason(error.type, error.message)


def of_disruption(event: ev.NodeDisrupted) -> Reason:
    """Explain why a node's pod was taken away."""
    return _read(table.TAKEN, event.reason, event.text)


def of_gone() -> Reason:
    """Explain why a node ended if its pod is gone and there is no other fact about its end."""
    return _read(table.TAKEN, table.VANISHED)


def of_queue(word: str, text: str) -> Reason:
    """Explain why a queue doesn't admit a job, or took its nodes away."""
    return _read(table.QUEUES, word, text)


def of_deadline(seconds: int | None = None) -> Reason:
    """State that a job ran longer than its deadline, with its ``seconds`` where they are known."""
    reason = _read(table.VERDICTS, table.DEADLINE_EXCEEDED)
    return replace(reason, line=f"{reason.line} of {seconds} s") if seconds is not None else reason


def of_start(word: str, text: str, seconds: float | None = None) -> Reason:
    """Describe what held an attempt back for too long, given the cluster's word for it and its message."""
    row = find(table.WAITS, word, text)
    limit = "until its time limit" if seconds is None else f"for {seconds:g} s"
    return Reason(Cause.DEADLINE, f"was held back {limit}, and ended: {text}", row.hint if row else "")


def of_waiting(event: ev.Waiting, waited_s: float = math.inf) -> Reason:
    """Describe whose fault it is that something has waited for ``waited_s``; ``Cause.WAIT`` is nobody's."""
    between = event.stage is ev.Stage.RESTARTING
    row = find(table.ENDS, event.reason, event.text) if between and event.reason else None
    row = row if row and row.cause is not Cause.UNKNOWN else find(table.WAITS, event.reason, event.text)
    if row is None:
        return Reason(Cause.WAIT, event.text)
    cause = row.cause if waited_s >= row.grace_s else Cause.WAIT
    return Reason(cause, event.text, row.hint, row.crash)


def trouble(reason: str, message: str) -> str:
    """Describe in plain words what is wrong with something that waits for ``reason``."""
    row = find(table.WAITS, reason, message)
    return reason if row is None else row.say(reason, message)


def _read(rows: Iterable[Row], word: str, text: str = "") -> Reason:
    # The last row of each of these parts of the table fits anything.
    row = find(rows, word, text)
    assert row is not None, word
    return row.reason(word, text)
