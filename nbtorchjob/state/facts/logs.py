"""What ranks wrote: the bounded tail of one rank's log, and the lines of several in order of time."""

from __future__ import annotations

import codecs
import heapq
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from typing import Literal, NamedTuple, TypeAlias, get_args

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state.facts.events import LogChunk

# One of the two streams that a rank writes to; None stands for both, interleaved as they were written.
Stream: TypeAlias = Literal["stdout", "stderr"]


def check_stream(stream: Stream | None) -> None:
    """Raise ``SpecError`` for anything but a stream or None."""
    if stream is not None and stream not in get_args(Stream):
        raise SpecError("stream", stream, "stdout or stderr")


def of_stream(chunk: LogChunk, stream: Stream | None) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of a stream in a chunk, each with its offset."""
    at, end = chunk.offset, chunk.offset + len(chunk.data)
    spans = [(at, end)]
    if stream == "stderr":
        spans = [*chunk.stderr]
    elif stream == "stdout":
        edges = [at, *(edge for span in chunk.stderr for edge in span), end]
        spans = [*zip(edges[::2], edges[1::2], strict=True)]
    for start, upto in spans:
        if data := chunk.data[start - at : upto - at]:
            yield start, data


class LogLine(NamedTuple):
    """A line as a rank wrote it, with its newline if it has one, and its time: 0 where that is unknown."""

    time: float
    rank: int
    data: bytes

    @property
    def text(self) -> str:
        """The line without its newline."""
        return self.data.removesuffix(b"\n").decode(errors="replace")

    def shown(self, *, time: bool, rank: bool) -> bytes:
        """Return the line, prefixed with its time or rank on request."""
        at = datetime.fromtimestamp(self.time).astimezone().isoformat(timespec="milliseconds")
        head = (f"{at} " if time else "") + (f"[rank{self.rank}]: " if rank else "")
        # Always end the line: otherwise those of two ranks might be joined.
        return head.encode() + self.data + (b"" if self.data.endswith(b"\n") else b"\n")


def compiled(pattern: str, name: str = "pattern") -> re.Pattern[str]:
    """Return the regular expression given as the option ``name``; raises ``SpecError`` if it is invalid."""
    try:
        return re.compile(pattern)
    except re.error as exc:
        raise SpecError(name, pattern, f"a regular expression ({exc})") from exc


class LineFilter(FrozenDataclass):
    """Which lines are wanted: those written from ``since`` to ``until`` that match ``pattern``."""

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


ALL = LineFilter()


@dataclass
class Splitter:
    """Turns one rank's chunks, wherever they were split, into lines; optionally those of one ``stream``."""

    rank: int
    stream: Stream | None = None
    _round: int = 0
    _rest: list[bytes] = field(default_factory=list)
    _time: float = 0.0

    def feed(self, chunk: LogChunk) -> Iterator[LogLine]:
        """Yield the lines that a chunk ends; a new round ends the unfinished line of the one before."""
        if chunk.round != self._round:
            yield from self.end()
            self._round = chunk.round
        times = iter(chunk.times)
        upto, at = next(times, (0, self._time))
        for offset, piece in of_stream(chunk, self.stream):
            for data in BytesIO(piece):  # only a newline ends a line
                offset += len(data)
                while upto < offset and (later := next(times, None)):
                    upto, at = later
                # The clock may have been set back: lines of one rank stay in their order.
                self._time = max(self._time, at)
                self._rest.append(data)
                if data.endswith(b"\n"):
                    yield from self.end()

    def end(self) -> Iterator[LogLine]:
        """Yield the unfinished line, if any."""
        if self._rest:
            yield LogLine(self._time, self.rank, b"".join(self._rest))
            self._rest = []


def lines(
    rank: int, chunks: Iterable[LogChunk], *, ended: bool = True, stream: Stream | None = None
) -> Iterator[LogLine]:
    """Yield the lines of one rank; an unfinished last line only if its job has ``ended``."""
    splitter = Splitter(rank, stream)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    if ended:
        yield from splitter.end()


