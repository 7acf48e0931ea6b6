"""What a node sees of a rank that can't answer: from /proc, and from faulthandler.

If something in C holds Python's lock, a signal to one thread has faulthandler write all stacks without the
lock. That may crash a process that runs Python meanwhile, so the node first makes sure that none of its
threads does.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from typing import Dict, List, Optional, Tuple

from nbtorchjob.runtime.facts.errors import Frame, users_frames
from nbtorchjob.runtime.facts.samples import MAX_THREADS, Thread

# Code and libraries use SIGUSR1, SIGUSR2 and, counting up from SIGRTMIN, signals for timers and for I/O;
# valgrind uses the last one. ``signal.getsignal`` doesn't show a handler that faulthandler's sigaction sets.
SIGNAL = signal.SIGRTMAX - 2

_CPU_S = 0.1  # of running, in which Python would have released its lock many times: every 5 ms (3.14)
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk",
    "T": "stopped",
    "t": "traced",
    "Z": "dead",
}
_MAX_CHILDREN = 64


def state(pid: int, thread: int = 0) -> str:
    """Return the letter for the state of a process, or of one of its threads; "" if it is gone."""
    fields = _stat("/proc/%d%s/stat" % (pid, "/task/%d" % thread if thread else ""))
    return fields[0] if fields else ""


def is_stopped(pid: int) -> bool:
    """Whether nothing in the process can run, because of SIGSTOP or a debugger."""
    return state(pid) in ("T", "t")


def is_gone(pid: int) -> bool:
    """Whether the process has ended."""
    return state(pid) in ("", "Z", "X")


def seconds(pid: int) -> Dict[int, float]:
    """Return how long each thread of a process has run so far."""
    threads = {}
    for thread in _tasks(pid):
        fields = _stat("/proc/%d/task/%d/stat" % (pid, thread))
        if fields:
            threads[thread] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return threads


def _stat(path: str) -> List[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _tasks(pid: int) -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc/%d/task" % pid)]
    except OSError:
        return []


def holds_still(pid: int, waits: int, before: Dict[int, float]) -> bool:
    """Whether no thread of a process runs Python, while its thread ``waits`` waits for Python's lock.

    ``before`` is how long its threads had run at some time after the wait began. A thread that runs Python
    releases the lock after a while: one that has run for longer is in C, and so is one that sleeps. But on a
    busy machine a thread may just not have run yet.
    """
    now = seconds(pid)
    wants = [thread for thread in now if thread != waits and state(pid, thread) == "R"]
    return all(now[thread] - before.get(thread, now[thread]) >= _CPU_S for thread in wants)


def have_written(pid: int, thread: int, fd: int, inode: int) -> bool:
    """Have faulthandler write to the file ``fd`` of a process; return False if it can't.

    The user's code may have closed the file, or have reset the signal, which would then end the process.
    """
    try:
        if os.stat("/proc/%d/fd/%d" % (pid, fd)).st_ino != inode:
            return False
        with open("/proc/%d/status" % pid, errors="replace") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    if not int(caught, 16) >> (SIGNAL - 1) & 1:
        return False
    # To that thread, so that no system call of another one is interrupted. Python doesn't expose tgkill.
    tgkill = getattr(ctypes.CDLL(None, use_errno=True), "tgkill", None)
    return tgkill is not None and tgkill(pid, thread, int(SIGNAL)) == 0


def children(pid: int) -> str:
    """Return in words the states of a process's children; "" if it has none."""
    counts: Dict[Tuple[str, str], int] = {}
    pids: List[int] = []
    for thread in _tasks(pid):
        try:
            with open("/proc/%d/task/%d/children" % (pid, thread)) as file:
                pids += map(int, file.read().split())
        except OSError:  # a kernel without it, or the thread has ended
            continue
    for child in pids[:_MAX_CHILDREN]:
        try:
            with open("/proc/%d/comm" % child, errors="replace") as file:
                name = file.read().strip()
        except OSError:
            continue
        word = _STATES.get(state(child), "there")
        counts[name, word] = counts.get((name, word), 0) + 1
    texts = ["%d %s %s" % (number, name, word) for (name, word), number in counts.items()]
    return "child processes: %s" % ", ".join(texts) if texts else ""


_THREAD = re.compile(r"^(?:Thread|Current thread) 0x([0-9a-f]+) (?:\[(.*)\] )?\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def stacks(text: str, main: int, own: int) -> "tuple[Thread, ...]":
    """Return the threads that faulthandler wrote (CPython 3.10 to 3.14), main first.

    ``main`` is the identity of the main thread; ``own`` that of the thread that wrote, which is left out.
    """
    threads: Dict[int, List[Frame]] = {}
    frames: Optional[List[Frame]] = None
    for line in text.splitlines():
        begins, frame = _THREAD.match(line), _FRAME.match(line)
        if begins:
            frames = threads.setdefault(int(begins.group(1), 16), [])
        elif frame and frames is not None:
            filename, number, name = frame.groups()
            place = Frame(_plain(filename), int(number) if number.isdigit() else 0, _plain(name))
            frames.insert(0, place)
    threads.pop(own, None)
    idents = sorted(threads, key=lambda ident: ident != main)[:MAX_THREADS]
    names = ("main" if ident == main else "thread" for ident in idents)
    return tuple(Thread(name, users_frames(threads[ident])) for name, ident in zip(names, idents))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int("".join(filter(None, match.groups())), 16)), text)
