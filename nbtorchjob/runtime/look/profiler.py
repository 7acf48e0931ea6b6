"""A rank is profiled for some seconds: where its time goes, or what becomes of its accelerator's memory.

*Time*: torch's own trace, and samples of the main thread's stack. torch's profiler sees the thread that
starts it, which has to be the main thread (``in_main``). Ending a trace takes it some 20 µs per event, so
events are bounded: a short trace that is thrown away shows how many there are per second. Stacks would be
most of the events, which is why they are sampled here instead.

*Memory*: torch's allocator records allocations and frees, and at the end takes a snapshot.

The result is two files in the node's folder: the trace or the snapshot, and then the report on it.

Python calls ``act`` in the main thread (``Py_AddPendingCall``), but not while that thread waits in C: a call
that isn't made in time is withdrawn, and isn't made later. Nor is it made within a call to torch, such as a
backward pass or an operation that is written in Python: torch's profiler is a state of the thread, which the
end of a backward pass resets, and an operation writes its end to where its begin was recorded, which the
profiler has freed by then. But it is made where torch only asks what overrides an operation: with
``torch.set_default_device`` nearly all of a rank's time may be in such calls, and no operation has begun yet.

When an operation that is written in Python waits, as DTensor's do, Python makes pending calls at the end of
each wait, still within the operation, and a call added later would be made only after the next wait. So each
call adds the next one at once, but only for some milliseconds: during these the rank hardly moves.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import math
import os
import pickle
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Callable, Deque, Dict, Generic, List, Optional, Tuple, TypeVar

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.look import recorder

T = TypeVar("T")

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05  # between two pending calls
# How long calls follow each other at once while the main thread is within torch, and the rest after that.
_AGAIN_S, _RESTS_S = 0.02, 0.06
_DEEPEST = 4096  # native frames; a deeper stack counts as within torch
_TORCHS, _PYTHONS = (b"libtorch", b"libc10"), b"libtorch_python"
_ASKS = b"handle_torch_function"
AWAY = "its main thread hasn't come back to Python"


_Symbols = Dict[Optional[int], Tuple[bytes, bytes]]  # the file and the function at an address


class AwayError(Exception):
    """The main thread didn't call the function in time."""


class _Turn(Generic[T]):
    """A function that the main thread is to call."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self.done = threading.Event()
        self.result: Any = None
        self.trouble: Optional[BaseException] = None
        self.again = 0.0  # until when calls follow each other at once; 0 before the first
        self.within: Optional[Tuple[int, int]] = None  # where Python was when it was found within torch
        self.symbols: _Symbols = {}

    def take(self) -> None:
        try:
            self.result = self._act()
        except BaseException as exc:
            self.trouble = exc
        finally:
            self.done.set()


_turns: Deque[_Turn[Any]] = deque()


def in_main(act: Callable[[], T], seconds: Optional[float] = None) -> T:
    """Return what ``act`` returns in the main thread; raise what it raises.

    Raises ``AwayError`` if the main thread doesn't call it within ``seconds``: then it is never called.
    """
    turn, pause = _Turn(act), _SHORTEST_PAUSE_S
    until = None if seconds is None else time.monotonic() + seconds
    _turns.append(turn)
    while not turn.done.is_set():
        if until is not None and time.monotonic() > until:
            try:
                _turns.remove(turn)
            except ValueError:  # it is being called
                turn.done.wait()
                break
            out_of = "" if turn.within is None else " from torch's operations"
            raise AwayError("%s%s for %d s" % (AWAY, out_of, seconds or 0))
        if time.monotonic() > turn.again + _RESTS_S:
            turn.again = 0.0
        ctypes.pythonapi.Py_AddPendingCall(_called, None)
        turn.done.wait(pause)
        pause = min(_LONGEST_PAUSE_S, 2 * pause)
    if turn.trouble is not None and not isinstance(turn.trouble, Exception):
        # A signal handler raised it in the main thread, where ``take`` caught it: raise it there again.
        main, kind = threading.main_thread().ident or 0, type(turn.trouble)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(kind))
        raise AwayError("it was interrupted")
    if turn.trouble is not None:
        raise turn.trouble
    result: T = turn.result
    return result


def _take_turn(_: Any) -> int:
    if _turns:
        turn = _turns[0]
        frame = sys._getframe(1)
        at = id(frame), frame.f_lasti
        if at != turn.within and not _within_torch(turn.symbols):
            with suppress(ValueError):  # it was withdrawn meanwhile
                _turns.remove(turn)
                turn.take()
            return 0
        turn.within = at  # Python makes several calls between two bytecodes
        turn.again = turn.again or time.monotonic() + _AGAIN_S
        if time.monotonic() < turn.again:
            ctypes.pythonapi.Py_AddPendingCall(_called, None)
    return 0


def _within_torch(symbols: _Symbols) -> bool:
    """Whether this thread is in a call to torch; ``symbols`` is a cache, as finding one takes up to 1 ms."""
    libc, symbol = ctypes.CDLL(None), _Symbol()
    addresses = (ctypes.c_void_p * _DEEPEST)()
    depth = libc.backtrace(addresses, _DEEPEST)
    for address in addresses[:depth]:
        if address not in symbols:
            is_known = libc.dladdr(ctypes.c_void_p(address), ctypes.byref(symbol))
            entry = (os.path.basename(symbol.file or b""), symbol.name or b"") if is_known else (b"", b"")
            symbols[address] = entry
    if depth == _DEEPEST:
        return True
    frames = [symbols[address] for address in addresses[:depth]]
    for torchs, call in groupby(frames, lambda frame: frame[0].startswith(_TORCHS)):
        files, names = zip(*call)
        # A call that only asks what overrides an operation hasn't begun it.
        asks = any(_ASKS in name for name in names) and all(file.startswith(_PYTHONS) for file in files)
        if torchs and not asks:
            return True
    return False


_called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_take_turn)


class _Symbol(ctypes.Structure):
    """``Dl_info``, dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


