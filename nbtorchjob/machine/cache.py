"""What takes long to make, kept for this user's other processes: programs, and compilers' caches.

All of it may be removed at any time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from nbtorchjob.errors import NotOwnError
from nbtorchjob.machine import folders
from nbtorchjob.runtime.start import compilers

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
        new = path.with_name(f"{path.name}.{os.getpid()}.{token_hex(4)}")
        try:
            new.write_bytes(hashlib.sha256(data).digest() + data)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        for old in sorted(path.parent.iterdir(), key=lambda file: -file.stat().st_mtime)[_MOST:]:
            old.unlink(missing_ok=True)
    return data


_COMPILED, _TEMPORARY = "compiled", "tmp"
_UNUSED_S = 30 * 24 * 3600.0


def variables() -> dict[str, str]:
    """Return the variables that lead compilers to a folder which nobody else could have written to."""
    return compilers.variables(str(_folder(_COMPILED)))


def refuge(env: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return what a job with this environment needs to keep off others' files, and why; both mostly empty.

    The folder that torch takes in the temporary one is made here, so that nobody else can. Where somebody
    has, the job gets another temporary folder.
    """
    try:
        folders.own(Path(compilers.default(env)))
    except NotOwnError as exc:
        temporary = str(_folder(_TEMPORARY))
        return {"TMPDIR": temporary}, f"{exc}; until then this job's temporary folder is {temporary}"
    return {}, ""


def thin_out() -> None:
    """Remove what nobody has used for a month."""
    before = time.time() - _UNUSED_S
    for kept in (_folder(_COMPILED), _folder(_TEMPORARY)):
        for folder, below, names in os.walk(kept, topdown=False):
            for path in (os.path.join(folder, name) for name in names):
                with suppress(OSError):  # somebody else removes it, too
                    status = os.lstat(path)
                    if max(status.st_atime, status.st_mtime) < before:
                        os.unlink(path)
            for name in below:
                with suppress(OSError):
                    if os.lstat(os.path.join(folder, name)).st_mtime < before:
                        os.rmdir(os.path.join(folder, name))


def _folder(name: str) -> Path:
    try:
        return folders.own(folders.own(folders.cache_dir()) / name)
    except NotOwnError:  # a home that others can write to, or nobody
        return folders.own(folders.own(folders.state_dir() / "cache") / name)
