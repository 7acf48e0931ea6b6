"""Repeating something while somebody wants it, and doing it at once when there is a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Poller:
    """Does ``work`` at an interval as long as it is ``wanted``, never twice at a time."""

    def __init__(self, work: Callable[[], Awaitable[None]], every: float, wanted: Callable[[], bool]) -> None:
        self._work, self._every, self._wanted = work, every, wanted
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._ended = asyncio.Event()  # another one each time
        self._stopped = False
        self.fresh = False  # whether work that began after the last reason has ended

    def begin(self) -> None:
        """Start, unless it is running."""
        if not self._going:
            self._ended, self._stopped = asyncio.Event(), False
            self._task = asyncio.get_running_loop().create_task(self._run())

    def again(self) -> None:
        """Do the work at once, or once more as soon as it is done."""
        self.fresh = False
        self._again.set()

    async def caught_up(self) -> None:
        """Wait until work that began after the last reason has ended."""
        while self._going and not self.fresh:
            await self._ended.wait()

    async def stop(self) -> None:
        """Stop, even in the middle of the work."""
        if self._task is not None:
            # Until Python 3.12 ``wait_for`` loses a cancellation that comes when what it waits for has ended.
            self._stopped = True
            self._again.set()
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def _going(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        try:
            while self._wanted() and not self._stopped:
                self._again.clear()
                await self._work()
                self.fresh = not self._again.is_set()
                self._ended.set()
                self._ended = asyncio.Event()
                alarm = asyncio.get_running_loop().call_later(self._every, self._again.set)
                await self._again.wait()
                alarm.cancel()
        finally:
            self.fresh = False
            self._ended.set()
