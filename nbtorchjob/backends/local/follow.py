"""The job's folder as a stream of events: one file of facts, and a log a rank.

A log is read no faster than it can be shown: where a rank writes more than the tail holds between
two looks, the middle is skipped. Nothing is lost by that, the file has it all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from nbtorchjob import events as ev
from nbtorchjob.backends.local.record import Folder
from nbtorchjob.logs import TAIL_BYTES

_BATCH = 200
_SHORTEST, _LONGEST = 0.004, 0.1  # seconds between two looks


# How a line begins that ``runtime/emit.py`` wrote for a report.
_REPORTED = b'{"event": "Reported"'


class EventFile:
    """Reads the lines that were added since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self, *, reports: bool = True) -> list[ev.Event]:
        """Give the new events, with or without ``report()``s; half a line waits for its end."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        wanted = (line for line in lines if reports or not line.startswith(_REPORTED))
        return [event for line in wanted if (event := _parse(line)) is not None]


def _parse(line: bytes) -> ev.Event | None:
    try:
        return ev.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError):
        # Half a line from when the disk was full (``runtime/emit.py`` goes on with a whole one),
        # or an event of a later version.
        return None


class LogFile:
    """Reads what a rank's log gained since the last look, at most a tail's worth."""

    def __init__(self, path: Path, rank: int, round_: int) -> None:
        self._path = path
        self._rank = rank
        self._round = round_
        self._offset = 0

    def read(self) -> Iterator[ev.LogChunk]:
        """Give at most one chunk."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size <= self._offset:
            return
        start = max(self._offset, size - TAIL_BYTES)
        with open(self._path, "rb") as file:
            file.seek(start)
            data = file.read(size - start)
        self._offset = start + len(data)
        yield ev.LogChunk(self._rank, self._round, start, data)


class Follower:
    """One job's stream."""

    def __init__(self, job: Folder, lost: Callable[[], str | None]) -> None:
        self._job = job
        self._events = EventFile(job.events)
        self._logs: dict[tuple[int, int], LogFile] = {}
        self._lost = lost  # says why the job will never be closed, if so

    async def stream(self) -> AsyncIterator[ev.Event]:
        """Report everything from the job's beginning on, until it is closed or lost."""
        pause = _SHORTEST
        while True:
            lost = self._lost()  # asked before the look, so that the last words are read after it
            try:
                fresh = self.look()
            except FileNotFoundError:
                fresh, lost = [], "the job was deleted"
            for number, event in enumerate(fresh):
                yield event
                if number % _BATCH == _BATCH - 1:
                    await asyncio.sleep(0)  # other jobs are followed on this loop too
            if any(isinstance(event, ev.Closed) for event in fresh):
                return
            if lost is not None:
                yield ev.Lost(time.time(), lost)
                return
            facts = any(not isinstance(event, ev.LogChunk) for event in fresh)
            pause = _SHORTEST if facts else min(pause * 1.1, _LONGEST)
            await asyncio.sleep(pause)

    def look(self) -> list[ev.Event]:
        """Give what is new, facts before log text except for the end, which comes last."""
        facts = self._events.read()
        for event in facts:
            if isinstance(event, ev.WorkersStarted):
                self._open(event)
        chunks = [chunk for log in self._logs.values() for chunk in log.read()]
        last = [event for event in facts if isinstance(event, ev.Closed)]
        return [*(e for e in facts if e not in last), *chunks, *last]

    def _open(self, event: ev.WorkersStarted) -> None:
        for rank in event.ranks:
            path = self._job.rank_log(event.node, event.round, rank)
            self._logs[rank, event.round] = LogFile(path, rank, event.round)
