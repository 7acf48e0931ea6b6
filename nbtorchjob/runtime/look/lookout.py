"""When a node looks at what its ranks do: when it is asked to, and by itself when nothing moves.

A *sample* is a fact, ``Sampled``. By itself a node takes one

- when nothing has moved for ``--hang-after`` seconds, though a rank waits for others: *quiet*;
- when a collective is about to give up, or has, and ends the job: *timeout*.

A rank moves when it prints, reports, or completes a collective. A node that takes a sample by itself asks
the other nodes for one (``peers.py``): the missing rank may be on another node, where nothing waits. When
a collective gives up, nodes publish each other's samples, too, as some nodes' logs may be gone by then. A
stall is sampled once; the next one begins when something has moved. Of logs only the size is read, and
ranks are asked once a second, which takes them some 0.1 ms.
"""

from __future__ import annotations

import _thread
import base64
import os
import signal
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set

from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.ask.questions import MODULES
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.facts.injected import STREAM
from nbtorchjob.runtime.facts.samples import ENDED
from nbtorchjob.runtime.look.inquiry import Inquiry
from nbtorchjob.runtime.rendezvous.alone import Alone

ASKED, QUIET, TIMEOUT = "asked", "quiet", "timeout"

_EVERY_S, _SHORTEST_S = 1.0, 0.05  # between two looks
_LATE, _LATE_S = 0.8, 5.0  # a collective's time is nearly over after this part, or this long before its end
_SAME_S = 10.0  # for which one sample is enough, though several collectives end, or several nodes ask


class Lookout:
    """Watches the ranks of the node with the number ``node`` in the job; they find it in ``folder``.

    ``hang_after`` is in seconds; with 0 no sample is taken just because nothing moves.
    """

    def __init__(self, folder: str, node: int, hang_after: float) -> None:
        self._inquiry = Inquiry(folder)
        self._folder = folder
        self._profiling: Any = None
        self._node = node
        self._hang_after = hang_after
        self._peers = Alone()
        self._round = 0
        self._stall = _Stall([])
        self._times: Dict[str, float] = {}  # when a sample was last taken for each reason
        self._reason = ""  # why another node asks for a sample
        self._wake = threading.Event()
        self._closed = self._rests = self._sleeps = False
        self._lock = threading.Lock()
        self._wishes = threading.Lock()  # other nodes' wishes are answered one at a time
        self._newest: Dict[str, Any] = {}  # the sample that was taken last
        self._began = 0.0  # when that was begun
        _thread.start_new_thread(self._watch, ())  # ``Thread.start`` would wait until it runs

    def enter(self, round_: int, folder: str, pids: Dict[int, int], peers: Alone) -> None:
        """Watch the ranks of a new round, which write to ``folder``; ``pids`` are by rank."""
        self._inquiry.enter(pids)
        self._peers = peers

        def want(why: str) -> None:
            self._reason = why
            self._wake.set()

        def give(tell: "Callable[[dict[str, Any]], None]") -> None:
            # In another thread: it takes seconds, for which it would block the thread that reads news.
            threading.Thread(target=lambda: tell(self._own_sample()), daemon=True).start()

        peers.on_sample_wanted, peers.on_end, peers.on_gather = want, self._answer_wish, give
        self.go_on(round_, folder, pids)

    def go_on(self, round_: int, folder: str, ranks: Iterable[int]) -> None:
        """Watch the same ranks in another round."""
        self._round = round_
        self._times = {}
        self._stall = _Stall([os.path.join(folder, "rank-%d.log" % rank) for rank in ranks])
        self._rests = False
        if self._sleeps:  # otherwise it looks within a second anyway
            self._wake.set()

    def rest(self) -> None:
        """Stop looking by itself until the next round, which ranks are waiting for."""
        self._rests = True

    def ended(self, codes: Dict[int, int]) -> None:
        """Record the exit codes of ranks that have ended, by rank."""
        self._inquiry.ended(codes)

    def returned(self) -> None:
        """Record that all ranks of this node have returned, and are about to be ended."""
        self._inquiry.keep()

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        self._wake.set()
        self._inquiry.close()

    def answer(self, request: Dict[str, Any]) -> "Iterator[dict[str, Any]]":
        """Yield the requested sample.

        If the request has ``all``, the seconds that other nodes have to send theirs, first yield a record
        that this node gathers them, and then those samples, as they were sent.
        """
        if "all" not in request:
            yield self._own_sample()
            return
        own: List[Dict[str, Any]] = []
        taking = threading.Thread(target=lambda: own.append(self._own_sample()), daemon=True)
        taking.start()
        yield {"gathers": True}
        for node, data in self._peers.gather(float(request["all"])):
            yield {"of": node, "packed": base64.b64encode(data).decode()}
        taking.join()
        yield from own

    def _own_sample(self) -> "dict[str, Any]":
        return self.sample(QUIET if self._times.get(QUIET, -1.0) >= self._stall.since else ASKED)

    def profile(self, request: Dict[str, Any]) -> "Iterator[dict[str, Any]]":
        """Yield the requested profile of a rank (``profiling.py``)."""
        from nbtorchjob.runtime.look.profiling import Profiling  # late: it comes with the question

        with self._lock:
            questions.leave_modules(self._folder, request.get(MODULES, {}))
            self._profiling = self._profiling or Profiling(self._folder, self._inquiry)
        profiling: Profiling = self._profiling
        return profiling.answer(request)

    def sample(self, why: str) -> "dict[str, Any]":
        """Return what the ranks do, as the record of a ``Sampled``, and emit it; it takes 4 s at most.

        All callers that wait for a sample under way share the next one, so none waits for more than 8 s.
        """
        start = time.monotonic()
        with self._lock:
            if self._began > start and self._newest["why"] == why:
                return self._newest
            self._began = self._times[why] = time.monotonic()
            end = time.time()
            samples = self._inquiry.samples()
            fields = {"node": self._node, "round": self._round, "why": why, "samples": samples, "time": end}
            # If all have ended, as when a job is cancelled, an earlier sample says more.
            if why == TIMEOUT or any(sample["state"] != ENDED for sample in samples):
                emit("Sampled", **fields)
            self._newest = {"event": "Sampled", **fields}
            return self._newest

    def gave_up(self) -> None:
        """Sample all nodes' ranks, as a collective has failed on one of them."""
        if self._is_old(TIMEOUT):  # a timed-out collective was sampled before, with all ranks still there
            self._peers.want_sample(TIMEOUT)
            self._take(TIMEOUT)

    def _answer_wish(self) -> None:
        """Take the sample that another node has asked for, if it hasn't been taken yet."""
        with self._wishes:
            reason, self._reason = self._reason, ""
            if reason and self._is_old(reason):
                self._take(reason)

    def _watch(self) -> None:
        # Signals have to reach the agent's thread: only then do they end its waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._closed:
            # Set before ``_rests`` is read: ``go_on`` reads ``_sleeps`` after it has set ``_rests``.
            self._sleeps = True
            self._sleeps = self._rests
            woken = self._wake.wait(None if self._sleeps else self._stall.pause(self._hang_after))
            self._wake.clear()
            if woken and not self._reason:
                continue  # a round that has just begun can't stall before a pause, and may be over by then
            try:
                self._look(self._stall)
            except Exception:  # a full disk, or something unforeseen: it mustn't affect the job
                time.sleep(_EVERY_S)

    def _look(self, stall: "_Stall") -> None:
        self._answer_wish()
        if self._rests:
            return
        stall.look(self._inquiry.pulses())
        for why in stall.reasons(self._hang_after):
            # Another node may have asked for it in this very stall.
            if self._times.get(why, -_SAME_S) < stall.since if why == QUIET else self._is_old(why):
                self._peers.want_sample(why)
                self._take(why)

    def _take(self, why: str) -> None:
        sample = self.sample(why)
        # On the user's machine no log goes away with a node, and other users could read the nodes' store.
        if why == TIMEOUT and STREAM in os.environ:
            self._peers.show_sample(sample)

    def _is_old(self, why: str) -> bool:
        return time.monotonic() > self._times.get(why, -_SAME_S) + _SAME_S


