"""What tells a captured value from another one of its name: a digest of its pickle.

The same value has the same digest in another kernel, too. Of a big one samples are looked at, so that this
takes no longer than pickling it does; its digest then begins with ``SAMPLED``.

What tells two calls apart: the same cell over the same values has the same fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbtorchjob.runtime.objects import rebuilt

if TYPE_CHECKING:
    from nbtorchjob.capture.call import Call


from collections.abc import Iterable, Sequence

from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.state.info import SAMPLED

# A pickle's frames are as long as the file names in it, which hold the kernel's process id.
_FRAME = re.compile(rb"\x95.{8}", re.DOTALL)
_SHORT_BINUNICODE = b"\x8c"


def of(call: Call) -> str:
    """Return 40 hex digits: the same for a cell that is run again unchanged, also by a new kernel.

    It may differ for equal calls where pickling isn't deterministic (a set of texts): then the
    second is simply another job.
    """
    found = hashlib.sha256(stable(call.pickle, call.sources))
    for view in call.buffers:
        found.update(view)
    for local in call.files:
        found.update(local.path.encode() + hashlib.sha256(local.data).digest())
    if call.wanted:
        found.update(call.wanted.digest.encode())
    for file in call.shipped:
        content = file.sha256 or f"{file.size} {file.mtime}"
        found.update(f"{file.path}\0{file.executable}\0{content}\0".encode())
    return found.hexdigest()[:40]


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


def of_value(
    pickled: bytes, buffers: Sequence[memoryview], sources: Mapping[str, str], *, whole: bool = True
) -> str:
    """Return the digest of a value's pickle, or its beginning, and of its buffers.

    ``sources`` are the notebook's files whose code may be in it, as in a call.
    """
    # Nobody is kept out by it, and it takes a third of the time of SHA-256.
    found = hashlib.sha1(stable(pickled, sources), usedforsecurity=False)
    total = sum(view.nbytes for view in buffers)
    for view in buffers:
        found.update(b"%d " % view.nbytes)
        for part in [view] if total <= _WHOLE else _samples(view, total):
            found.update(part)
    return ("" if whole and total <= _WHOLE else SAMPLED) + found.hexdigest()[:_DIGITS]


def _samples(view: memoryview, total: int) -> Iterable[memoryview]:
    """Return blocks all over a buffer: the more, the bigger its share of all."""
    many = max(1, _BLOCKS * view.nbytes // total)
    last = max(0, view.nbytes - _BLOCK)
    return (view[at : at + _BLOCK] for at in (last * index // max(1, many - 1) for index in range(many)))


def of_files(files: Iterable[LocalFile]) -> str:
    """Return the digest of a module's files."""
    return of_contents((file.path, hashlib.sha256(file.data).hexdigest()) for file in files)


def of_contents(files: Iterable[tuple[str, str]]) -> str:
    """Return the digest of files, each by its path and by the SHA-256 of what it holds, in hex."""
    found = hashlib.sha256()
    for path, digest in files:
        found.update(path.encode() + b"\0" + bytes.fromhex(digest))
    return found.hexdigest()[:_DIGITS]
