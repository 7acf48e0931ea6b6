"""A file out of a job's store that is known by what it holds."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from . import store

_PIECE = 1 << 20


def digest(url: str, target: BinaryIO) -> str:
    """Write what lies at ``url`` to ``target``; return its SHA-256, in hex. Raises the store's own errors."""
    found = hashlib.sha256()
    with store.opened(url) as source:
        for piece in iter(lambda: source.read(_PIECE), b""):
            found.update(piece)
            target.write(piece)
    return found.hexdigest()
