"""Logs as lines with their times: of one rank, or of several in the order in which they were written."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state.events import LogChunk


class LogLine(NamedTuple):
    """A line as a rank wrote it, with its newline if it has one, and when: 0 where nobody knows."""

    time: float
    rank: int
    data: bytes

    @property
    def text(self) -> str:
        """The line without its newline."""
        return self.data.removesuffix(b"\n").decode(errors="replace")

    def shown(self, *, time: bool, rank: bool) -> bytes:
        """Return the line with what is asked for in front of it."""
        at = datetime.fromtimestamp(self.time).astimezone().isoformat(timespec="milliseconds")
        head = (f"{at} " if time else "") + (f"[rank{self.rank}]: " if rank else "")
        # Whole lines only: two of different ranks would stand in one.
        return head.encode() + self.data + (b"" if self.data.endswith(b"\n") else b"\n")


def compiled(pattern: str, name: str = "pattern") -> re.Pattern[str]:
    """Return the regular expression, an option of that ``name``; raises ``SpecError`` for what is none."""
    try:
        return re.compile(pattern)
    except re.error as exc:
        raise SpecError(name, pattern, f"a regular expression ({exc})") from exc


class Wanted(FrozenDataclass):
    """Which lines are wanted: written from ``since`` on, by ``until``, and with a match of ``pattern``."""

    since: float | None = None
    until: float | None = None
    pattern: re.Pattern[str] | None = None

    def has(self, line: LogLine) -> bool:
        """Whether a line is wanted."""
        if self.since is not None and line.time < self.since:
            return False
        if self.until is not None and line.time > self.until:
            return False
        return self.pattern is None or self.pattern.search(line.text) is not None


ALL = Wanted()


@dataclass
class Splitter:
    """Makes lines of one rank's chunks, wherever these were split."""

    rank: int
    _round: int = 0
    _rest: list[bytes] = field(default_factory=list)
    _time: float = 0.0

    def feed(self, chunk: LogChunk) -> Iterator[LogLine]:
        """Yield the lines that a chunk ends; a round ends the line that the one before it left."""
        if chunk.round != self._round:
            yield from self.end()
            self._round = chunk.round
        times = iter(chunk.times)
        upto, at = next(times, (0, self._time))
        offset = chunk.offset
        for data in _lines(chunk.data):
            offset += len(data)
            while upto < offset and (later := next(times, None)):
                upto, at = later
            # The clock may have been set back: lines of one rank stay in their order.
            self._time = max(self._time, at)
            self._rest.append(data)
            if data.endswith(b"\n"):
                yield from self.end()

    def end(self) -> Iterator[LogLine]:
        """Yield the line that was begun."""
        if self._rest:
            yield LogLine(self._time, self.rank, b"".join(self._rest))
            self._rest = []


def _lines(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = data.find(b"\n", at) + 1 or len(data)
        yield data[at:end]
        at = end


def lines(rank: int, chunks: Iterable[LogChunk], *, ended: bool = True) -> Iterator[LogLine]:
    """Yield the lines of one rank; unless its job has ``ended`` without a last one that has no end yet."""
    splitter = Splitter(rank)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    if ended:
        yield from splitter.end()


def merged(logs: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    """Yield the lines of several ranks in the order of their times."""
    return heapq.merge(*logs, key=lambda line: line.time)
