"""Something is done in the main thread, between two of its bytecodes, whatever code runs there.

Python itself calls us there (``Py_AddPendingCall``). While the main thread waits in C it doesn't come by:
what isn't done in time is taken back, and doesn't happen later. Nor is it done within a call of torch's, such
as a backward pass or an operation that is written in Python: torch's profiler is a state of the thread, which
the end of a backward pass sets back, and an operation writes its end to where its begin was recorded, which
the profiler has freed by then. But it is done where torch only asks what overrides an operation: with
``torch.set_default_device`` nearly all of a rank's time may be in such calls, and none has begun by then.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from itertools import groupby
from typing import Any, Callable, Deque, Generic, Iterable, Optional, Tuple, TypeVar

T = TypeVar("T")

_SHORTEST_S, _LONGEST_S = 0.001, 0.05  # between two times that Python is told to call us
_DEEPEST = 4096  # native frames; what may lie below them counts as torch's
_TORCHS, _PYTHONS = (b"libtorch", b"libc10"), b"libtorch_python"
_ASKS = b"handle_torch_function"
AWAY = "its main thread hasn't come back to Python"


class AwayError(Exception):
    """The main thread didn't come by."""


class _Turn(Generic[T]):
    """Something that the main thread is to do."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self.done = threading.Event()
        self.result: Any = None
        self.trouble: Optional[BaseException] = None

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

    Raises ``AwayError`` where the main thread doesn't come by within ``seconds``: then it is never done.
    """
    turn, pause = _Turn(act), _SHORTEST_S
    until = None if seconds is None else time.monotonic() + seconds
    _turns.append(turn)
    while not turn.done.is_set():
        if until is not None and time.monotonic() > until:
            try:
                _turns.remove(turn)
            except ValueError:  # it is being done
                turn.done.wait()
                break
            raise AwayError("%s for %d s" % (AWAY, seconds or 0))
        ctypes.pythonapi.Py_AddPendingCall(_called, None)
        turn.done.wait(pause)
        pause = min(_LONGEST_S, 2 * pause)
    if turn.trouble is not None and not isinstance(turn.trouble, Exception):
        # It is the thread's own: a handler's, of a signal that came meanwhile. There it would be lost.
        main, kind = threading.main_thread().ident or 0, type(turn.trouble)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(kind))
        raise AwayError("it was interrupted")
    if turn.trouble is not None:
        raise turn.trouble
    result: T = turn.result
    return result


def _take_turn(_: Any) -> int:
    if _turns and not _within_torch():
        _turns.popleft().take()
    return 0


_called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_take_turn)


class _Symbol(ctypes.Structure):
    """``Dl_info``, dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _within_torch() -> bool:
    """Return whether this thread is in a call of torch's own code, which no frame of Python's tells."""
    libc, found = ctypes.CDLL(None), _Symbol()
    addresses = (ctypes.c_void_p * _DEEPEST)()
    depth = libc.backtrace(addresses, _DEEPEST)
    frames = []
    for address in addresses[:depth]:
        known = libc.dladdr(ctypes.c_void_p(address), ctypes.byref(found))
        frames.append((os.path.basename(found.file or b""), found.name or b"") if known else (b"", b""))
    calls = groupby(frames, lambda frame: frame[0].startswith(_TORCHS))
    return bool(depth == _DEEPEST) or any(torchs and not _asks_first(call) for torchs, call in calls)


def _asks_first(call: Iterable[Tuple[bytes, bytes]]) -> bool:
    """Return whether a call, by the files and names of its frames, has only asked what overrides it."""
    frames = [*call]
    return any(_ASKS in name for _, name in frames) and all(file.startswith(_PYTHONS) for file, _ in frames)
