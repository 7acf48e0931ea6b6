"""No process outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import List

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere nothing happens).

    torch asks for SIGINT there, which a rank that waits in a collective never gets to see.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Have orphaned descendants become this process's children, as those of PID 1 do anyway (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value)


def kill_children() -> None:
    """End every child of this process, and the orphans that come to it by that, until there are none."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        left = children()
        if not left:  # no /proc to look in
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def children() -> List[int]:
    """Return the ids of this process's children, orphans that it was given included (Linux)."""
    return _listed() or _searched()


def _listed() -> List[int]:
    """Return them as the kernel lists them, in 0.1 ms; it may know no such list (CONFIG_PROC_CHILDREN)."""
    found: List[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % thread) as file:
                found += map(int, file.read().split())
    except OSError:  # that, or a thread that ended meanwhile
        return []
    return found


def _searched() -> List[int]:
    """Return them by a look at all processes of the machine."""
    found: List[int] = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            try:
                with open("/proc/%s/stat" % entry) as file:
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == os.getpid():
                found.append(int(entry))
    return found
