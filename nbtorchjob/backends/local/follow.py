"""A job's folder as a stream of events: one file of facts, and one log per rank.

For a card, a log is read no faster than it can be shown: if a rank writes more than the tail holds between
two looks, the middle is skipped. Nothing is lost, as the file has it all. A caller that wants every byte
passes which ones it has already.

The index beside a log says when, and to which stream, its rank wrote; it is read along with the log.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.runtime.store.stream import TIMES, UNMARKED_S, Mark, read_mark
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.logs import TAIL_BYTES

if TYPE_CHECKING:
    from nbtorchjob.machine.loop import Changes
    from nbtorchjob.state.turns import View

_PIECE = 1 << 16  # bytes read at a time


class Marks:
    """Reads the index of one log step by step, in the order of the log's bytes."""

    def __init__(self, job: JobDirectory, log: Path) -> None:
        self._job = job
        self._path = log.with_name(log.name + TIMES)
        self._at = 0
        self._rest = b""
        self._next: list[Mark] = []  # newest first

    def take(self, start: int, end: int) -> list[Mark]:
        """Return the marks of the bytes from ``start`` to ``end``, which follow those of the previous call.

        The last one ends before ``end`` if the index doesn't cover the bytes after it yet.
        """
        marks: list[Mark] = []
        while not (marks and marks[-1].offset == end) and (self._next or self._read()):
            mark = self._next[-1]
            if mark.offset > (marks[-1].offset if marks else start):
                marks.append(mark._replace(offset=min(mark.offset, end)))
            if mark.offset > end:
                break
            self._next.pop()
        return marks

    def _read(self) -> bool:
        """Read on; return whether there are marks to take."""
        while not self._next:
            file = self._job.open_log(self._path)
            if file is None:
                return False
            with file:
                file.seek(self._at)
                data = file.read(_PIECE)
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._next = [mark for mark in map(read_mark, reversed(lines)) if mark is not None]
            if not data:
                break
        return bool(self._next)


PIECE_BYTES = 1 << 18  # of a log, read at a time
_BATCH = 200
_MOST_RANKS, _MOST_ROUNDS = 8192, 1024
_LEAST, _SHORTEST, _LONGEST = 0.0005, 0.004, 0.1  # seconds between two looks
_AT_ONCE = 0.02  # seconds of looks without a rest


