"""Whose fault it is, and the two lines that say so."""

from __future__ import annotations

from enum import Enum

from nbtorchjob.frozen import FrozenDataclass


class Cause(Enum):
    """Whose it was."""

    USER = "user"  # the code, or what it needs
    CONFIG = "config"  # the job as asked for can't run there
    INFRA = "infrastructure"  # the machine, the network, somebody else's preemption
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    WAIT = "wait"  # nobody's: it goes on by itself
    UNKNOWN = "unknown"


class Reason(FrozenDataclass):
    """A cause, one line that says what happened, and one that says what to do about it.

    ``crash`` tells what a signal ended, or the kernel for its memory, from what raised or exited.
    """

    cause: Cause
    line: str
    hint: str = ""
    crash: bool = False
