"""Which of a job's reports a list needs: how far a job is, rank 0's first one and its newest tell."""

from __future__ import annotations

from collections import deque

# How the line of a ``report()`` begins, as ``runtime/emit.py`` writes it.
REPORTED = b'{"event": "Reported"'

_OF_RANK_0 = b'"rank": 0,'
_FIRST = b'"seq": 0,'
_NEWEST = 128


class Telling:
    """Keeps the few of a million reports that tell how far their job is."""

    def __init__(self) -> None:
        self._first: deque[bytes] = deque(maxlen=_NEWEST)  # of each round
        self._newest: deque[bytes] = deque(maxlen=_NEWEST)

    def add(self, line: bytes) -> None:
        """Take in the line of a report."""
        if _OF_RANK_0 in line:
            (self._first if _FIRST in line else self._newest).append(line)

    @property
    def lines(self) -> list[bytes]:
        """What is kept."""
        return [*self._first, *self._newest]
