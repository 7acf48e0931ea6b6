"""Work that the notebook's main thread mustn't wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Latest:
    """Does one piece of work at a time, in a thread; of the waiting ones, only the newest is done.

    ``then`` receives the work's result, in the same thread. It is a thread of our own, not a pool's: Python
    waits for those at exit, and a cluster that doesn't answer may take a minute.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Callable[[], None] | None = None
        self._busy = False

    def ask(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Schedule ``work``; it is done unless something newer comes first."""
        with self._lock:
            self._waiting = lambda: then(work())
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._run, name="nbtorchjob-panel", daemon=True).start()

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                job()
        except BaseException:
            self._busy = False
            raise

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            job, self._waiting = self._waiting, None
            self._busy = job is not None
            return job
