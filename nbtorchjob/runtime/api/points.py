"""Calls that all ranks of a job make equally often: at one that none has passed, they change together.

A node and its ranks share a page of numbers for a round, so that such a call costs a rank well below a
microsecond when there is nothing to do. There are three kinds of calls (``LEAVING``, ``POINT``, ``REPORT``),
and two *words* that may hold from one call on: that the ranks leave (``LEAVE``), and that they go on with
other code (``SWAP``). For each kind, word and rank, the page has

    HALT+kind    the first call that has to look further: the lowest bound of a word of that kind
    BOUND+word   the first call that has to wait until it is known at which call the word holds
    AT+word      that call, the same on every rank of the job; 0 as long as it isn't known
    CALLS+kind   how often the rank has called, in a block of its own; READY is how far it is with a swap

A rank writes how often it has called before it reads the bound. So once a node has set a bound, and enough
time has passed for it to be seen, each rank's number is either below it, or can be read. The nodes tell each
other their bounds (``Agreement``), and the largest is the call at which the word holds: no rank has passed
it, as each waits at its own node's bound until the call is known. Such a wait isn't long: nodes agree without
their ranks.

Two of the calls are here: ``leaving()`` tells ranks that their node is about to end, and at ``swap_point()``
they may go on with other code. The third is ``report()`` (``report.py``).
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

PAGE = "points"  # the file, in a round's folder
KINDS = LEAVING, POINT, REPORT = range(3)
NAMES = ("leaving()", "swap_point()", "report()")  # by kind
LEAVE, SWAP = range(2)

# The places of the numbers. UNTIL is the time until which ranks may save, in nanoseconds of the host's
# monotonic clock; ASKS is 1 once a rank imports ``leaving``: it may be in its first step, and call it after
# that. NUMBER and KIND belong to the swap: which one of this round it is, and the kind of call to do it at.
# Nodes decide on it twice: VERDICT says whether ranks make the change, TRIAL whether the change stays.
UNTIL, ASKS, NUMBER, KIND, VERDICT, TRIAL = range(6)
HALT = 6
BOUND = HALT + len(KINDS)
AT = BOUND + 2
CALLS = AT + 2
READY = len(KINDS)  # in a rank's block
BLOCK = len(KINDS) + 1

NO_BOUND = (1 << 63) - 1
PAUSE_S = 0.001
_NUMBER = 8  # bytes of a number; an aligned one is written at once
_SEEN_S = 0.002  # for a write of one process to be seen by another: a matter of nanoseconds


class Page:
    """The numbers that a node shares with its ranks; every field is a number of 64 bits."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, PAGE), "r+b", buffering=0) as file:
            self.numbers: Any = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._every_call = False

    @classmethod
    def create(cls, folder: str, ranks: int) -> "Page":
        """Make the page of a new round, in the round's folder."""
        with open(os.path.join(folder, PAGE), "wb") as file:
            file.write(bytes((CALLS + ranks * BLOCK) * _NUMBER))  # on a full disk, a hole could end a rank
        page = cls(folder)
        for at in range(HALT, AT):
            page[at] = NO_BOUND
        return page

    def __getitem__(self, at: int) -> int:
        return int(self.numbers[at])

    def __setitem__(self, at: int, number: int) -> None:
        self.numbers[at] = number

    @property
    def asks(self) -> bool:
        """Whether a rank calls ``leaving()``, as far as is known so far."""
        return self[ASKS] > 0 or self.most(LEAVING) > 0

    def calls(self, kind: int) -> List[int]:
        """Return how often each rank has made such calls."""
        return [int(number) for number in self.numbers[CALLS + kind :: BLOCK]]

    def most(self, kind: int) -> int:
        """Return how often the rank that is furthest has called; 0 if no rank has."""
        return max(self.calls(kind), default=0)

    def ready(self, rank: int) -> int:
        """Return how far the rank, from 0, is with a swap."""
        return self[CALLS + rank * BLOCK + READY]

    def bind(self, word: int, kind: int) -> int:
        """Make ranks wait at a call that none of them has passed; return its number."""
        while self.most(kind) >= self[BOUND + word] or self[BOUND + word] == NO_BOUND:
            self[BOUND + word] = self.most(kind) + 1
            self._halt()
            time.sleep(_SEEN_S)
        return self[BOUND + word]

    def release(self, word: int) -> None:
        """Make no rank wait for that word any more."""
        self[BOUND + word] = NO_BOUND
        self._halt()

    def watch(self, every_call: bool) -> None:
        """Make ranks look further at every call of every kind, or only at the calls that words have bound."""
        self._every_call = every_call
        self._halt()

    def _halt(self) -> None:
        for kind in KINDS:
            words = [self[BOUND + LEAVE]] if kind == LEAVING else []
            words += [self[BOUND + SWAP]] if kind == self[KIND] else []
            words += [0] if self._every_call else []
            self[HALT + kind] = min(words, default=NO_BOUND)

    def tell(self, call: int, seconds: float) -> None:
        """Tell ranks, from that call of ``leaving()`` on, that they have ``seconds`` left."""
        self[UNTIL] = time.monotonic_ns() + int(seconds * 1e9)
        self[AT + LEAVE] = call


