"""Bringing ranks' values and nodes' artifacts to this machine's disk."""

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
from nbtorchjob.runtime.artifacts import artifacts_key
from nbtorchjob.runtime.wire import WireError, value_key
from nbtorchjob.state import JobInfo
from nbtorchjob.state.events import ArtifactsReady, Sent


async def fetch(name: str, sent: Sent) -> Fetched:
    """Return what a job sent, checked with the job's key. Raises ``ResultError``."""
    try:
        job = await find.find(name)
    except JobNotFoundError:
        info, cache = find.gone(name)
        key = cache.key()
        if not key:
            raise ValueLostError(
                f"{_what(sent, info)} can't be checked: the job is gone, and its key with it"
            ) from None
        return await _checked(info, cache, key, sent)
    return await of(job, sent)


async def of(job: JobRef, sent: Sent) -> Fetched:
    """Return what a job sent; see :func:`fetch`."""
    cache = job.cache
    try:
        key = await job.key()
        cache.put_key(key)
        in_log = sent.ref.startswith(f"{store.LOG}#")
        if in_log and not await asyncio.to_thread(cache.sent(sent).exists):
            await snapshots.log(job, [])  # what was sent in it is cached on the way (``decode``)
    except ClusterError as exc:
        raise ResultError(f"{_what(sent, job.info)} can't be had: {exc}") from exc
    return await _checked(await job.whole_info(), cache, key, sent)


async def _checked(info: JobInfo, cache: JobCache, key: bytes, sent: Sent) -> Fetched:
    what = _what(sent, info)
    url, _, digest = sent.ref.rpartition("#")
    path = cache.sent(sent)
    try:
        key = _key(key, info.run, sent)
        if url == store.LOG:
            data = await asyncio.to_thread(path.read_bytes)
            frames.collect([frames.ValuePart(0, 0, 0, data)], digest, key)
        elif not stores.holds(info.asked.cluster.storage, sent):
            raise ValueLostError(f"{what} is said to be at {url!r}, which isn't in the job's --storage")
        else:
            await asyncio.to_thread(_from_store, what, sent, path, key)
    except WireError as exc:
        raise ValueLostError(f"{what} can't be trusted: {exc}") from exc
    except FileNotFoundError:
        raise ValueLostError(
            f"{what} is gone: its pod's log doesn't hold it (any more), and it wasn't read "
            "before; set --storage for jobs whose pods are removed when they end"
        ) from None
    return Fetched(path, key, cache.ours)


def _what(sent: Sent, info: JobInfo) -> str:
    if isinstance(sent, ArtifactsReady):
        return f"the archive of node {sent.node}'s artifacts of {info.name}"
    return f"the value of {info.name}"


def _key(key: bytes, run: str, sent: Sent) -> bytes:
    if isinstance(sent, ArtifactsReady):
        return artifacts_key(key, run, sent.attempt, sent.node)
    return value_key(key, run, sent.round, sent.rank)


def _from_store(what: str, sent: Sent, path: Path, key: bytes) -> None:
    if path.exists():
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        store.fetch(sent.ref, str(partial), key, sent.size)
        partial.replace(path)
    except WireError:
        raise
    except Exception as exc:  # whatever a store's library raises
        url = sent.ref.rpartition("#")[0]
        raise ResultError(f"{what} lies at {url}, and can't be read from here: {exc}") from exc
    finally:
        partial.unlink(missing_ok=True)
