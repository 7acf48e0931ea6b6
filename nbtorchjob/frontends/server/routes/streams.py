"""A followed job as messages to a page: read on our own event loop, sent on the server's.

What arrives while the page is busy is sent together, and no more is read than the page accepts: at most
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
from nbtorchjob.state.facts.events import Event, LogChunk

Message: TypeAlias = bytes | dict[str, Any]  # a part of a log, or JSON

PIECE_BYTES = 1 << 18  # of a log in one message, without its head
_ROOM_BYTES = 1 << 20  # of logs that wait to be taken
_HEAD_BYTES = 512  # of memory for a message, besides its text
_PACE_S = 0.5  # between two records
_QUIET_S = 0.3  # without old log bytes, after which all of them count as sent
_NEW_S = 1.0  # by which new bytes may seem old: hosts' clocks differ
_FIRST_S = 0.1  # for facts that are there already to arrive before the first record
BEAT_S = 30.0  # between two messages, at most: a page sees neither pings nor that its server is gone


async def messages(
    info: JobInfo,
    events: AsyncGenerator[Event, None],
    ranks: Collection[int] | None,
    show: Callable[[JobState], dict[str, Any]],
) -> AsyncGenerator[Message, None]:
    """Yield the state by ``show``, now and as it changes, and the logs of these ranks (None: all).

    A part of a log is a head, a newline and bytes. The head is ``RANK.ROUND.OFFSET``, with the offset of the
    first of these bytes, and if it is known when they were written, a space and ``BYTES:TIME,…``: that many
    bytes were written at that time, in milliseconds since the epoch for the first item, and since the
    previous item for later ones.

    ``{"loaded": True}`` follows once everything written before this call was yielded, unless the end comes
    first: ``{"end": True}`` is the last message. ``{}`` only says that there is nothing new. Raises what
    ``events`` raises, after everything before it was yielded.
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
    log: tuple[int, int]
    start: int
    end: int  # the offset just after its last byte
    times: list[tuple[int, float]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def message(self) -> bytes:
        """Return the piece as it is sent."""
        head = b"%d.%d.%d" % (*self.log, self.start)
        at, before = self.start, 0
        for number, (upto, time_) in enumerate(self.times):
            now = round(1000 * time_)
            head += b"%c%d:%d" % (b"," if number else b" ", upto - at, now - before)
            at, before = upto, now
        return b"".join([head, b"\n", *self.parts])


class _Pieces:
    """Bytes of logs that wait to be sent; adjoining ones go into one message."""

    def __init__(self) -> None:
        self._all: list[_Piece] = []
        self._newest: dict[tuple[int, int], _Piece] = {}  # by rank and round
        self.size = 0

    def add(self, chunk: LogChunk) -> None:
        """Add bytes of a log."""
        for at in range(0, len(chunk.data), PIECE_BYTES):
            data = chunk.data[at : at + PIECE_BYTES]
            log = (chunk.rank, chunk.round)
            offset = chunk.offset + at
            size = len(data)
            piece = self._newest.get(log)
            if piece is None or piece.end != offset or piece.size + size > PIECE_BYTES:
                piece = self._newest[log] = _Piece(log, offset, offset)
                self._all.append(piece)
                self.size += _HEAD_BYTES
            piece.parts.append(data)
            start, piece.end = piece.end, piece.end + len(data)
            for upto, time_ in chunk.times:
                if upto > start:
                    piece.times.append((min(upto, piece.end), time_))
                if upto >= piece.end:
                    break
            piece.size += len(data)
        self.size += len(chunk.data)

    def take(self) -> list[Message]:
        """Return all pieces, and forget them."""
        pieces = self._all
        self._all, self._newest, self.size = [], {}, 0
        return [piece.message() for piece in pieces]


class _Box:
    """The messages that wait to be sent. It is filled and emptied on our own loop."""

    def __init__(
        self, state: JobState, ranks: Collection[int] | None, show: Callable[[JobState], dict[str, Any]]
    ) -> None:
        self._state = state
        self._ranks = ranks
        self._show = show
        self._logs = _Pieces()
        self._first = True  # nothing was shown yet
        self._stale = True  # the state isn't the one that was shown
        self._due = time.monotonic() + _FIRST_S  # when the state may be shown next
        self._opened = time.time()
        self._quiet: float | None = time.monotonic() + _QUIET_S  # when old bytes count as sent; None: they do
        self._over = False
        self._beat = time.monotonic() + BEAT_S
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def fill(self, events: AsyncGenerator[Event, None]) -> None:
        """Add all events, as fast as the messages are sent."""
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
            if self._quiet and not (event.times and event.times[-1][1] >= self._opened - _NEW_S):
                self._quiet = time.monotonic() + _QUIET_S

    async def take(self) -> list[Message]:
        """Wait for messages and return them; none once all were returned."""
        while not (self._over or self._logs.size or self._wait() == 0):
            self._news.clear()
            with suppress(asyncio.TimeoutError):  # the builtin TimeoutError only from Python 3.11 on
                async with loop.timeout(self._wait()):
                    await self._news.wait()
        batch: list[Message] = []
        if self._stale and (self._first or self._over or _left(self._due_state()) == 0):
            self._first = self._stale = False
            self._due = time.monotonic() + _PACE_S
            batch.append(self._show(self._state))
        if self._quiet and self._logs.size >= _ROOM_BYTES:
            self._quiet = time.monotonic() + _QUIET_S  # old bytes may be waiting for room
        batch += self._logs.take()
        if self._quiet and not self._ends and _left(self._quiet) == 0:
            self._quiet = None
            batch.append({"loaded": True})
        if not batch and not self._over:
            batch.append({})
        self._beat = time.monotonic() + BEAT_S
        self._room.set()
        return batch

    @property
    def _ends(self) -> bool:
        """Whether nothing more is to come but what was written already, and then the end."""
        return self._over or self._state.phase.terminal

    def _wait(self) -> float:
        """Return in how many seconds there is something to send, if no event comes before."""
        quiet = None if self._ends else self._quiet
        due = min(at for at in (self._due_state(), quiet, self._beat) if at is not None)
        return max(0.0, due - time.monotonic())

    def _due_state(self) -> float | None:
        return self._due if self._stale else None


def _left(due: float | None) -> float | None:
    """Return how many seconds are left until then."""
    return None if due is None else max(0.0, due - time.monotonic())
