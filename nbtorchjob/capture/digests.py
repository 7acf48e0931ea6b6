"""What tells a captured value from another one of its name: a digest of its pickle.

The same value has the same digest in another kernel, too. Of a big one samples are looked at, so that this
takes no longer than pickling it does; its digest then begins with ``SAMPLED``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from nbtorchjob.capture import fingerprint
from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.state.info import SAMPLED

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
    sha1 = hashlib.sha1(fingerprint.stable(pickled, sources), usedforsecurity=False)
    total = sum(view.nbytes for view in buffers)
    for view in buffers:
        sha1.update(b"%d " % view.nbytes)
        for part in [view] if total <= _WHOLE else _samples(view, total):
            sha1.update(part)
    return ("" if whole and total <= _WHOLE else SAMPLED) + sha1.hexdigest()[:_DIGITS]


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
    whole = hashlib.sha256()
    for path, digest in files:
        whole.update(path.encode() + b"\0" + bytes.fromhex(digest))
    return whole.hexdigest()[:_DIGITS]