class _Stall:
    """How the ranks of one round move: since when they don't, and which calls they wait in."""

    def __init__(self, logs: List[str]) -> None:
        self._logs = logs
        self._sizes: List[int] = []
        self._counts: Dict[int, Any] = {}  # by rank
        self._pending: Dict[int, Any] = {}  # by rank
        self.since = time.monotonic()
        self._waits = False
        self._ends: Dict[float, float] = {}  # when a call is nearly out of time, by when it began
        self._looked: Set[float] = set()  # the calls for which a sample was taken
        self._is_sampled = False  # whether one was taken because nothing moves

    def pause(self, hang_after: float) -> float:
        """Return for how many seconds there is nothing to do."""
        ends = [end for began, end in self._ends.items() if began not in self._looked]
        quiet = [self.since + hang_after] if self._waits and hang_after and not self._is_sampled else []
        return max(_SHORTEST_S, min([_EVERY_S, *(at - time.monotonic() for at in (*ends, *quiet))]))

    def look(self, pulses: "dict[int, dict[str, Any]]") -> None:
        """Take in the sizes of logs and the pulses; a rank without a pulse counts as unchanged."""
        sizes: List[int] = []
        for log in self._logs:
            try:
                size = os.stat(log).st_size
            except OSError:
                size = 0
            sizes.append(size)
        counts = {rank: (pulse["counts"], pulse["reports"]) for rank, pulse in pulses.items()}
        if sizes != self._sizes or any(counts[rank] != self._counts.get(rank) for rank in counts):
            self.since = time.monotonic()
            self._is_sampled = False
        self._sizes = sizes
        self._counts.update(counts)
        self._pending.update((rank, pulse["pending"]) for rank, pulse in pulses.items())
        groups = (group for counts, _ in self._counts.values() for group in counts.values())
        self._waits = any(called > done for called, done in groups) or any(
            pulse.get("waits") for pulse in pulses.values()
        )
        # The wall clock, which dates a call's beginning, may be set while it waits: the first look counts.
        ahead = time.monotonic() - time.time()
        self._ends = {
            began: self._ends.get(began, began + max(_LATE * limit, limit - _LATE_S) + ahead)
            for calls in self._pending.values()
            for began, limit in calls
            if limit > 0
        }
        self._looked &= set(self._ends)

    def reasons(self, hang_after: float) -> Iterator[str]:
        """Yield the reasons to take a sample now."""
        now = time.monotonic()
        due = {began for began, end in self._ends.items() if end <= now} - self._looked
        if due:
            self._looked |= due
            yield TIMEOUT
        elif hang_after and self._waits and not self._is_sampled and now >= self.since + hang_after:
            self._is_sampled = True
            yield QUIET
