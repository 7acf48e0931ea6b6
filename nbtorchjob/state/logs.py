"""The bounded tail of one rank's log: bytes in any order, the newest kept."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from nbtorchjob.frozen import FrozenDataclass

# What a card can show; the whole log stays with the job.
TAIL_BYTES = 32_768
# Of a round before: its last words, for a bounded number of rounds.
_END_BYTES = 1_024
_ENDS = 16
_PIECES = 256  # with gaps between them


class Piece(FrozenDataclass):
    """Contiguous bytes of one round's log."""

    round: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset just behind the last byte."""
        return self.offset + len(self.data)


class LogTail(FrozenDataclass):
    """The newest bytes known of a rank's log; which ones doesn't depend on the order they came in."""

    pieces: tuple[Piece, ...] = ()
    cap: int = TAIL_BYTES

    def add(self, round: int, offset: int, data: bytes) -> LogTail:
        """Take in a chunk; what is known already, or older than the tail reaches, changes nothing."""
        new = Piece(round, offset, data)
        last = self.pieces[-1] if self.pieces else None
        if last and last.round == round and last.end == offset:  # the usual case: the log went on
            merged = Piece(round, last.offset, last.data + data)
            return LogTail(self._trim([*self.pieces[:-1], merged]), self.cap)
        others = [p for p in self.pieces if p.round != round]
        mine = _join([*(p for p in self.pieces if p.round == round), new])
        ordered = sorted([*others, *mine], key=lambda p: (p.round, p.offset))
        return LogTail(self._trim(ordered), self.cap)

    def _trim(self, pieces: list[Piece]) -> tuple[Piece, ...]:
        room = self.cap
        kept: list[Piece] = []
        rounds: set[int] = set()
        for piece in reversed(pieces[-_PIECES:]):
            first = piece.round not in rounds and 0 < len(rounds) <= _ENDS
            most = max(room, min(_END_BYTES, self.cap) if first else 0)
            if most <= 0:
                continue
            cut = max(0, len(piece.data) - most)
            kept.append(Piece(piece.round, piece.offset + cut, piece.data[cut:]) if cut else piece)
            room -= len(kept[-1].data)
            rounds.add(piece.round)
        return tuple(reversed(kept))

    def last_lines(self, rounds: Collection[int], most: int) -> tuple[str, ...]:
        """Return the last lines of the newest of these rounds that anything is kept of."""
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
        """How many bytes were written in the rounds that anything is kept of."""
        return sum({piece.round: piece.end for piece in self.pieces}.values())

    @property
    def truncated(self) -> bool:
        """Whether older bytes exist that this tail doesn't hold."""
        return bool(self.pieces) and (len(self.pieces) > 1 or self.pieces[0].offset > 0)

    @property
    def newest(self) -> LogTail:
        """What it holds of the newest round alone."""
        return LogTail(tuple(each for each in self.pieces if each.round == self.pieces[-1].round), self.cap)

    def text(self) -> str:
        """The tail as text, from its first whole line on; gaps and earlier rounds marked by a line."""
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
    # A chunk may end inside a character: leave that one for the next drawing.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def _join(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: (p.offset, -p.end)):
        last = joined[-1] if joined else None
        if last is None or piece.offset > last.end:
            joined.append(piece)
        else:
            joined[-1] = _both(last, piece)
    return joined


def _both(first: Piece, other: Piece) -> Piece:
    """Return what two pieces hold that overlap, or touch; the other doesn't begin before the first."""
    at, common = other.offset - first.offset, min(first.end, other.end) - other.offset
    here, there = first.data[at : at + common], other.data[:common]
    if here != there:  # of what was written, only a forged one differs: the same bytes stay in any order
        here = bytes(map(max, here, there))
        first = Piece(first.round, first.offset, first.data[:at] + here + first.data[at + common :])
    if other.end <= first.end:
        return first
    return Piece(first.round, first.offset, first.data + other.data[common:])
