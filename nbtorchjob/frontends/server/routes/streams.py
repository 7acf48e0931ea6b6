"""A followed job as messages to a page: read on our own event loop, sent on the server's.

What comes while the page is busy travels together, and no more is read than the page accepts: at most
about a megabyte of a log is in memory, however long the log is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nbtorchjob.machine import loop
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.events import Event, LogChunk

Message: TypeAlias = bytes | dict[str, Any]  # a part of a log, or JSON

PIECE_BYTES = 1 << 18  # of a log in one message, without its head
_ROOM_BYTES = 1 << 20  # of logs that wait to be taken
_HEAD_BYTES = 512  # of memory for a message, besides its text
_PACE_S = 0.5  # between two records
_FIRST_S = 0.1  # for the facts that are there already, before the first record


async def messages(
    info: JobInfo,
    events: AsyncGenerator[Event, None],
    ranks: Collection[int] | None,
    show: Callable[[JobState], dict[str, Any]],
) -> AsyncGenerator[Message, None]:
    """Yield the state by ``show``, now and as it changes, and the logs of these ranks (None: all).

    A part of a log is ``RANK.ROUND.OFFSET``, a newline and the bytes from there on. The last message is
    ``{"end": True}``; raises what ``events`` raises once everything before it was yielded.
    """
    box = _Box(JobState(info), ranks, show)
    following = loop.start(box.fill(events))
    try:
        while batch := await asyncio.wrap_future(loop.start(box.take())):
            for message in batch:
                yield message
        await asyncio.wrap_future(following)
        yield {"end": True}
    finally:
        following.cancel()


@dataclass
class _Piece:
    head: bytes
    end: int  # the offset just after its last byte
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class _Pieces:
    """Bytes of logs that wait; those that continue each other go into one message."""

    def __init__(self) -> None:
        self._all: list[_Piece] = []
        self._newest: dict[tuple[int, int], _Piece] = {}  # by rank and round
        self.size = 0

    def add(self, chunk: LogChunk) -> None:
        """Add bytes of a log."""
        for at in range(0, len(chunk.data), PIECE_BYTES):
            data = chunk.data[at : at + PIECE_BYTES]
            piece = self._fitting((chunk.rank, chunk.round), chunk.offset + at, len(data))
            piece.parts.append(data)
            piece.end += len(data)
            piece.size += len(data)
        self.size += len(chunk.data)

    def _fitting(self, log: tuple[int, int], offset: int, size: int) -> _Piece:
        piece = self._newest.get(log)
        if piece is None or piece.end != offset or piece.size + size > PIECE_BYTES:
            piece = self._newest[log] = _Piece(b"%d.%d.%d\n" % (*log, offset), offset)
            self._all.append(piece)
            self.size += _HEAD_BYTES
        return piece

    def take(self) -> list[Message]:
        """Return all pieces, and forget them."""
        pieces = self._all
        self._all, self._newest, self.size = [], {}, 0
        return [b"".join([piece.head, *piece.parts]) for piece in pieces]


class _Box:
    """What waits to be sent. It is filled and emptied on our own loop."""

    def __init__(
        self, state: JobState, ranks: Collection[int] | None, show: Callable[[JobState], dict[str, Any]]
    ) -> None:
        self._state = state
        self._ranks = ranks
        self._show = show
        self._logs = _Pieces()
        self._first = True  # nothing was shown yet
        self._stale = True  # the state isn't the one that was shown
        self._due = time.monotonic() + _FIRST_S  # the earliest time for the next one
        self._over = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def fill(self, events: AsyncGenerator[Event, None]) -> None:
        """Add everything that is reported, as fast as it is sent."""
        try:
            async with aclosing(events):
                async for event in events:
                    self._put(event)
                    self._news.set()
                    while self._logs.size >= _ROOM_BYTES:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._over = True
            self._news.set()

    def _put(self, event: Event) -> None:
        if not isinstance(event, LogChunk):
            self._state, self._stale = apply(self._state, event), True
        elif self._ranks is None or event.rank in self._ranks:
            self._logs.add(event)

    async def take(self) -> list[Message]:
        """Wait for messages and return them; none once all were returned."""
        while not (self._over or self._logs.size or self._wait() == 0):
            self._news.clear()
            with suppress(asyncio.TimeoutError):  # the builtin one only from Python 3.11 on
                await asyncio.wait_for(self._news.wait(), self._wait())
        found = self._shown() if self._first or self._over or self._wait() == 0 else []
        found += self._logs.take()
        self._room.set()
        return found

    def _wait(self) -> float | None:
        """Return in how many seconds the state is to be shown; None while it hasn't changed."""
        return max(0.0, self._due - time.monotonic()) if self._stale else None

    def _shown(self) -> list[Message]:
        if not self._stale:
            return []
        self._first = self._stale = False
        self._due = time.monotonic() + _PACE_S
        return [self._show(self._state)]
