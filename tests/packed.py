"""Programs that travel to clusters, each packed once for all pytest workers: packing takes 0.8 s.

The package caches them in the user's state folder, but many tests have a state folder of their own.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from nbtorchjob.machine import folders
from tests.backends.kubernetes import warm

_KIND = "programs"


def cached(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Stand in for ``folders.cached``."""
    assert kind == _KIND
    with warm.making() as folder:  # another worker that needs the same program waits
        path = folder / _KIND / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            data = make()
            path.write_bytes(sha256(data).digest() + data)  # in the format of ``folders.cached``
        return path.read_bytes()[sha256().digest_size :]


def lend(state: Path) -> None:
    """Link the packed programs into a state folder, for the processes that use it."""
    place = state
    for name in ("", folders.cache_dir().name, _KIND):
        place /= name
        place.mkdir(mode=0o700, exist_ok=True)
    with warm.making() as folder:
        for path in (folder / _KIND).glob("*"):
            with suppress(FileExistsError):
                os.link(path, place / path.name)
