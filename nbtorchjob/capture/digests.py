"""What tells a captured value from another one of its name: a digest of its pickle.

The same value has the same digest in another kernel, too. Of a big one samples are looked at, so that this
takes no longer than pickling it does; its digest then begins with ``SAMPLED``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nbtorchjob.capture import fingerprint
from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.state.info import SAMPLED

_DIGITS = 16
_WHOLE = 4_000_000  # bytes of buffers that are looked at in full: some milliseconds
_BLOCK, _BLOCKS = 4096, 256


class Buffer(NamedTuple):
    """Bytes that belong to a pickle; ``read`` returns those from one offset to another."""

    size: int
    read: Callable[[int, int], memoryview]


def of_value(
    pickled: bytes, buffers: Sequence[Buffer], sources: Mapping[str, str], *, whole: bool = True
) -> str:
    """Return the digest of a value's pickle, or its beginning, and of its buffers.

    ``sources`` are the notebook's files whose code may be in it, as in a call.
    """
    # Nobody is kept out by it, and it takes a third of the time of SHA-256.
    sha1 = hashlib.sha1(fingerprint.stable(pickled, sources), usedforsecurity=False)
    total = sum(buffer.size for buffer in buffers)
    for buffer in buffers:
        sha1.update(b"%d " % buffer.size)
        for start, end in [(0, buffer.size)] if total <= _WHOLE else _samples(buffer.size, total):
            sha1.update(buffer.read(start, end))
    return ("" if whole and total <= _WHOLE else SAMPLED) + sha1.hexdigest()[:_DIGITS]


def _samples(size: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield blocks all over a buffer: the more, the bigger its share of all."""
    many = max(1, _BLOCKS * size // total)
    last = max(0, size - _BLOCK)
    for index in range(many):
        start = last * index // max(1, many - 1)
        yield start, min(size, start + _BLOCK)


def of_files(files: Iterable[LocalFile]) -> str:
    """Return the digest of a module's files."""
    return of_contents((file.path, hashlib.sha256(file.data).hexdigest()) for file in files)


def of_contents(files: Iterable[tuple[str, str]]) -> str:
    """Return the digest of files, each by its path and by the SHA-256 of what it holds, in hex."""
    whole = hashlib.sha256()
    for path, digest in files:
        whole.update(path.encode() + b"\0" + bytes.fromhex(digest))
    return whole.hexdigest()[:_DIGITS]
