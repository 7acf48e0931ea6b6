"""Bringing a rank's value to this machine's disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from nbtorchjob.backends.kubernetes.jobs import find, snapshots
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.logs.cache import JobCache
from nbtorchjob.backends.kubernetes.payload import stores
from nbtorchjob.errors import ClusterError, JobNotFoundError, ResultError, ValueLostError
from nbtorchjob.payload.results import Fetched
from nbtorchjob.runtime import frames, store
from nbtorchjob.runtime.wire import WireError, value_key
from nbtorchjob.state import JobInfo
from nbtorchjob.state.events import ValueReady


async def fetch(name: str, value: ValueReady) -> Fetched:
    """Return a rank's value, checked with the job's key. Raises ``ResultError``."""
    try:
        job = await find.find(name)
    except JobNotFoundError:
        info, cache = find.gone(name)
        key = cache.key()
        if not key:
            raise ValueLostError(
                f"the value of {info.name} can't be checked: the job is gone, and its key with it"
            ) from None
        return await _checked(info, cache, key, value)
    return await of(job, value)


async def of(job: JobRef, value: ValueReady) -> Fetched:
    """Return a rank's value of a job; see :func:`fetch`."""
    name, cache = job.info.name, job.cache
    try:
        key = await job.key()
        cache.put_key(key)
        in_log = value.ref.startswith(f"{store.LOG}#")
        if in_log and not await asyncio.to_thread(cache.value(value).exists):
            await snapshots.log(job, [value.rank])  # values in it are cached on the way (``decode``)
    except ClusterError as exc:
        raise ResultError(f"the value of {name} can't be had: {exc}") from exc
    return await _checked(await job.whole_info(), cache, key, value)


async def _checked(info: JobInfo, cache: JobCache, key: bytes, value: ValueReady) -> Fetched:
    name = info.name
    url, _, digest = value.ref.rpartition("#")
    path = cache.value(value)
    try:
        key = value_key(key, info.run, value.round, value.rank)
        if url == store.LOG:
            data = await asyncio.to_thread(path.read_bytes)
            frames.collect([frames.ValuePart(value.rank, value.round, 0, data)], digest, key)
        elif not stores.holds(info.asked.cluster.storage, value):
            raise ValueLostError(
                f"the value of {name} is said to be at {url!r}, which isn't in the job's --storage"
            )
        else:
            await asyncio.to_thread(_from_store, value, path, key)
    except WireError as exc:
        raise ValueLostError(f"the value of {name} can't be trusted: {exc}") from exc
    except FileNotFoundError:
        raise ValueLostError(
            f"the value of {name} is gone: its pod's log doesn't hold it (any more), and it wasn't read "
            "before; set --storage for jobs whose pods are removed when they end"
        ) from None
    return Fetched(path, key, cache.ours)


def _from_store(value: ValueReady, path: Path, key: bytes) -> None:
    if path.exists():
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        store.fetch(value.ref, str(partial), key, value.size)
        partial.replace(path)
    except WireError:
        raise
    except Exception as exc:  # whatever a store's library raises
        url = value.ref.rpartition("#")[0]
        raise ResultError(f"the value lies at {url}, and can't be read from here: {exc}") from exc
    finally:
        partial.unlink(missing_ok=True)
