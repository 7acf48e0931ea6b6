"""``leaving()``: ranks are told that their node is about to end, all of a job at one call (``points.py``)."""

from __future__ import annotations

import time

from nbtorchjob.runtime.api import points
from nbtorchjob.runtime.api.points import ASKS, AT, LEAVE, LEAVING, UNTIL

_SHORTEST_S = 0.1  # what is left is true as a condition, also at the last moment
_point = points.of[LEAVING]


class Leaving(BaseException):
    """A rank raises it that has saved, as its node is about to end: it leaves, without success or failure.

    As ``SystemExit`` it is no ``Exception``: code that goes on after those of a step ends with it.
    """


def expect() -> None:
    """Have the node know that this rank is going to ask."""
    if points.page is not None:
        points.page[ASKS] = 1


def leaving() -> "float | bool":
    """Return False, or once a node of the job is about to end or to join, how many seconds there are to save.

    All ranks of the job that call it as often get the same answer: so call it once a step on each of them,
    save together, and raise :class:`Leaving`, or return. Ranks that never call are ended once those have left
    that do. A node ends when its host is drained, when it is
    preempted or suspended, or by SIGTERM. Outside a job it is False, so the code runs in a notebook, too.
    """
    return left() if _point.passed() and first_call() else False


leaving.__module__ = "nbtorchjob"  # so it comes from there with the cell, too: the rank is going to ask


def left() -> float:
    """Return how many seconds there are still to save."""
    assert points.page is not None
    return max(_SHORTEST_S, (points.page[UNTIL] - time.monotonic_ns()) / 1e9)


def first_call() -> int:
    """Return the number of the call that was the first to be told, if this rank has heard it; else 0."""
    if points.page is None or not 0 < points.page[AT + LEAVE] <= _point.calls:
        return 0
    return points.page[AT + LEAVE]
