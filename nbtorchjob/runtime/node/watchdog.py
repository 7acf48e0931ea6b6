"""Ends an agent whose main thread is stuck: a thread can still do so when nothing else can."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

LIMIT_S = 10.0  # from the death of all ranks to the agent's end, if torch doesn't notice it


class Watchdog:
    """Calls ``stuck`` when torch polls ranks that are all dead, and doesn't return from the call.

    torch waits without limit for a lock that a dead rank held, or for its value.
    ``every_second`` is called from the same thread, which waits for nothing.
    """

    def __init__(self, stuck: Callable[[], None], every_second: Callable[[], None]) -> None:
        self._stuck = stuck
        self._every_second = every_second
        self._call: Any = None  # what torch polls in the current call
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def over(self, pids: Sequence[int]) -> Iterator[None]:
        """Watch over a call of torch's that polls the processes ``pids``."""
        self._call = list(pids)
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        dead, seconds = None, 0.0
        while True:
            time.sleep(1)
            self._every_second()
            call = self._call
            if not call or any(alive(pid) for pid in call):
                dead, seconds = None, 0.0
            else:
                dead, seconds = call, seconds + 1 if call is dead else 0.0
            if seconds >= LIMIT_S:
                self._stuck()
                return


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        os.kill(pid, 0)
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # no /proc: only the signal's answer counts
        return True
