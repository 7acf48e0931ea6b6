"""The file of a job's facts, one JSON line each, as ``runtime/emit.py`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nbtorchjob.backends.local.damage import UNREADABLE
from nbtorchjob.backends.reports import REPORTED
from nbtorchjob.events import Event, from_json

_PIECE_BYTES = 1 << 20


class EventFile:
    """Reads the lines that were added since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self, *, reports: bool = True) -> list[Event]:
        """Give the new events, with or without ``report()``s."""
        return [*parsed(line for line in self.lines() if reports or not line.startswith(REPORTED))]

    def lines(self) -> Iterator[bytes]:
        """Give the new lines; half a line waits for its end."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            while data := file.read(_PIECE_BYTES):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                yield from lines


def parsed(lines: Iterable[bytes]) -> Iterator[Event]:
    """Give the events that the lines tell."""
    for line in lines:
        # Half a line from when the disk was full (``runtime/emit.py`` goes on with a whole one),
        # or an event of a later version.
        with suppress(*UNREADABLE):
            yield from_json(json.loads(line))
