"""The stores: whether a file can be written, read and removed there from this machine."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.payload import stores
from nbtorchjob.errors import SubmitError
from nbtorchjob.runtime import store, wire
from nbtorchjob.spec.cluster import Cluster

_TEXT = b"nbtorchjob doctor"


async def look(cluster: Cluster) -> list[Finding]:
    """Try the job's stores with a small file, which is removed afterwards."""
    found = [Finding(True, "without --storage, payloads are limited to 16 MiB and values to 4 MiB")]
    if cluster.storage is not None:
        found = [await asyncio.to_thread(_try, cluster.storage)]
    # Only the pods use those at a path; those in a store are removed from here.
    if cluster.checkpoints is not None and "://" in cluster.checkpoints:
        found.append(await asyncio.to_thread(_try, cluster.checkpoints))
    return found


def _try(store: str) -> Finding:
    if store.startswith("/") and not Path(store).is_dir():
        text = f"{store} isn't a folder on this machine: mount here what the pods mount, or use a URL"
        return Finding(False, text)
    folder = stores.inside(store, f"nbtorchjob-doctor-{uuid.uuid4().hex[:8]}")
    try:
        stores.put(memoryview(_TEXT), f"{folder}/probe")
        try:
            _read(f"{folder}/probe")
        finally:
            stores.remove(folder)
    except SubmitError as exc:
        return Finding(False, str(exc))
    return Finding(True, f"{store} can be written, read and cleared from here; pods need the same access")


def _read(url: str) -> None:
    """Read it as a value is read. Raises ``SubmitError``."""
    key = os.urandom(32)
    try:
        with TemporaryDirectory() as folder:
            store.fetch(f"{url}#{wire.sign(_TEXT, key).hex()}", f"{folder}/probe", key, len(_TEXT))
    except Exception as exc:  # whatever a store's library raises
        raise SubmitError(f"{url} can be written but not read from here ({exc})") from exc
