"""Why a job ended: signals and exit codes in, a cause with a plain-language line out."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import Enum

from nbtorchjob.runtime import exits
from nbtorchjob.runtime.errors import Error


class Cause(Enum):
    """Whose it was."""

    USER = "user"  # the code, or what it needs
    CONFIG = "config"  # the job as asked for can't run there
    INFRA = "infrastructure"  # the machine, the network, somebody else's preemption
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reason:
    """A cause, one line that says what happened, and one that says what to do about it."""

    cause: Cause
    line: str
    hint: str = ""


_SIGNALS: dict[int, Reason] = {
    signals.SIGKILL: Reason(
        Cause.UNKNOWN,
        "killed by SIGKILL",
        "Most often the memory ran out: use a smaller batch or fewer ranks, or ask for more memory.",
    ),
    signals.SIGBUS: Reason(
        Cause.USER,
        "killed by SIGBUS",
        "Most often shared memory (/dev/shm) is full: use fewer DataLoader workers or a bigger /dev/shm.",
    ),
    signals.SIGABRT: Reason(
        Cause.USER,
        "aborted by SIGABRT",
        "A native library gave up; with NCCL, a collective timed out: see the rank's log for which.",
    ),
    signals.SIGSEGV: Reason(
        Cause.USER,
        "crashed with SIGSEGV",
        "A native extension read memory that isn't its own: see the rank's log for its last lines.",
    ),
    signals.SIGTERM: Reason(
        Cause.INFRA,
        "ended by SIGTERM",
        "Somebody or something outside the job asked the process to end.",
    ),
}


def of_signal(number: int) -> Reason:
    """Say why a process that a signal ended was ended."""
    known = _SIGNALS.get(number)
    if known is not None:
        return known
    try:
        name = signals.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return Reason(Cause.USER, f"ended by {name}")


# By a part of the exception's type or message.
_ERRORS: dict[str, str] = {
    "No space left on device": "The disk is full: free some space where the job's folder lies.",
    "OutOfMemoryError": "The accelerator's memory ran out: use a smaller batch, or more nodes.",
    "MemoryError": "The memory ran out: use a smaller batch or fewer ranks, or ask for more memory.",
    "unable to open shared memory": "Shared memory (/dev/shm) is full: use fewer DataLoader workers.",
    "Address already in use": "A port is taken: leave MASTER_PORT to the job.",
}


def of_error(error: Error) -> Reason:
    """Say why a rank that raised did so."""
    told = f"{error.type}: {error.message}"
    hint = next((hint for sign, hint in _ERRORS.items() if sign in told), "")
    return Reason(Cause.USER, error.type, hint)


_LOST_PEER_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_LOST_PEER_TEXTS = ("closed by peer", "reset by peer", "Broken pipe", "/gloo/transport/")


def lost_peer(error: Error) -> bool:
    """Whether an exception only says that another rank is gone, as collectives do (torch 2.13)."""
    known = error.type.rpartition(".")[2] in _LOST_PEER_TYPES
    return known or any(text in error.message for text in _LOST_PEER_TEXTS)


def of_exit(code: int) -> Reason:
    """Say why a worker that ended by itself, with no exception, did so."""
    return Reason(
        Cause.USER,
        f"exited with code {code}",
        "The code called sys.exit or os._exit; a rank ends well only by returning.",
    )


def of_agent(code: int) -> Reason:
    """Say why a node's agent ended with ``code`` (see ``runtime/exits.py``)."""
    return _AGENTS.get(code) or Reason(Cause.UNKNOWN, f"the node's agent exited with code {code}")


_AGENTS: dict[int, Reason] = {
    exits.USER_ERROR: Reason(Cause.USER, "the code failed"),
    exits.CONFIG_ERROR: Reason(Cause.CONFIG, "the payload can't run on this node"),
    exits.RECOVERABLE_ERROR: Reason(
        Cause.USER, "a RecoverableError with no restart left", "Raise --max-restarts to go on."
    ),
    exits.INFRASTRUCTURE_ERROR: Reason(Cause.INFRA, "the rendezvous failed or a peer was lost"),
    exits.CANCELLED: Reason(Cause.CANCELLED, "the node was told to stop"),
}
