"""Taking a job off its cluster, once what it has told, written and returned is on this machine."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from nbtorchjob.backends.kubernetes.jobs import results, snapshots
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.logs import follow
from nbtorchjob.backends.kubernetes.logs.cache import Pod
from nbtorchjob.backends.kubernetes.payload import shared, stores
from nbtorchjob.errors import DamagedError, SpecError, ValueLostError
from nbtorchjob.state import events as ev
from nbtorchjob.state.events import Sent


async def save_logs(job: JobRef) -> None:
    """Cache the logs of the job's pods on this machine, unless somebody here follows the job anyway."""
    cache = job.cache
    if not cache.claim(await job.whole_info()):
        return
    try:
        for node, pod in await job.pods():
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            container = job.kind.container
            async for lines in follow.read_all(job.session.client, job.scope.namespace, name, container):
                cache.add(Pod(node, uid), lines)
    finally:
        cache.release()


async def bring_home(job: JobRef, *, whole: bool) -> None:
    """Bring logs, values and artifacts here; unless ``whole``, without those that can't be had any more."""
    await save_logs(job)
    state = await snapshots.cached(job)
    sent: tuple[Sent, ...] = (*state.values.values(), *state.artifacts.values())
    for each in sent:
        with suppress(*(() if whole else (ValueLostError,))):
            await results.of(job, each)


async def remove(job: JobRef) -> bool:
    """Delete a job's object, with all that it owns, and what it has in its stores; False where it is gone.

    Stores only of a job that was sent from here: another one's record may name any folder of this user's.
    """
    sent_here = job.cache.ours
    found = await job.session.client.delete(job.whole, uid=job.root["metadata"]["uid"])
    if not sent_here:
        return found
    with suppress(DamagedError, SpecError):  # where it had anything nobody can read
        await asyncio.to_thread(stores.clear, job.info)
        if storage := job.info.asked.cluster.storage:
            await asyncio.to_thread(shared.done, storage, job.info.run)
    return found


async def end(job: JobRef) -> None:
    """End a job that somebody has cancelled by removing it; that it was cancelled is noted here, too."""
    job = replace(job, object=await job.session.client.get(job.target))
    await bring_home(job, whole=False)
    await remove(job)
    cache = job.cache
    if cache.claim(job.info):  # else its follower here notes its end
        try:
            for fact in (ev.Removed(time.time()), ev.Closed(time.time())):
                cache.note(fact)
        finally:
            cache.release()
