"""What takes long to make, kept for other processes of this user's; it may be removed at any time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from nbtorchjob.errors import NotOwnError
from nbtorchjob.machine import folders

_DIGEST = hashlib.sha256().digest_size
_MOST = 32  # files of a kind


def made(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` makes, or made before of that kind and name, in this process or another one."""
    try:
        path = folders.own(folders.cache_dir() / kind) / name
    except (OSError, NotOwnError):  # where nothing can be kept, it is made each time
        return make()
    with suppress(OSError):
        kept = folders.record(path)
        if hashlib.sha256(kept[_DIGEST:]).digest() == kept[:_DIGEST]:  # else a disk has lost some of it
            return kept[_DIGEST:]
    data = make()
    with suppress(OSError):
        _keep(path, data)
    return data


def _keep(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.{token_hex(4)}")
    try:
        new.write_bytes(hashlib.sha256(data).digest() + data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    for old in sorted(path.parent.iterdir(), key=lambda each: -each.stat().st_mtime)[_MOST:]:
        old.unlink(missing_ok=True)