class LogFile:
    """Reads what a rank's log gained since the last look.

    That is everything from byte ``offset`` on, with times and streams; without ``offset``, only the tail,
    without them.
    """

    def __init__(
        self, job: JobDirectory, path: Path, rank: int, round_: int, offset: int | None = None
    ) -> None:
        self._job = job
        self._path = path
        self._rank = rank
        self._round = round_
        self._offset = offset or 0
        self.wrote = 0.0  # when the bytes read last were written
        self._marks = None if offset is None else Marks(job, path)
        self._waits: float | None = None  # since when the log has more than its index covers

    def read(self, *, ended: bool) -> ev.LogChunk | None:
        """Return the next bytes, if any; until the rank has ``ended``, only those that the index covers."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        size, self.wrote = stat.st_size, stat.st_mtime
        if size <= self._offset:
            return None
        start = self._offset if self._marks else max(self._offset, size - TAIL_BYTES)
        file = self._job.open_log(self._path)
        if file is None:
            return None
        with file:
            file.seek(start)
            data = file.read(min(size - start, PIECE_BYTES))
        self._offset = end = start + len(data)
        if self._marks is None:
            return ev.LogChunk(self._rank, self._round, start, data)
        marks = self._marks.take(start, end)
        marked = marks[-1].offset if marks else start
        if self._waits is None or marked > start:
            self._waits = time.monotonic()
        if marked < end and not ended and time.monotonic() - self._waits < UNMARKED_S:
            self._offset = end = marked
            data = data[: end - start]
        elif marked < end:
            marks.append(Mark(end, self.wrote, stderr=True))
        if not data:
            return None
        self._waits = None
        starts = [start, *(mark.offset for mark in marks)]
        spans = [(at, mark.offset) for at, mark in zip(starts, marks, strict=False) if mark.stderr]
        times = tuple((mark.offset, mark.time) for mark in marks)
        return ev.LogChunk(self._rank, self._round, start, data, times, tuple(spans))


class Follower:
    """One job's stream; with ``since`` every byte of its logs after those, by (rank, round).

    With a ``turn`` it is a lab's stream from the view's mark on, with only the turn's logs, until the turn is
    over. The caller passes the facts to the view.
    """

    def __init__(
        self,
        job: JobDirectory,
        lost: Callable[[], str | None],
        since: Mapping[tuple[int, int], int] | None = None,
        turn: View | None = None,
        waits: Callable[[], ev.Waiting | None] = lambda: None,
    ) -> None:
        self._job = job
        self._waits = waits  # returns what the job waits for before it begins, if anything
        self._waited: str | None = ""
        self._turn = turn
        self._events = EventFile(job, (turn.mark if turn else None) or 0)
        self._logs: dict[int, dict[int, LogFile]] = {}  # by rank and round
        self._lost = lost  # returns why the job will never be closed, if so
        self._since = since

    async def stream(self) -> AsyncGenerator[ev.Event, None]:
        """Report everything from the job's beginning on, until it is closed or lost."""
        from nbtorchjob.machine.loop import Changes  # late: listing jobs, or looking once, doesn't need it

        changes = Changes(self._job.events)
        try:
            async for event in self._stream(changes):
                yield event
        finally:
            changes.close()

    async def _stream(self, changes: Changes) -> AsyncGenerator[ev.Event, None]:
        import asyncio  # late, as above

        pause, owed, rested = _SHORTEST, 0.0, time.monotonic()
        while True:
            began = time.monotonic()
            owed = max(0.0, owed - (began - rested))
            facts, lost = self._read_on()
            behind = self._events.more
            if (waiting := self._waiting(facts)) is not None:
                yield waiting
            closed = any(isinstance(event, ev.Closed) for event in facts)
            for number, event in enumerate(self._new(facts, to_end=closed or lost is not None)):
                yield event
                behind = behind or _full(event)
                if number % _BATCH == _BATCH - 1:
                    await asyncio.sleep(0)  # other jobs are followed on this loop too
            if closed or self._over:
                return
            if lost is not None:
                yield ev.Lost(time.time(), lost)
                return
            # If notified of facts, it looks for the rest only now and then: looking slows ranks that start.
            pause = _LONGEST if changes.notified else _SHORTEST if facts else min(pause * 1.1, _LONGEST)
            if behind:
                await asyncio.sleep(0)
                continue
            # Facts are read at once, but in the long run for half of the time at most, so that many that come
            # close together are read together. A lab's cell is over before that matters.
            rested = time.monotonic()
            owed += max(_LEAST, rested - began)
            if owed > _AT_ONCE:
                await asyncio.sleep(min(owed - _AT_ONCE, _SHORTEST))
            await changes.wait(pause)

    def _read_on(self) -> tuple[list[ev.Event], str | None]:
        """Return some of what is new; if nothing is, also why nothing will ever be, if so.

        For a deleted job, return ``Removed`` and ``Closed``.
        """
        try:
            facts, lost = self._events.read_on(), None
            if not facts and not self._events.more:
                lost = self._lost()
                # Its last facts may have come in between.
                facts = self._events.read_on() if lost is not None else facts
        except FileNotFoundError:
            return [ev.Removed(time.time()), ev.Closed(time.time())], None
        return facts, None if self._events.more else lost

    def _waiting(self, facts: list[ev.Event]) -> ev.Waiting | None:
        """Return what the job waits for if that has changed; no longer checked once it has begun."""
        if facts:
            self._waited = None
        if self._waited is None:
            return None
        waiting = self._waits()
        if waiting is None or waiting.text == self._waited:
            return None
        self._waited = waiting.text
        return waiting

    def look(self) -> Iterator[ev.Event]:
        """Return what is new, facts before log text except for the end, which comes last."""
        facts = self._events.read_lasting() if self._turn is None else self._events.read()
        return self._new(facts, to_end=False)

    def _new(self, facts: list[ev.Event], *, to_end: bool) -> Iterator[ev.Event]:
        for event in facts:
            if not isinstance(event, ev.Closed):
                yield event
            if isinstance(event, ev.WorkersStarted) and (self._turn is None or self._turn.wants(event)):
                for rank in event.ranks:
                    rounds = self._logs.get(rank, {})
                    if len(rounds) >= _MOST_ROUNDS or (len(self._logs) >= _MOST_RANKS and not rounds):
                        continue  # no real job has that many
                    path = self._job.rank_log(event.node, event.round, rank)
                    offset = None if self._since is None else self._since.get((rank, event.round), 0)
                    self._logs.setdefault(rank, {})[event.round] = LogFile(
                        self._job, path, rank, event.round, offset
                    )
        to_end, more = to_end or self._over, True
        while more:
            more = False
            for chunk in self._chunks(to_end):
                more = to_end
                yield chunk
        yield from (event for event in facts if isinstance(event, ev.Closed))

    @property
    def _over(self) -> bool:
        return self._turn is not None and self._turn.over

    def _chunks(self, ended: bool) -> Iterator[ev.LogChunk | ev.Wrote]:
        """Read on in each rank's log, in a later round only once the one before has been read."""
        wrote = 0.0
        for rounds in self._logs.values():
            newest = max(rounds)
            for round_, log in rounds.items():
                chunk = log.read(ended=ended or round_ < newest)
                if chunk is not None:
                    yield chunk
                    wrote = max(wrote, log.wrote)
                    if _full(chunk):
                        break
        if wrote:
            yield ev.Wrote(wrote)


def _full(event: ev.Event) -> bool:
    return isinstance(event, ev.LogChunk) and len(event.data) == PIECE_BYTES
