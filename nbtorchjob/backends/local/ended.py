"""What was made of jobs that have ended, in one file, for the next process that lists them.

An ended job never changes, so who lists hundreds of them needn't read their folders: a ``stat`` of each
tells whether what was made of it still holds. The file is only a shortcut: one that is damaged, or that other
code wrote, holds nothing. Of processes that write it at once one wins, and the next list adds the rest.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from nbtorchjob.machine.folders import record
from nbtorchjob.runtime.wire import plain

Mark: TypeAlias = (
    "tuple[int, int, int]"  # of the file of a job's events; another one once there is more to read
)

_MOST = 10_000  # jobs: the folders of more than that are read each time


class _Line(NamedTuple):
    mark: Mark
    until: float  # when the job isn't kept any longer
    summary: Any


class Summaries:
    """What ``code`` made of ended jobs: of those that are looked for, or added, once they have been."""

    def __init__(self, path: Path, code: str, now: float) -> None:
        self._path = path
        self._code = code
        self._now = now
        self._before = self._read()
        self._lines: dict[str, _Line] = {}

    def __iter__(self) -> Iterator[Any]:
        return (line.summary for line in self._lines.values())

    def has(self, name: str, mark: Mark) -> bool:
        """Whether what was made of a job holds, now that its events have this mark."""
        line = self._before.get(name)
        if line is None or line.mark != mark or self._now >= line.until:
            return False
        self._lines[name] = line
        return True

    def add(self, name: str, mark: Mark, until: float, summary: Any) -> None:
        """Take what was made of a job, to hold while its events have this mark, and until it is to go."""
        self._lines[name] = _Line(mark, until, summary)

    def save(self) -> None:
        """Write them for the next one, in one step, if they have changed and there is room."""
        if self._lines == self._before:
            return
        lines = dict(islice(self._lines.items(), _MOST))
        text = json.dumps({"code": self._code, "jobs": lines}, separators=(",", ":")).encode()
        partial = self._path.with_name(f"{self._path.name}.partial")
        with suppress(OSError):  # a full disk; or another process wrote it just now, and moved it away
            with open(partial, "wb", opener=plain) as file:
                file.write(b"%d\n%b" % (zlib.crc32(text), text))
            os.replace(partial, self._path)

    def _read(self) -> dict[str, _Line]:
        with suppress(OSError, ValueError, LookupError, TypeError):  # the last two: later code's own way
            checksum, _, text = record(self._path).partition(b"\n")
            if int(checksum) == zlib.crc32(text):
                found = json.loads(text)
                if found["code"] == self._code:
                    return {name: _Line(tuple(mark), *rest) for name, (mark, *rest) in found["jobs"].items()}
        return {}
