"""Selects the few of a job's frequent lines that a list needs to show its progress and usage."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from nbtorchjob.state.facts.series import RECENT, UNITS, points_each, stride

# How the line of a ``report()`` begins, as ``runtime/facts`` writes it.
REPORTED = b'{"event": "Reported"'

# How the line with a node's usage begins.
USED = b'{"event": "Used"'

# How the line with something that a rank displays begins; it may be long, and a list doesn't need it.
DISPLAYED = b'{"event": "Displayed"'

_OFTEN = (REPORTED, USED)

_rank = re.compile(rb'"rank": (\d+),').search
_node = re.compile(rb'"node": (\d+), "round": (\d+),').search
_round = re.compile(rb'"round": (\d+),').search
_METRICS = b'"metrics": {'
_names = re.compile(rb'"((?:[^"\\]|\\.)*)": ').findall
_FIRST = b'"seq": 0,'
_counts_from_zero = re.compile(rb'"(?:%b)": 0(?:\.0)?[,}]' % "|".join(UNITS).encode()).search
_ROUNDS = 128
_MOST_RANKS = 1024
_MOST_USES = 32  # of a node
NODES = 4  # whose usage is kept
_UNSORTED = 4096  # lines kept before they are sorted: few of an ended job's are looked at


# A whole line as ``report()`` writes it; the letters are those of NaN and Infinity.
_plain = re.compile(
    rb'\{"event": "Reported", "time": [\d.e+]+, "rank": (\d+), "round": (\d+), "seq": (\d+), '
    rb'"metrics": \{((?:"[^"\\]*(?:\\.[^"\\]*)*": [\d.e+NaInfity-]+(?:, )?)*)\}\}'
).fullmatch

_RankRound: TypeAlias = tuple[bytes, bytes]


def lasting(lines: list[bytes]) -> list[bytes]:
    """Return a job's lines without the reports that leave nothing in its state once all are folded.

    Rank 0 stands for all ranks, so its reports stay. In a wide job the state thins out nearly all of the
    others, and reading and folding a line takes four times as long as finding that out.
    """
    plain = (_plain(line) if line.startswith(REPORTED) else None for line in lines)
    places = [
        ((match[1], match[2]), (*_names(match[4]),), int(match[3])) if match else None for match in plain
    ]
    newest: dict[_RankRound, int] = {}
    for which, _, seq in filter(None, places):
        newest[which] = max(seq, newest.get(which, 0))
    most = points_each(len({rank for rank, _ in newest}))
    steps = {which: stride(seq, most) for which, seq in newest.items()}
    # The same by the names of a report's metrics
    newest_of: dict[tuple[_RankRound, tuple[bytes, ...]], int] = {}
    first_of: dict[tuple[_RankRound, tuple[bytes, ...], int], int] = {}
    for which, names, seq in filter(None, places):
        newest_of[which, names] = max(seq, newest_of.get((which, names), 0))
        step = which, names, seq // steps[which]
        first_of[step] = min(seq, first_of.get(step, seq))

    def lasts(which: _RankRound, names: tuple[bytes, ...], seq: int) -> bool:
        bounds = first_of[which, names, seq // steps[which]], newest_of[which, names]
        kept = seq % steps[which] == 0 or seq > newest[which] - RECENT
        return kept or which[0] == b"0" or seq in bounds

    return [line for line, place in zip(lines, places, strict=True) if not place or lasts(*place)]


class Telling:
    """Keeps a few of a million lines: the first and newest reports, and the first nodes' usage."""

    def __init__(self) -> None:
        self._unsorted: list[bytes] = []
        # By rank; the first report of each round shows whether it counts from 0.
        self._first: dict[bytes, deque[bytes]] = {}
        self._newest: dict[bytes, deque[bytes]] = {}
        self._uses: dict[bytes, _Uses] = {}

    def sift(self, lines: Iterable[bytes]) -> list[bytes]:
        """Keep lines with reports and usage; return the others, except those with what ranks display."""
        others: list[bytes] = []
        for line in lines:
            if line.startswith(_OFTEN):
                self._unsorted.append(line)
                if len(self._unsorted) > _UNSORTED:
                    self._sort()
            elif not line.startswith(DISPLAYED):
                others.append(line)
        return others

    def _sort(self) -> None:
        lines, self._unsorted = self._unsorted, []
        for line in lines:
            if line.startswith(USED):
                use_match = _node(line)
                if use_match and int(use_match[1]) < NODES:
                    node, round_ = use_match.groups()
                    if node not in self._uses or self._uses[node].round != round_:
                        self._uses[node] = _Uses(round_)
                    self._uses[node].add(line)
            else:
                match = _rank(line)
                rank = match[1] if match else b""
                for kept, most in ((self._newest, RECENT), (self._first, _ROUNDS))[: 1 + (_FIRST in line)]:
                    if rank in kept or len(kept) < _MOST_RANKS:
                        kept.setdefault(rank, deque(maxlen=most)).append(line)

    def newest(self, rank: int) -> list[bytes]:
        """Return the newest reports of a rank, except those whose metrics are all in newer ones.

        Before them comes its first report, if that shows that the rank counts from 0.
        """
        lines: list[bytes] = []
        newer_metrics: set[tuple[bytes, bytes]] = set()
        alike: set[tuple[bytes, ...]] = set()
        for line in self._newest_first(b"%d" % rank):
            # A report's round, and the names of its metrics as they are written
            match = _round(line)
            names = (match[1] if match else b"", *_names(line.partition(_METRICS)[2]))
            if names in alike:
                continue
            # A line that isn't as ``report()`` writes it is kept: its reader says what is wrong with it.
            metrics = {(names[0], name) for name in names[1:]} if _plain(line) else set()
            if not lines or not metrics or not metrics <= newer_metrics:
                lines.append(line)
            if metrics:
                alike.add(names)
            newer_metrics |= metrics
        first = self._first_of(b"%d" % rank)
        return [*([first] if _counts_from_zero(first) and first not in lines else []), *reversed(lines)]

    def _first_of(self, rank: bytes) -> bytes:
        """Return the first report of a rank, or an empty line if none was kept."""
        if self._newest:
            self._sort()
            return next(iter(self._first.get(rank, ())), b"")
        fragment = b'"rank": %b,' % rank
        of_rank = (line for line in self._unsorted if fragment in line and line.startswith(REPORTED))
        return next((line for line in of_rank if _FIRST in line), b"")

    def _newest_first(self, rank: bytes) -> Iterable[bytes]:
        """Return the newest reports of a rank."""
        if self._newest:
            self._sort()
            return reversed(self._newest.get(rank, deque()))
        newest: list[bytes] = []
        fragment = b'"rank": %b,' % rank
        for line in reversed(self._unsorted):
            match = _rank(line) if fragment in line else None
            if match and match[1] == rank and not line.startswith(USED):
                newest.append(line)
                if len(newest) == RECENT:
                    break
        return newest

    @property
    def lines(self) -> list[bytes]:
        """The lines that are kept."""
        self._sort()
        kept = (*self._first.values(), *self._newest.values(), *(uses.lines for uses in self._uses.values()))
        return [*dict.fromkeys(line for lines in kept for line in lines)]


class _Uses:
    """A node's usage in one round: every 2^k-th line, and the newest."""

    def __init__(self, round_: bytes) -> None:
        self.round = round_
        self._kept: list[bytes] = []
        self._newest: list[bytes] = []
        self._many, self._every = 0, 1

    def add(self, line: bytes) -> None:
        self._newest = [line]
        if self._many % self._every == 0:
            self._kept.append(line)
        self._many += 1
        if len(self._kept) > _MOST_USES:
            self._kept = self._kept[::2]
            self._every *= 2

    @property
    def lines(self) -> list[bytes]:
        return self._kept + self._newest
