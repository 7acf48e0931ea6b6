"""One follower of a job for all in this process who want to hear what it tells from now on.

To follow a job on a cluster takes watches, a stream for each pod's log, and all that was told before. Who
begins to listen in the middle is spared that: it has the state as of then, and hears what comes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

from nbtorchjob.backends.base import Backend
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.machine import loop
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.events import Event

_MOST = 4096  # events that wait for a listener; one that takes none meanwhile is let go


class Listener:
    """What came since somebody began to listen, for one who takes it."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._listens = False
        self._let_go = False

    async def put(self, event: Event) -> None:
        """Have it hear an event, once it has room for that."""
        while self._listens and len(self._events) >= _MOST and not self._let_go:
            self._room.clear()
            await self._room.wait()
        if len(self._events) >= _MOST:
            self.close()
        if not self._let_go:
            self._events.append(event)
            self._news.set()

    def wake(self) -> None:
        """Have it look whether its feed is over."""
        self._news.set()

    def take(self) -> bool:
        """Be the one who takes what comes; return False where somebody has, or some of it was lost."""
        first, self._listens = not self._listens and not self._let_go, True
        return first

    async def heard(self) -> AsyncGenerator[Event, None]:
        """Yield what it hears, to the end of the job; raises what following it raises."""
        try:
            while True:
                while self._events:
                    yield self._events.popleft()
                    self._room.set()
                if self._feed.over:
                    if self._feed.error is not None:
                        raise self._feed.error
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Hear no more."""
        self._let_go = True
        self._events.clear()
        self._room.set()
        self._feed.leave(self)


class Feed:
    """Follows a job as long as it goes on."""

    def __init__(self, backend: Backend, info: JobInfo) -> None:
        self.info = info
        self.over = False  # whether nothing more comes
        self.error: Exception | None = None  # why
        self._backend = backend
        self._listeners: list[Listener] = []
        self._state = JobState(info)
        with suppress(NBTorchJobError):  # who follows it comes to the same, only later
            self._state = backend.snapshot(info.address)
        self._lock = threading.Lock()
        loop.start(self._follow())

    @property
    def state(self) -> JobState:
        """All that is known of the job now."""
        return self._state

    def listen(self) -> Listener:
        """Listen from now on."""
        with self._lock:
            listener = Listener(self)
            self._listeners.append(listener)
            return listener

    def leave(self, listener: Listener) -> None:
        """Let a listener go."""
        with self._lock, suppress(ValueError):
            self._listeners.remove(listener)

    async def _follow(self) -> None:
        try:
            async for event in self._backend.follow(self.info.address, since={}):
                with self._lock:
                    self._state = apply(self._state, event)
                    listeners = tuple(self._listeners)
                for listener in listeners:
                    await listener.put(event)
        except Exception as exc:  # it is for each listener to raise
            self.error = exc
        finally:
            self.over = True
            for listener in tuple(self._listeners):
                listener.wake()
