"""The file of a job's facts, one JSON line each, as ``runtime/facts`` writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, count

from nbtorchjob.backends.local.directory import JobDirectory, reading
from nbtorchjob.backends.progress import DISPLAYED, REPORTED, USED, lasting
from nbtorchjob.machine.folders import plain
from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.facts.events import Event

_PIECE_BYTES = 1 << 16  # allocating more takes longer than reading a usual job


class EventFile:
    """Reads the lines that were added since the last look, at first from ``offset`` on, where a line begins.

    Raises ``FileNotFoundError`` if the job was deleted, ``DamagedError`` if the file can't be read.
    """

    def __init__(self, job: JobDirectory, offset: int = 0) -> None:
        self._job = job
        self._offset = offset
        self._rest = b""
        self.more = False  # whether the last look stopped before the end

    def read(self, *, reports: bool = True) -> list[Event]:
        """Return the new events; without ``reports`` also without ranks' displays and nodes' usage."""
        left_out = () if reports else (REPORTED, USED, DISPLAYED)
        return [*factlines.read(line for line in self.lines() if not line.startswith(left_out))]

    def read_lasting(self) -> list[Event]:
        """Return the new events without the reports that leave nothing in a state; not for a lab's turn."""
        return [*factlines.read(lasting([*self.lines()]))]

    def read_on(self) -> list[Event]:
        """Return some of the new events: as many as may be read while other jobs wait."""
        return [*factlines.read(self.lines(pieces=1))]

    def lines(self, pieces: int | None = None) -> Iterator[bytes]:
        """Yield the new lines, or those in the next ``pieces`` pieces; half a line waits for its end."""
        return chain.from_iterable(self._pieces(pieces))

    def _pieces(self, pieces: int | None) -> Iterator[list[bytes]]:
        with reading(self._job.path):
            # Lists read thousands of files, and opening a file object takes three times as long.
            descriptor = plain(f"{self._job.path}/events.jsonl", os.O_RDONLY)
        try:
            for _ in count() if pieces is None else range(pieces):
                data = os.pread(descriptor, _PIECE_BYTES, self._offset)
                self.more = len(data) == _PIECE_BYTES
                self._offset += len(data)
                *lines, rest = (self._rest + data).split(b"\n")
                self._rest = rest[: LONGEST_FACT + 1]  # a longer line is refused, so it needn't take memory
                yield lines
                if not self.more:
                    break
        finally:
            os.close(descriptor)
