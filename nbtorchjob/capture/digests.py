"""What tells two calls apart, and a captured value from another one of its name: digests.

The same cell over the same values has the same fingerprint, and the same value the same digest, in another
kernel, too. Of a big value samples are looked at, so that this takes no longer than pickling it does; its
digest then begins with ``SAMPLED``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbtorchjob.runtime.objects import rebuilt
from nbtorchjob.state.info import SAMPLED

if TYPE_CHECKING:
    from nbtorchjob.capture.model import Call
    from nbtorchjob.capture.modules import LocalFile


# A pickle's frames are as long as the file names in it, which hold the kernel's process id.
_FRAME = re.compile(rb"\x95.{8}", re.DOTALL)
_SHORT_BINUNICODE = b"\x8c"


def of(call: Call) -> str:
    """Return 40 hex digits: the same for a cell that is run again unchanged, also by a new kernel.

    It may differ for equal calls where pickling isn't deterministic (a set of texts): then the
    second is simply another job.
    """
    sha256 = hashlib.sha256(stable(call.pickle, call.sources))
    for view in call.buffers:
        sha256.update(view)
    for local in call.files:
        sha256.update(local.path.encode() + hashlib.sha256(local.data).digest())
    if call.wanted:
        sha256.update(call.wanted.digest.encode())
    for file in call.shipped:
        content = file.sha256 or f"{file.size} {file.mtime}"
        sha256.update(f"{file.path}\0{file.executable}\0{content}\0".encode())
    for folder in call.data:
        sha256.update(f"{folder.name}\0{folder.listed.sha256}\0".encode())
    return sha256.hexdigest()[:40]


def stable(pickled: bytes, sources: Mapping[str, str]) -> bytes:
    """Return a pickle without what differs between kernels, and from one run of a cell to the next."""
    data = _FRAME.sub(b"", pickled)
    for filename, text in sources.items():
        # The text says more than the name: it is In[3] today and In[7] tomorrow.
        data = _replaced(data, filename, hashlib.sha256(text.encode()).digest())
    for tag in rebuilt.tags():
        data = _replaced(data, tag, b"class")
    return data


def _replaced(data: bytes, text: str, stable: bytes) -> bytes:
    raw = text.encode()
    return data.replace(_SHORT_BINUNICODE + bytes([len(raw) & 0xFF]) + raw, stable)


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
    sha1 = hashlib.sha1(stable(pickled, sources), usedforsecurity=False)
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