TOLD, TRACE = "told", "trace"  # the report, and the trace or snapshot
LONGEST_S = 60.0
TURN_S = 5.0  # for the main thread to call a function
MEMORY_EVENTS = 20000  # the newest: each takes a rank some kilobytes
_TRIAL_S = 0.1
_EVENTS = 25000  # of a trace
_SHORTEST_S = 0.05
_EVERY_S = 0.005  # between two looks at the main thread
_DEPTH = 256  # innermost frames of a stack
_HELD_UP_S = 1.0  # at most, for which user code that starts torch's profiler waits for gloo's threads
_THEIRS = "its own code is profiling it"
_LOGS, _QUIET = "KINETO_LOG_LEVEL", "99"

_Stack = Tuple[Tuple[str, int, str], ...]


def profile_path(folder: str, name: str, rank: int) -> str:
    """Return the path of a file that a rank writes."""
    return os.path.join(folder, "profile-%d.%s" % (rank, name))


class RefusedError(Exception):
    """There is no profile; the text says why."""


class Profiler:
    """Profiles this process, once at a time."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._result: Any = None
        self._restore: Optional[Callable[[], None]] = None  # while ours runs

    def start(self, folder: str, rank: int, seconds: float, *, memory: bool) -> str:
        """Begin a profile in a thread, which writes it to ``folder``; return why it can't begin, else ""."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "autograd"):
            return "it hasn't imported torch yet"
        # A torch without CUDA has this, too; any other question would initialize CUDA.
        if memory and not torch.cuda.is_initialized():
            return "it uses no CUDA device, and torch records the memory of no other"
        if not self._busy.acquire(blocking=False):
            return "it is being profiled already"
        _thread.start_new_thread(self._run, (folder, rank, seconds, _memory if memory else self._time))
        return ""

    def forget(self) -> None:
        """End a profile in a process that was forked meanwhile: it would keep a kilobyte per operation."""
        if self._restore is not None:
            # Ending torch's profiler takes locks that other threads may have held at the fork.
            self._record_no_more()
            self._restore()
            self._restore = None

    def _run(
        self, folder: str, rank: int, seconds: float, take: Callable[[str, float], Dict[str, Any]]
    ) -> None:
        try:
            path, report = profile_path(folder, TRACE, rank), profile_path(folder, TOLD, rank)
            try:
                record = take(path, seconds)
            except Exception as exc:
                record = {"trouble": " ".join(str(exc).split())[:300] or type(exc).__name__}
            with open(report + ".part", "w") as file:
                json.dump(record, file)
            os.rename(report + ".part", report)
        except BaseException:  # a full disk, or the end of the rank: it mustn't affect the job
            pass
        finally:
            self._busy.release()

    def _time(self, path: str, seconds: float) -> Dict[str, Any]:
        with recorder.Ranges(sys.modules["torch"].autograd.profiler.record_function) as ranges:
            self._begin()
            time.sleep(min(_TRIAL_S, seconds))
            events = len(self._end().events())
            most = max(_SHORTEST_S, _EVENTS * min(_TRIAL_S, seconds) / max(1, events))
            began = self._begin()
            gloos = recorder.GloosCalls()
            looks, stacks = self._watched(min(seconds, most), gloos)
            ended = time.time_ns()
            self._end().save(path)
            pid, devices = os.getpid(), sys.modules["torch"].cuda.is_initialized()
            return {
                "pid": pid,
                "began": began,
                "ended": ended,
                "asked": seconds,
                "looks": looks,
                "stacks": stacks,
                "ranges": ranges.since(began),
                "collectives": gloos.seen(),
                "devices": devices,
            }

    def _begin(self) -> int:
        """Have the main thread start torch's profiler; return the time when it did."""

        def begin() -> int:
            import torch
            from torch.autograd import ProfilerState
            from torch.profiler import ProfilerActivity

            if not all(detail.get() for detail in torch_versions.PROFILER):
                raise RefusedError("the profiler of torch %s isn't supported" % torch.__version__)
            if torch_versions.PROFILER_RUNS.get()():
                raise RefusedError(_THEIRS)
            none = (False,) * 5  # no shapes, memory, stacks, FLOPs, modules
            config = torch_versions.PROFILER_CONFIG.get()(
                ProfilerState.KINETO, *none, torch_versions.PROFILER_EXPERIMENTAL.get()()
            )
            activities, scopes = {ProfilerActivity.CPU}, torch_versions.RECORD_SCOPE.get()
            if torch.cuda.is_initialized():
                activities.add(ProfilerActivity.CUDA)
            self._result = None
            # This profile ends when the user's code starts torch's profiler: there can be only one.
            prepare = torch_versions.PREPARE.get()

            def stop_and_prepare(*args: Any, **named: Any) -> Any:
                if threading.current_thread() is threading.main_thread():
                    self._record_no_more()
                    self._wait_for_gloo(_HELD_UP_S)
                    self._stop()
                    self._result = RefusedError(_THEIRS)
                return prepare(*args, **named)

            torch_versions.PREPARE.replace(stop_and_prepare)
            self._restore = partial(torch_versions.PREPARE.replace, prepare)
            before = os.environ.get(_LOGS)
            os.environ.setdefault(_LOGS, _QUIET)  # otherwise it prints to the rank's log that it starts
            try:
                torch_versions.PREPARE_PROFILER.get()(config, activities)
                torch_versions.ENABLE_PROFILER.get()(
                    config, activities, {scopes.FUNCTION, scopes.BACKWARD_FUNCTION}
                )
            except BaseException:
                self._stop()
                raise
            finally:
                if before is None:
                    del os.environ[_LOGS]
            return time.time_ns()

        return in_main(begin, TURN_S)

    def _end(self) -> Any:
        """Have the main thread end torch's profiler, however long that takes; return the result."""
        self._until_done(self._record_no_more)
        self._wait_for_gloo(math.inf)
        self._until_done(self._stop)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def _until_done(self, act: Callable[[], Any]) -> None:
        while self._restore is not None:
            with suppress(AwayError):  # a signal handler interrupted it
                in_main(act)  # without a limit: the profiler can't be left on
                return

    def _record_no_more(self) -> None:
        torch_versions.RECORD_FUNCTIONS.get()(False)

    def _wait_for_gloo(self, seconds: float) -> None:
        """Wait up to ``seconds`` for gloo's threads to finish the collectives that are still recorded."""
        now, until = time.time_ns(), time.monotonic() + seconds
        while self._restore is not None and recorder.GloosCalls.any_before(now) and time.monotonic() < until:
            time.sleep(_EVERY_S)

    def _stop(self) -> None:
        if self._restore is not None:
            try:
                self._result = torch_versions.DISABLE_PROFILER.get()()
            except Exception as exc:
                self._result = exc
            torch_versions.RECORD_FUNCTIONS.get()(True)
            self._restore()
            self._restore = None

    def _watched(self, seconds: float, gloos: recorder.GloosCalls) -> "tuple[list[list[int]], list[_Stack]]":
        """Look at the main thread for ``seconds``, or until the user's code starts torch's profiler.

        Return the looks (the time and the thread's CPU time, both in ns, the number of its stack, and whether
        a collective of gloo is under way) and the stacks, outermost frame first.
        """
        main = threading.main_thread().ident or 0
        clock = time.pthread_getcpuclockid(main)
        numbers: Dict[_Stack, int] = {}
        looks: List[List[int]] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._restore is not None:
            time.sleep(_EVERY_S)
            # Release the user's frames on return: their objects mustn't be finalized in this thread.
            frame = sys._current_frames().get(main)
            stack: List[Tuple[str, int, str]] = []
            while frame is not None and len(stack) < _DEPTH:
                stack.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
                frame = frame.f_back
            number = numbers.setdefault(tuple(stack[::-1]), len(numbers))
            at = time.time_ns()
            looks.append([at, time.clock_gettime_ns(clock), number, int(gloos.look(at))])
        return looks, list(numbers)


