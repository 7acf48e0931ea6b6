"""What git says of a folder: which commit it has, and what was changed since.

Git may be missing, slow or another program: it is asked for a bounded time and a bounded answer, beside what
goes on, and only to look.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from nbtorchjob.frozen import FrozenDataclass

WITHIN_S = 5.0
PAUSE_S = 0.5
_LEAST = 19  # of priorities
_END_S = 1.0  # for what was killed to be gone
_MOST_BYTES = 1 << 20  # of an answer: the names of changed files
_MOST_NAMES = 20
_MOST_NAME = 200  # characters
_ASKED = (
    # What a look would else write (the index), and run (a hook).
    *("--no-optional-locks", "-c", "core.fsmonitor=false"),
    *("status", "--porcelain=v2", "--branch", "-z", "--ignore-submodules=all"),
)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_FIELDS = {"1": 8, "2": 9, "u": 10, "?": 1}  # in front of a path


class Checkout(FrozenDataclass):
    """A commit, its branch ("" for none), some of the files that differ from it, and how many more do."""

    commit: str
    branch: str
    changed: tuple[str, ...] = ()
    more: int = 0


class Looker:
    """Looks at folders in a thread of its own, one after the other; one look serves all who wait for it.

    It waits for ``pause`` seconds first: beside a job that starts, a look would cost that some milliseconds.
    """

    def __init__(self, within: float = WITHIN_S, pause: float = PAUSE_S) -> None:
        self._within = within
        self._pause = pause
        self._lock = threading.Lock()
        self._waiting: dict[Path, list[Callable[[Checkout], object]]] = {}
        self._working = False
        self._slow: set[Path] = set()  # where git didn't answer: it would keep a process from its end

    def look(self, folder: Path, tell: Callable[[Checkout], object]) -> None:
        """Have ``tell`` told what is found, soon; not at all where there is nothing to be found."""
        if folder in self._slow or not _is_checkout(folder):
            return
        with self._lock:
            self._waiting.setdefault(folder, []).append(tell)
            if self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name="nbtorchjob-git").start()

    def _work(self) -> None:
        for folder, waiting in self._next():
            began = time.monotonic()
            found = checkout(folder, self._within)
            if time.monotonic() - began >= self._within:
                self._slow.add(folder)
            if found is not None:
                for tell in waiting:
                    with suppress(Exception):  # a job that was deleted; the others are told
                        tell(found)

    def _next(self) -> Iterator[tuple[Path, list[Callable[[Checkout], object]]]]:
        while True:
            threading.main_thread().join(self._pause)  # a process that ends needn't wait
            with self._lock:
                if not self._waiting:
                    self._working = False
                    return
                found = self._waiting.popitem()
            yield found


looker = Looker()  # of this process


def _is_checkout(folder: Path) -> bool:
    return any(os.path.lexists(f"{each}/.git") for each in (folder, *folder.parents))


def checkout(folder: Path, within: float = WITHIN_S) -> Checkout | None:
    """Return what git says of a folder; None where it says nothing that makes sense, in time."""
    # Not what a folder on a relative path has: that might be the notebook's.
    path = os.pathsep.join(each for each in os.get_exec_path() if os.path.isabs(each))
    program = shutil.which("git", path=path)
    if program is None:
        return None
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "PATH": path}
    try:
        process = subprocess.Popen(
            [program, *_ASKED],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    assert process.stdout is not None
    with suppress(OSError):  # what the look is beside, the start of a job, goes first
        os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST)
    until = time.monotonic() + within
    with process.stdout as stdout, suppress(subprocess.TimeoutExpired):
        data = _read(stdout, until)
        if data is not None and process.wait(max(0.0, until - time.monotonic())) == 0:
            return parsed(data)
    with suppress(OSError, subprocess.TimeoutExpired):  # all that it has started, too
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END_S)
    return None


def _read(pipe: IO[bytes], until: float) -> bytes | None:
    """Return all that comes until the end; None if that is too late, or too much."""
    found, poll = bytearray(), select.poll()
    poll.register(pipe, select.POLLIN)
    while len(found) <= _MOST_BYTES:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        part = os.read(pipe.fileno(), 1 << 16)
        if not part:
            return bytes(found)
        found += part
    return None


def parsed(answer: bytes) -> Checkout | None:
    """Return what git's answer says (``git status --porcelain=v2 -z``); None for anything else."""
    head: dict[str, str] = {}
    changed: list[str] = []
    lines = iter(answer.decode(errors="replace").split("\0"))
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            head[name] = value
        elif kind in _FIELDS:
            changed.append(rest.split(" ", _FIELDS[kind] - 1)[-1])
            if kind == "2":  # and what it was called
                next(lines, None)
        elif line:
            return None
    commit, branch = head.get("branch.oid", ""), head.get("branch.head", "")
    if not _COMMIT.fullmatch(commit):  # one that has no commit yet has nothing to go back to
        return None
    shown = tuple(name[:_MOST_NAME] for name in sorted(changed)[:_MOST_NAMES])
    branch = "" if branch == "(detached)" else branch[:_MOST_NAME]
    return Checkout(commit, branch, shown, len(changed) - len(shown))
