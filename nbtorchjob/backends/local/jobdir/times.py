"""By when a rank's log was how long: what stands beside it, read on as the log is."""

from __future__ import annotations

from pathlib import Path

from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.runtime.streams import TIMES, read_time

_PIECE = 1 << 16  # bytes read at a time


class Times:
    """Reads the times of one log on, in the order of its bytes."""

    def __init__(self, job: JobDirectory, log: Path) -> None:
        self._job = job
        self._path = log.with_name(log.name + TIMES)
        self._at = 0
        self._rest = b""
        self._next: list[tuple[int, float]] = []  # newest first

    def take(self, start: int, end: int, changed: float) -> tuple[tuple[int, float], ...]:
        """Return the times of the bytes from ``start`` to ``end``, which follow on those asked for before.

        What nothing is said of was written when the log was last changed, at ``changed``.
        """
        found: list[tuple[int, float]] = []
        while not (found and found[-1][0] == end) and (self._next or self._read()):
            offset, at = self._next[-1]
            if offset > start:
                found.append((min(offset, end), at))
            if offset > end:
                break
            self._next.pop()
        if not found or found[-1][0] < end:
            found.append((end, changed))
        return tuple(found)

    def _read(self) -> bool:
        """Read on; give whether that brought a time."""
        while not self._next:
            file = self._job.open_log(self._path)
            if file is None:
                return False
            with file:
                file.seek(self._at)
                data = file.read(_PIECE)
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._next = [known for known in map(read_time, reversed(lines)) if known is not None]
            if not data:
                break
        return bool(self._next)
