"""The file of a job's facts, one JSON line each, as ``runtime/emit.py`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from nbtorchjob.backends.reports import REPORTED
from nbtorchjob.events import UNREADABLE, Event, from_json

_PIECE_BYTES = 1 << 18


class EventFile:
    """Reads the lines that were added since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.more = False  # whether the last look stopped before the end

    def read(self, *, reports: bool = True) -> list[Event]:
        """Give the new events, with or without ``report()``s."""
        return [*parsed(line for line in self.lines() if reports or not line.startswith(REPORTED))]

    def read_on(self) -> list[Event]:
        """Give some of the new events: as many as may be read while others wait."""
        return [*parsed(self.lines(pieces=1))]

    def lines(self, pieces: int | None = None) -> Iterator[bytes]:
        """Give the new lines, or those of so many pieces; half a line waits for its end."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for _ in count() if pieces is None else range(pieces):
                data = file.read(_PIECE_BYTES)
                self.more = len(data) == _PIECE_BYTES
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                yield from lines
                if not self.more:
                    break


def parsed(lines: Iterable[bytes]) -> Iterator[Event]:
    """Give the events that the lines tell."""
    for line in lines:
        # Half a line from when the disk was full (``runtime/emit.py`` goes on with a whole one),
        # or an event of a later version.
        with suppress(*UNREADABLE):
            yield from_json(json.loads(line))
