"""Bringing a rank's value to this machine's disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from nbtorchjob.backends.kubernetes import lookup, once, stores
from nbtorchjob.backends.kubernetes.found import Found
from nbtorchjob.backends.kubernetes.kept import Kept
from nbtorchjob.backends.kubernetes.refusals import Refusal
from nbtorchjob.errors import JobNotFoundError, ResultError
from nbtorchjob.events import ValueReady
from nbtorchjob.results import Fetched
from nbtorchjob.runtime import frames, store
from nbtorchjob.runtime.wire import WireError, value_key
from nbtorchjob.state import JobInfo


class Worthless(ResultError):
    """There is no value that could be lost any more: it is damaged, or gone."""


async def fetch(name: str, value: ValueReady) -> Fetched:
    """Give a rank's value, checked with the job's key. Raises ``ResultError``."""
    try:
        job = await lookup.find(name)
    except JobNotFoundError:
        info, kept = lookup.gone(name)
        key = kept.key()
        if not key:
            raise Worthless(
                f"the value of {info.name} can't be checked: the job is gone, and its key with it"
            ) from None
        return await _checked(info, kept, key, value)
    return await of(job, value)


async def of(job: Found, value: ValueReady) -> Fetched:
    """Give a rank's value of a job; see :func:`fetch`."""
    name, kept = job.info.name, job.kept
    try:
        key = await job.key()
        kept.keep_key(key)
        in_log = value.ref.startswith(f"{store.LOG}#")
        if in_log and not await asyncio.to_thread(kept.value(value).exists):
            await once.log(job, value.rank)  # what values are in them is kept on the way (``nodelog.Reader``)
    except Refusal as exc:
        raise ResultError(f"the value of {name} can't be had: {exc}") from exc
    return await _checked(await job.whole_info(), kept, key, value)


async def _checked(info: JobInfo, kept: Kept, key: bytes, value: ValueReady) -> Fetched:
    name = info.name
    url, _, digest = value.ref.rpartition("#")
    path = kept.value(value)
    try:
        key = value_key(key, info.run, value.round, value.rank)
        if url == store.LOG:
            data = await asyncio.to_thread(path.read_bytes)
            frames.collect([frames.ValuePart(value.rank, value.round, 0, data)], digest, key)
        elif not stores.holds(info.asked.cluster.storage, value):
            raise Worthless(
                f"the value of {name} is said to be at {url!r}, which isn't in the job's --storage"
            )
        else:
            await asyncio.to_thread(_from_store, value, path, key)
    except WireError as exc:
        raise Worthless(f"the value of {name} can't be trusted: {exc}") from exc
    except FileNotFoundError:
        raise Worthless(
            f"the value of {name} is gone: its pod's log doesn't hold it (any more), and it wasn't read "
            "before; give --storage for jobs whose pods are removed when they end"
        ) from None
    return Fetched(path, key, kept.ours)


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
