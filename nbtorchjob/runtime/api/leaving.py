"""``leaving()``: ranks are told that their node is about to end, all of a job at the same call.

A node and its ranks share a page of numbers for a round, so that a call costs a rank well below a microsecond
when nothing is wrong:

    BOUND     the first call that has to wait until it is known which one is told
    TOLD      the first call that is told, on every rank of the job; 0 as long as that isn't known
    UNTIL     until when ranks may save, in nanoseconds of the host's monotonic clock
    ASKS      1 once a rank has this function in hand: it may be in its first step, and call after it
    CALLS+n   how often the node's nth rank has called

A rank writes how often it has called before it reads the bound. So once a node has set a bound, and some time
has passed for it to be seen, each rank's number is either below it, or there to be read. The nodes tell each
other their bounds (``peers.py``), and the largest is the call that is told: no rank has passed it, as
each waits at its own node's bound until it is known. A rank that waits so holds nobody up for long:
nodes agree without them.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Any, Optional

PAGE = "leaving"  # the file, in a round's folder
BOUND, TOLD, UNTIL, ASKS, CALLS = range(5)
NO_BOUND = (1 << 63) - 1
_NUMBER = 8  # bytes, each written at once where it is aligned
_SEEN_S = 0.002  # for what one process writes to be seen by another: a matter of nanoseconds
_PAUSE_S = 0.001
_SHORTEST_S = 0.1  # what is left is true as a condition, also at the last moment


class Leaving(BaseException):
    """A rank raises it that has saved, as its node is about to end: it leaves, without success or failure.

    As ``SystemExit`` it is no ``Exception``: code that goes on after those of a step ends with it.
    """


class Page:
    """The numbers that a node shares with its ``ranks``; every field is a number of 64 bits."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, PAGE), "r+b") as file:
            self._numbers: Any = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def create(cls, folder: str, ranks: int) -> "Page":
        """Make the page of a new round, whose folder this is."""
        with open(os.path.join(folder, PAGE), "wb") as file:
            file.write(bytes((CALLS + ranks) * _NUMBER))  # a hole could end a rank, on a full disk
        page = cls(folder)
        page[BOUND] = NO_BOUND
        return page

    def __getitem__(self, at: int) -> int:
        return int(self._numbers[at])

    def __setitem__(self, at: int, number: int) -> None:
        self._numbers[at] = number

    @property
    def asks(self) -> bool:
        """Whether a rank calls, as far as is known by now."""
        return self[ASKS] > 0 or self.most > 0

    @property
    def most(self) -> int:
        """How often the rank has called that is furthest; 0 where none ever has."""
        return int(max(self._numbers[CALLS:]))

    def bind(self) -> int:
        """Have ranks wait at a call that none of them has passed; return its number."""
        while self.most >= self[BOUND] or self[BOUND] == NO_BOUND:
            self[BOUND] = self.most + 1
            time.sleep(_SEEN_S)
        return self[BOUND]

    def tell(self, call: int, seconds: float) -> None:
        """Tell ranks from that call on that they have so many seconds."""
        self[UNTIL] = time.monotonic_ns() + int(seconds * 1e9)
        self[TOLD] = call


_page: Optional[Page] = None
_mine = CALLS
_calls = 0


def begin(folder: str, rank: int) -> None:
    """Let :func:`leaving` read its node's page, in a round's folder, as the ``rank`` there, from 0.

    It reads it in this process, and in no child of it.
    """
    global _page, _mine, _calls
    if _page is None:
        os.register_at_fork(after_in_child=_forget)
    _page, _mine, _calls = Page(folder), CALLS + rank, 0


def _forget() -> None:
    global _page
    _page = None


def expect() -> None:
    """Have the node know that this rank is going to ask."""
    if _page is not None:
        _page[ASKS] = 1


def leaving() -> "float | bool":
    """Return False, or once a node of the job is about to end or to join, how many seconds there are to save.

    All ranks of the job that call it as often get the same answer: so call it once a step on each of them,
    save together, and raise :class:`Leaving`, or return. Ranks that never call are ended once those have left
    that do. A node ends when its host is drained, when it is
    preempted or suspended, or by SIGTERM. Outside a job it is False, so the code runs in a notebook, too.
    """
    global _calls
    page = _page
    if page is None:
        return False
    _calls += 1
    page[_mine] = _calls
    if _calls < page[BOUND]:
        return False
    while not page[TOLD]:
        time.sleep(_PAUSE_S)
    return left() if _calls >= page[TOLD] else False


leaving.__module__ = "nbtorchjob"  # so it comes from there with the cell, too: the rank is going to ask


def left() -> float:
    """Return how many seconds there are still to save."""
    assert _page is not None
    return max(_SHORTEST_S, (_page[UNTIL] - time.monotonic_ns()) / 1e9)


def first_call() -> int:
    """Return the number of the call that was the first to be told, if this rank has heard it; else 0."""
    if _page is None or not 0 < _page[TOLD] <= _calls:
        return 0
    return _page[TOLD]
