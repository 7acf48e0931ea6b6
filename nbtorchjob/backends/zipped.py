"""A zip archive that is made as it is read, for files that needn't fit into memory, nor on a disk."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

_PIECE_BYTES = 1 << 18  # at a time


PLAIN, EXECUTABLE = 0o600, 0o700


def archive(files: Iterable[tuple[str, int, Iterator[bytes]]]) -> Iterator[bytes]:
    """Yield an archive of the files, each with its mode and its pieces; those without any are left out."""
    taken = _Taken()
    with zipfile.ZipFile(taken, "w") as file:
        for name, mode, pieces in files:
            first = next(pieces, None)
            if first is None:
                continue
            with file.open(_entry(name, mode), "w", force_zip64=True) as entry:
                for piece in chain((first,), pieces):
                    entry.write(piece)
                    if taken.size >= _PIECE_BYTES:
                        yield taken.take()
    yield taken.take()


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, time.localtime()[:6])
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = mode << 16
    return entry


class _Taken(io.RawIOBase):
    """Holds what a zip file writes until it is taken; it can't seek, and so is written in one go."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written, and forget it."""
        parts, self._parts, self.size = self._parts, [], 0
        return b"".join(parts)
