"""An ended job once more: its payload, byte for byte, in a new job's Secrets or store."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace

from nbtorchjob.backends.kubernetes.jobs import results
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef, over
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.payload import package, shared, stores
from nbtorchjob.backends.kubernetes.payload.package import Packed, Stored
from nbtorchjob.backends.kubernetes.submit.submitter import Submitter
from nbtorchjob.errors import NotFoundError, SubmitError
from nbtorchjob.payload import archive
from nbtorchjob.runtime.objects.wire import derived, unsealed
from nbtorchjob.runtime.store.payload import PayloadError
from nbtorchjob.spec import profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.text import swaps
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint


async def retry(job: JobRef, *, resume: bool = False) -> JobInfo:
    """Send what an ended job ran as a new job; return what is written down of that.

    With ``resume`` it goes on from the job's checkpoints. Raises ``SpecError`` for what the site has locked
    or limited since, ``SubmitError``, ``ClusterError``.
    """
    info = await job.whole_info()
    if not await over(job):
        raise SubmitError(f"{info.name} hasn't ended: cancel it first, {hint('cancel', info.name)}")
    if resume and not all(reading.ended(pod) for _, pod in await job.pods()):
        raise SubmitError(
            f"{info.name} still has pods that run, and may save checkpoints: try again once they have ended"
        )
    if not info.spec:  # somebody took the annotation away
        raise package.gone(info.name)
    profiles.admitted(info.asked)
    packed, made = await as_swapped(job, info, await packed_again(job, info))
    there = replace(where_it_is(job), hidden=package.env(await job.secret()))
    again = info.sent_again().swapped(made)
    async with _resumed(there, info, again) if resume else nullcontext(again) as new:
        if there.cluster.storage:
            await asyncio.to_thread(shared.use_again, there.cluster.storage, new.run, info.run)
        return await Submitter(job.session, packed, there, new, anew=True).send()


@asynccontextmanager
async def _resumed(spec: JobSpec, old: JobInfo, new: JobInfo) -> AsyncIterator[JobInfo]:
    """Give the new job checkpoints of the old one; remove its copy again where the job can't be sent."""
    stop = threading.Event()
    copying = asyncio.ensure_future(asyncio.to_thread(stores.resumed, spec, old, new, stop.is_set))
    try:
        yield await asyncio.shield(copying)
    except BaseException:

        async def remove() -> None:
            await asyncio.wait([copying])  # in a thread, which only ends by itself
            with suppress(SubmitError):  # what is raised says why there is no job
                await asyncio.to_thread(stores.clear_checkpoints, new)

        stop.set()
        await asyncio.shield(remove())
        raise


async def as_swapped(
    job: JobRef, info: JobInfo, packed: Packed | Stored
) -> tuple[Packed | Stored, list[tuple[str, str]]]:
    """Have a payload begin with the job's code as it was swapped; return also these swaps' labels and texts.

    What lies in a store is sent as it is, and so is a swap that the record doesn't have whole. Raises
    ``SubmitError`` for swaps that can't be read, or that make the payload too big.
    """
    made = swaps.carried(await results.snapshot(job))
    if not made or not isinstance(packed, Packed):
        return packed, []
    key = derived(packed.key, "swap")
    try:
        payloads = [unsealed(base64.b64decode(swap.payload), key) for swap in made]
        data = archive.with_swaps(bytes(packed.data), packed.key, payloads)
    except (ValueError, PayloadError) as exc:  # whatever runs in a pod may write such a fact
        raise SubmitError(f"a swap of {info.name} can't be read ({exc}): run its cell, as swapped") from exc
    swapped = replace(packed, data=memoryview(data))
    if packed.travels and not swapped.travels and not info.asked.cluster.storage:
        raise SubmitError(
            f"with its swaps the payload of {info.name} takes {words.size(len(data))}, more than the API of "
            f"a cluster takes: run its cell, as swapped, with --storage"
        )
    return swapped, swaps.texts(made, info.name)


def where_it_is(job: JobRef) -> JobSpec:
    """Return the job's spec; what it left open is as it was decided then."""
    spec, scope = job.info.asked, job.scope
    pinned = replace(
        spec.cluster, context=scope.context or None, namespace=scope.namespace, kind=job.kind.name
    )
    return replace(spec, cluster=pinned)


async def packed_again(job: JobRef, info: JobInfo) -> Packed | Stored:
    """Read the payload, and the key that it is signed with, back from the job's Secrets.

    Raises ``ClusterError``, and ``SubmitError`` where some of it is gone.
    """
    try:
        first = await job.secret()
    except NotFoundError as exc:
        raise package.gone(info.name) from exc
    key = package.value(first, package.KEY)
    if package.URL in package.data(first):
        url, _, digest = package.value(first, package.URL).decode().partition("\n")
        # Who wrote the Secret may be somebody else, and it is this machine that reads what the URL leads to.
        if not stores.holds_payload(info.asked.cluster.storage, url, digest):
            raise SubmitError(f"the payload of {info.name} is at {url[:200]!r}, not in its --storage")
        return Stored(url, digest, key, info.call, job.cache.ours)
    try:
        data = package.payload(await job.secrets())
    except ValueError:
        raise package.gone(info.name) from None
    return Packed(memoryview(data), key, info.call, job.cache.ours)