def merged(logs: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    """Yield the lines of several ranks in the order of their times."""
    return heapq.merge(*logs, key=lambda line: line.time)


# What a card can show; the whole log stays with the job.
TAIL_BYTES = 32_768
_ALL_TAILS = 1 << 26  # bytes of all ranks together, except the one that stands for all
# Of earlier rounds: a share of the bytes for the end of each, and for how many rounds.
_END_SHARE = 32
_ENDS = 16
_PIECES = 256  # the most pieces with gaps between them


def tail_bytes(ranks: int) -> int:
    """Return how many bytes are kept of each rank's log, given how many ranks there are: a power of two."""
    return min(TAIL_BYTES, 1 << max(10, (_ALL_TAILS // max(1, ranks)).bit_length() - 1))


class Piece(FrozenDataclass):
    """Contiguous bytes of one round's log."""

    round: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset just after the last byte."""
        return self.offset + len(self.data)


class LogTail(FrozenDataclass):
    """The newest known bytes of a rank's log, whatever order they came in."""

    pieces: tuple[Piece, ...] = ()
    cap: int = TAIL_BYTES

    def add(self, round: int, offset: int, data: bytes) -> LogTail:
        """Return the tail with a chunk; bytes it has already, or that are too old for it, change nothing."""
        new = Piece(round, offset, data)
        last = self.pieces[-1] if self.pieces else None
        if last and last.round == round and last.end == offset:  # the usual case: the log went on
            merged = Piece(round, last.offset, last.data + data)
            return LogTail(self._trim([*self.pieces[:-1], merged]), self.cap)
        others = [p for p in self.pieces if p.round != round]
        pieces = [*(p for p in self.pieces if p.round == round), new]
        stretches: list[Piece] = []
        for piece in sorted(pieces, key=lambda p: (p.offset, -p.end)):
            last = stretches[-1] if stretches else None
            if last is None or piece.offset > last.end:
                stretches.append(piece)
            else:
                # The bytes that both of two overlapping or adjacent pieces hold; ``first`` begins first.
                first = last
                at, common = piece.offset - first.offset, min(first.end, piece.end) - piece.offset
                overlap, head = first.data[at : at + common], piece.data[:common]
                if overlap != head:
                    # Only forged chunks differ: whatever order they come in, the same bytes are kept.
                    overlap = bytes(map(max, overlap, head))
                    first = Piece(
                        first.round, first.offset, first.data[:at] + overlap + first.data[at + common :]
                    )
                if piece.end <= first.end:
                    stretches[-1] = first
                else:
                    stretches[-1] = Piece(first.round, first.offset, first.data + piece.data[common:])
        ordered = sorted([*others, *stretches], key=lambda p: (p.round, p.offset))
        return LogTail(self._trim(ordered), self.cap)

    def within(self, most: int) -> LogTail:
        """Return the tail that the same chunks make if at most ``most`` bytes are kept."""
        return LogTail(LogTail(cap=most)._trim([*self.pieces]), most)

    def _trim(self, pieces: list[Piece]) -> tuple[Piece, ...]:
        room = self.cap
        kept: list[Piece] = []
        rounds: set[int] = set()
        for piece in reversed(pieces[-_PIECES:]):
            first = piece.round not in rounds and 0 < len(rounds) <= _ENDS
            most = max(room, self.cap // _END_SHARE if first else 0)
            if most <= 0:
                continue
            cut = max(0, len(piece.data) - most)
            kept.append(Piece(piece.round, piece.offset + cut, piece.data[cut:]) if cut else piece)
            room -= len(kept[-1].data)
            rounds.add(piece.round)
        return tuple(reversed(kept))

    def last_lines(self, rounds: Collection[int], most: int) -> tuple[str, ...]:
        """Return the last lines of the newest of these rounds that has any left."""
        for piece in reversed(self.pieces):
            if piece.round in rounds:
                return tuple(_decode(piece.data).splitlines()[-most:])
        return ()

    @property
    def end(self) -> tuple[int, int]:
        """The newest (round, offset) known."""
        return (self.pieces[-1].round, self.pieces[-1].end) if self.pieces else (0, 0)

    @property
    def size(self) -> int:
        """How many bytes were written in the rounds that the tail still has bytes of."""
        return sum({piece.round: piece.end for piece in self.pieces}.values())

    @property
    def truncated(self) -> bool:
        """Whether older bytes exist that this tail doesn't hold."""
        return bool(self.pieces) and (len(self.pieces) > 1 or self.pieces[0].offset > 0)

    @property
    def newest(self) -> LogTail:
        """The tail of the newest round only."""
        return LogTail(
            tuple(piece for piece in self.pieces if piece.round == self.pieces[-1].round), self.cap
        )

    def text(self) -> str:
        """The tail as text, from its first whole line on, with a line to mark each gap and each restart."""
        out: list[str] = []
        for index, piece in enumerate(self.pieces):
            text = _decode(piece.data)
            if piece.offset:
                text = text.partition("\n")[2] or text
                out.append("" if index == 0 else "\n[…]\n")
            elif index:
                out.append(f"\n[restarted: round {piece.round}]\n")
            out.append(text)
        return "".join(out)


def _decode(data: bytes) -> str:
    # A chunk may end inside a character: leave that character for the next drawing.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
