"""A file out of a job's store that is known by what it holds."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from . import store

_PIECE = 1 << 20


def digest(url: str, target: BinaryIO, size: int) -> str:
    """Write what lies at ``url`` to ``target``, and return its SHA-256, in hex.

    Of a file that is longer than its ``size`` only one byte more is read: enough for another digest. Raises
    the store's own errors.
    """
    found, left = hashlib.sha256(), size + 1
    with store.opened(url) as source:
        while left > 0:
            piece = source.read(min(_PIECE, left))
            if not piece:
                break
            found.update(piece)
            target.write(piece)
            left -= len(piece)
    return found.hexdigest()
