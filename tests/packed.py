"""Programs that travel to clusters, each packed once for all workers: that takes 0.8 s.

They are kept in the user's state folder, of which many tests have one of their own.
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
    with warm.making() as folder:  # whoever needs the same one meanwhile waits for it
        path = folder / _KIND / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            data = make()
            path.write_bytes(sha256(data).digest() + data)  # as ``folders.cached`` keeps it
        return path.read_bytes()[sha256().digest_size :]


def lend(state: Path) -> None:
    """Put those that there are into a state folder, for the processes that use it."""
    place = state
    for name in ("", folders.cache_dir().name, _KIND):
        place /= name
        place.mkdir(mode=0o700, exist_ok=True)
    with warm.making() as folder:
        for path in (folder / _KIND).glob("*"):
            with suppress(FileExistsError):
                os.link(path, place / path.name)
