"""Which of a job's reports a list needs: the first and the newest of each rank tell how far the job is."""

from __future__ import annotations

import re
from collections import deque

from nbtorchjob.state.progress import RECENT

# How the line of a ``report()`` begins, as ``runtime/emit.py`` writes it.
REPORTED = b'{"event": "Reported"'

# And of what a node uses, of which it needs nothing.
USED = b'{"event": "Used"'

_rank = re.compile(rb'"rank": (\d+),').search
_FIRST = b'"seq": 0,'
_ROUNDS = 128
_MOST_RANKS = 1024


class Telling:
    """Keeps the few of a million reports that tell how far their job is."""

    def __init__(self) -> None:
        # Of each rank; the first of each round tell whether it counts from 0.
        self._first: dict[bytes, deque[bytes]] = {}
        self._newest: dict[bytes, deque[bytes]] = {}

    def add(self, *lines: bytes) -> None:
        """Take in the lines of reports."""
        for line in lines:
            found = _rank(line)
            rank = found[1] if found else b""
            kept, most = (self._first, _ROUNDS) if _FIRST in line else (self._newest, RECENT)
            if rank in kept or len(kept) < _MOST_RANKS:
                kept.setdefault(rank, deque(maxlen=most)).append(line)

    @property
    def lines(self) -> list[bytes]:
        """What is kept."""
        kept = (*self._first.values(), *self._newest.values())
        return [line for lines in kept for line in lines]
