"""This kernel's uv, for nodes whose image has none: it is faster than pip, and some images have neither."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
from functools import lru_cache
from pathlib import Path

from nbtorchjob.frozen import FrozenDataclass

_ELF = b"\x7fELF"
_PIECE = 1 << 20


class Installer(FrozenDataclass):
    """A program that goes into a job's store; nodes with another ``machine`` can't run it."""

    source: Path
    size: int
    sha256: str
    machine: str
    path = "uv"


def installer() -> Installer | None:
    """Return the uv beside this interpreter, or else on ``PATH``; None where there is none for Linux."""
    beside = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    if found := shutil.which("uv", path=beside):
        source = Path(found).resolve()
        seen = source.stat()
        return _read(source, seen.st_size, seen.st_mtime_ns)
    return None


@lru_cache(maxsize=1)
def _read(source: Path, size: int, mtime: int) -> Installer | None:
    digest = hashlib.sha256()
    with open(source, "rb") as file:
        # What a version manager puts on PATH is a script that looks for the program.
        if file.read(len(_ELF)) != _ELF:
            return None
        file.seek(0)
        for piece in iter(lambda: file.read(_PIECE), b""):
            digest.update(piece)
    return Installer(source, size, digest.hexdigest(), os.uname().machine)