def _memory(path: str, seconds: float) -> Dict[str, Any]:
    """Have torch record for ``seconds`` what its allocator does; write torch's own snapshot."""
    import torch

    recorded, record = torch_versions.MEMORY_RECORDED.get(), torch_versions.RECORD_MEMORY.get()
    snapshot = torch_versions.MEMORY_SNAPSHOT.get()
    if recorded is None or record is None or snapshot is None:
        raise RefusedError("torch %s has no record of its memory" % torch.__version__)
    if recorded():
        # There is only one history: ending it here would end the user's, too, which may also be of any size.
        raise RefusedError("its own code records its accelerator's memory")
    clear = {"clear_history": True} if torch_versions.CLEAR_MEMORY.get() else {}
    record("all", stacks="python", max_entries=MEMORY_EVENTS, **clear)
    try:
        time.sleep(seconds)
        history = snapshot()
    finally:
        record(None, **clear)
    with open(path, "wb") as file:
        pickle.dump(history, file)
    usage: Dict[int, List[int]] = {}
    for segment in history["segments"]:
        of = usage.setdefault(segment["device"], [0, 0])
        of[0] += segment["total_size"]
        of[1] += segment["allocated_size"]
    events = max(map(len, history["device_traces"]), default=0)
    return {"asked": seconds, "held": [[device, *sizes] for device, sizes in usage.items()], "events": events}
