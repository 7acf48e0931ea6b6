"""The end of a process: none outlives its parent, and a node's first failure outlives the node.

That failure goes into the container's termination message, which the API server keeps.
The kubelet keeps only the last 4096 bytes of it, so it is shortened here in a way that it stays JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Tuple

from nbtorchjob.runtime.facts.errors import Error

TERMINATION_LOG = "NBTORCHJOB_TERMINATION_LOG"
MOST = 4096  # bytes
_FAILURES = ("RankFailed", "RankExited", "NodeFailed")


class LastWords:
    """Keeps the termination message up to date: a node may be killed before it knows that it ends."""

    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._first: Optional[Dict[str, Any]] = None

    def note(self, record: Dict[str, Any]) -> None:
        """Take in an event; failures before the workers were started again are dropped."""
        if record.get("event") == "WorkersStarted":
            if self._first is not None:
                self._write(None)
        elif record.get("event") in _FAILURES and (
            self._first is None or _order(record) < _order(self._first)
        ):
            self._write(record)

    def _write(self, record: Optional[Dict[str, Any]]) -> None:
        self._first = record
        if self._path:
            try:
                # In place: the file is itself a mount point.
                with open(self._path, "wb") as file:
                    file.write(cut(record) if record else b"")
            except OSError:  # there is no such file here; the event itself is complete
                self._path = None


def _order(record: Dict[str, Any]) -> Tuple[bool, float]:
    # A rank whose peer died fails too, and may report that first.
    error = record.get("error")
    return error is not None and Error.from_json(error).lost_peer, record.get("time", 0.0)


# Limits for frames (the innermost, without their variables), characters of a message, and exceptions behind
# it, each row smaller.
_CUTS = ((60, 16_384, 8), (16, 2000, 2), (6, 1000, 1), (3, 600, 0), (1, 300, 0))


def cut(record: Dict[str, Any]) -> bytes:
    """Return a failure as JSON of at most ``MOST`` bytes, with as much of its error as fits."""
    for frames, message, causes in _CUTS:
        error = _shortened(record.get("error"), frames, message, causes)
        raw = json.dumps({**record, "error": error} if error else record).encode()
        if len(raw) <= MOST:
            return raw
    return json.dumps({name: record[name] for name in record if name != "error"}).encode()


def _shortened(error: Any, frames: int, message: int, causes: int) -> Any:
    if not error:
        return None
    text = error["message"]
    return {
        **error,
        "frames": [{**frame, "variables": ()} for frame in list(error["frames"])[-frames:]],
        "message": text if len(text) <= message else text[:message] + " […]",
        "notes": error["notes"] if causes else [],
        "cause": _shortened(error["cause"], frames, message, causes - 1) if causes else None,
    }


_TRACKER, _MANAGER = b"multiprocessing.resource_tracker", b"torch_shm_manager"
_CLEANING_S, _LOOK_S = 2.0, 0.002
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_kept: List[Any] = []  # callbacks that C calls: they mustn't be garbage-collected


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere nothing happens).

    torch requests SIGINT for that, which a rank that waits in a collective never handles.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make orphaned descendants this process's children, as PID 1 gets them anyway (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def before_abort(act: Callable[[], None]) -> None:
    """Have ``act`` called when an exception in C++ code ends this process, as in gloo's threads.

    A signal handler couldn't do that: the aborting thread may hold malloc's lock. If no C++ code is loaded,
    nothing happens.
    """
    try:
        library = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        set_terminate = library._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):
        return
    handler = ctypes.CFUNCTYPE(None)
    set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    before: List[Any] = []

    def end() -> None:
        try:
            act()
        finally:
            before[0]()  # prints the exception, and aborts

    _kept.append(handler(end))
    before.append(handler(set_terminate(ctypes.cast(_kept[-1], ctypes.c_void_p))))


def _prctl(option: int, value: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value)


def kill_children() -> None:
    """End every child of this process, and the orphans that it adopts by that, until there are none.

    The processes that remove leftover shared memory end by themselves: Python's tracker when its users have,
    torch's manager two seconds later, for which this doesn't wait.
    """
    until = time.monotonic() + _CLEANING_S
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        left = [pid for pid in children() if not _is(_MANAGER, pid)]
        if not left:  # or there is no /proc
            return
        users = [pid for pid in left if not _is(_TRACKER, pid)]
        if not users and time.monotonic() < until:
            time.sleep(_LOOK_S)
            continue
        for act in (lambda pid: os.kill(pid, signal.SIGKILL), lambda pid: os.waitpid(pid, 0)):
            for pid in users or left:
                with suppress(ProcessLookupError, ChildProcessError):
                    act(pid)


def cleans(pid: int) -> bool:
    """Whether a process removes the shared memory that others leave behind."""
    return _is(_TRACKER, pid) or _is(_MANAGER, pid)


def _is(program: bytes, pid: int) -> bool:
    with suppress(OSError), open("/proc/%d/cmdline" % pid, "rb") as file:
        return program in file.read()
    return False


def children() -> List[int]:
    """Return the ids of this process's children, including adopted orphans (Linux)."""
    pids: List[int] = []
    try:
        # The kernel lists them in 0.1 ms, unless it lacks that list (CONFIG_PROC_CHILDREN).
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % thread) as file:
                pids += map(int, file.read().split())
    except OSError:  # no such list, or a thread that ended meanwhile
        pids = []
    if pids:
        return pids
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            try:
                with open("/proc/%s/stat" % entry, errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last with hidepid=1
                continue
            if int(fields[1]) == os.getpid():
                pids.append(int(entry))
    return pids