class Agreement:
    """How a node and its ``peers`` agree on the call, of one kind, at which a word holds on all ranks."""

    def __init__(self, page: Page, word: int, kind: int, peers: Any, name: str) -> None:
        self.kind = kind
        self.bounds: List[int] = []  # of all nodes, once they are known
        self._peers = peers
        self._name = name
        self._bound = page.bind(word, kind) if page.most(kind) or kind == LEAVING else 0

    def look(self) -> int:
        """Return the call's number; 0 until the other nodes have told their bounds."""
        bounds = self._peers.say(self._name, str(self._bound))
        if bounds is not None:
            self.bounds = [int(bound) for bound in bounds]
        return max(self.bounds, default=0)


class Point:
    """One kind of call, in the process of a rank."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.calls = 0
        self._numbers: Any = None
        self._count = self._halt = 0

    def begin(self, page: Optional[Page], rank: int) -> None:
        """Restart the count on a page; without a page, calls do nothing."""
        self.calls = 0
        self._numbers = None if page is None else page.numbers
        self._count, self._halt = CALLS + rank * BLOCK + self.kind, HALT + self.kind

    def passed(self) -> bool:
        """Count a call, and do whatever is due at it; return whether there may be more to look at."""
        numbers = self._numbers
        if numbers is None:
            return False
        self.calls = calls = self.calls + 1
        numbers[self._count] = calls
        if calls < numbers[self._halt]:
            return False
        _hold(self)
        return True


page: Optional[Page] = None
folder = ""  # the page's
rank = 0  # of this process, on its node
of = tuple(map(Point, KINDS))  # by kind
# Set by ``rank/swapping.py``: `on_swap` does the swap of that number at that call of this rank; `on_trial`
# settles an earlier swap that is on trial, at any call or as a round begins.
on_swap: Optional[Callable[[int, int], None]] = None
on_trial: Optional[Callable[[], None]] = None
_swapped = 0  # the newest swap of this page that this rank has done


def begin(of_round: str, local_rank: int) -> None:
    """Make this process share its node's page, in a round's folder, as the rank of that number there.

    Its child processes don't share it.
    """
    global page, folder, rank, _swapped
    if page is None:
        os.register_at_fork(after_in_child=_forget)
    page, folder, rank, _swapped = Page(of_round), of_round, local_rank, 0
    for point in of:
        point.begin(page, rank)
    if on_trial is not None:
        on_trial()  # of the round before


def _forget() -> None:
    global page
    page = None
    for point in of:
        point.begin(None, 0)


def tell_ready(progress: int) -> None:
    """Tell the node how far this rank is with a swap."""
    if page is not None:
        page[CALLS + rank * BLOCK + READY] = progress


def _hold(point: Point) -> None:
    """Wait until it is known what to do at this call, and do it."""
    global _swapped
    shared, call = page, point.calls
    assert shared is not None
    while call >= shared[HALT + point.kind]:
        if on_trial is not None:
            on_trial()  # before another swap, which begins from this one's outcome
        swap = shared[NUMBER]
        if swap > _swapped and point.kind == shared[KIND] and call >= shared[BOUND + SWAP]:
            at = shared[AT + SWAP]
            if at and call >= at:
                _swapped = swap  # first: the swap may itself call this
                if on_swap is not None:
                    on_swap(swap, call)
            elif not at:
                time.sleep(PAUSE_S)
                continue
        if point.kind != LEAVING or call < shared[BOUND + LEAVE] or shared[AT + LEAVE]:
            return
        time.sleep(PAUSE_S)


_SHORTEST_S = 0.1  # never 0, so that it is true as a condition, even at the last moment
_leaving_point = of[LEAVING]


class Leaving(BaseException):
    """Raised by a rank that has saved as its node is about to end: it leaves, without success or failure.

    Like ``SystemExit``, it isn't an ``Exception``: it also ends code that goes on after a step's exceptions.
    """


def expect() -> None:
    """Let the node know that this rank is going to call ``leaving()``."""
    if page is not None:
        page[ASKS] = 1


def leaving() -> "float | bool":
    """Return False, or the seconds left to save, once a node of the job is about to end or to join.

    All ranks of the job that have called it equally often get the same answer: so call it once a step on each
    of them, save together, and raise :class:`Leaving`, or return. Ranks that never call it are ended once
    those that do have left. A node ends when its host is drained, when it is preempted or suspended, or by
    SIGTERM. Outside a job it is False, so the code runs in a notebook, too.
    """
    return left() if _leaving_point.passed() and first_call() else False


leaving.__module__ = "nbtorchjob"  # so that a cell's pickle, too, gets it from there, which calls `expect`


def left() -> float:
    """Return how many seconds are left to save."""
    assert page is not None
    return max(_SHORTEST_S, (page[UNTIL] - time.monotonic_ns()) / 1e9)


def first_call() -> int:
    """Return the number of the first call that told ranks to leave, if this rank has made it; else 0."""
    if page is None or not 0 < page[AT + LEAVE] <= _leaving_point.calls:
        return 0
    return page[AT + LEAVE]


KEPT = "swaps"  # in a node's folder: the payloads of swaps, by number
KEPT_AT = "NBTORCHJOB_KEPT_SWAPS"  # where that is, for ranks and the processes that they start
MARK = "nbtorchjob_swaps"  # an attribute of an optimizer: which swaps have set which value of it
# How a name got its new value, the most telling way last. With REBOUND, only the name has the new value:
# other references keep the old one.
HOWS = SAME, ADDED, REPLACED, LATER, REBOUND = "same", "added", "replaced", "later", "rebound"


def merged(names: Iterable[Mapping[str, str]]) -> Dict[str, str]:
    """Return how each name changed; if that differs between ranks, the most telling way."""
    together: Dict[str, str] = {}
    for of in names:
        for name, how in of.items():
            together[name] = max(together.get(name, how), how, key=HOWS.index)
    return together


_swap_point = of[POINT]
_optimizers: Any = weakref.WeakSet()  # each of their steps is such a point


def swap_point(optimizer: Any = None) -> None:
    """Let this job's code be swapped here; call it equally often on each rank, once a step.

    With an ``optimizer`` of torch, each of its steps is such a point from now on, after it has stepped.
    ``leaving()`` and, if all ranks call it, ``report()`` are such points, too. A call takes well below a
    microsecond. Outside a job it does nothing.
    """
    if optimizer is None:
        _swap_point.passed()
        return
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps one (1.15)
    if optimizer not in _optimizers:
        _optimizers.add(optimizer)
        optimizer.register_step_post_hook(_stepped)


swap_point.__module__ = "nbtorchjob"  # so that a cell's pickle, too, gets it from there


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    _swap_point.passed()
