"""Actions on a cluster job: end, suspend and resume it, and remove it once all of it is on this machine.

What this process does in place of an operator is logged, one line per deed, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

from nbtorchjob.backends.kubernetes import podlog
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.cache import JobCache, Pod, life
from nbtorchjob.backends.kubernetes.control import holding
from nbtorchjob.backends.kubernetes.jobs import JobRef, concluded, over, results
from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.backends.kubernetes.payload import shared, stores
from nbtorchjob.backends.kubernetes.podlog import SeenLines
from nbtorchjob.errors import (
    ApiError,
    ClusterError,
    DamagedError,
    ForbiddenError,
    NBTorchJobError,
    NotFoundError,
    SpecError,
    ValueLostError,
)
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import AWAITED, HELD, Sent
from nbtorchjob.state.facts.factlines import UNREADABLE
from nbtorchjob.text.hints import hint


async def save_logs(job: JobRef, *, whole: bool = True) -> None:
    """Cache the logs of the job's pods on this machine, unless a follower here does so anyway.

    Unless ``whole``, logs that can't be read in time are left out.
    """
    async with _saving(job, whole=whole):
        pass


_SAVED_WITHIN_S = 30.0
_AT_ONCE = 8


@asynccontextmanager
async def _saving(job: JobRef, *, whole: bool) -> AsyncGenerator[list[_Log]]:
    """Cache the logs of the job's pods and yield them; meanwhile nothing else here may write the cache.

    Yields none if a follower here caches them anyway. Unless ``whole``, what can't be had in time is left
    out: a job must end although a host is dead, a disk full, or its user may not read logs.
    """
    cache, logs = job.cache, list[_Log]()
    missing = () if whole else (ClusterError, OSError)
    try:
        claimed = cache.claim(await job.whole_info())
    except missing:
        claimed = False
    if not claimed:
        yield logs
        return
    try:
        with suppress(*missing):
            logs = [_Log(job, node, pod, cache) for node, pod in await job.pods()]
        some = asyncio.Semaphore(_AT_ONCE)

        async def save(log: _Log) -> None:
            async with some:
                with suppress(*missing):
                    await log.save()

        saving = [asyncio.ensure_future(save(log)) for log in logs]
        try:
            if saving:
                within = None if whole else _SAVED_WITHIN_S
                await asyncio.wait(saving, timeout=within, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in saving:
                task.cancel()
            ends = await asyncio.gather(*saving, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        yield logs
    finally:
        cache.release()


class _Log:
    """The log of one of the job's pods, on its way into the cache."""

    def __init__(self, job: JobRef, node: int, pod: Object, cache: JobCache) -> None:
        self._job, self._cache, self._seen = job, cache, SeenLines()
        self._name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._pod = Pod(node, uid)
        self._place = job.session.client, job.scope.namespace, self._name, job.kind.container
        self.grace_s = float((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 0)

    async def save(self) -> None:
        """Cache the log so far."""
        async for lines in podlog.read_all(*self._place, seen=self._seen):
            self._cache.add(self._pod, lines)

    async def save_rest(self) -> None:
        """Cache the rest of the log until the pod has ended or is gone, or its log can't be read any more."""

        async def ended() -> podlog.Life:
            pod = None
            with suppress(NotFoundError):
                pod = await self._job.session.client.get(Target(PODS, self._job.scope.namespace, self._name))
            same = pod is not None and pod["metadata"]["uid"] == self._pod.uid
            return life(pod if same else None, self._job.kind.container)

        with suppress(ClusterError):
            async with aclosing(podlog.follow(*self._place, ended=ended, seen=self._seen)) as batches:
                async for lines in batches:
                    self._cache.add(self._pod, lines)


async def bring_home(job: JobRef, *, whole: bool) -> None:
    """Fetch logs, values and artifacts; unless ``whole``, skip values and artifacts that are lost."""
    await save_logs(job)
    state = await results.cached(job)
    sent: tuple[Sent, ...] = (*state.values.values(), *state.artifacts.values())
    for fact in sent:
        with suppress(*(() if whole else (ValueLostError,))):
            await results.of(job, fact)


async def remove(job: JobRef) -> bool:
    """Delete a job's object with all that it owns, and its files in stores; False if the object was gone.

    Stores are cleared only for jobs sent from here: any other job's record may name any folder of this user.
    """
    sent_here = job.cache.ours
    deleted = await job.session.client.delete(job.whole, uid=job.root["metadata"]["uid"])
    if not sent_here:
        return deleted
    with suppress(DamagedError, SpecError):  # an unreadable record doesn't say where
        await asyncio.to_thread(stores.clear, job.info)
        if storage := job.info.jobspec.cluster.storage:
            await asyncio.to_thread(shared.done, storage, job.info.run)
    return deleted


async def end(job: JobRef) -> None:
    """End a cancelled job by removing it; the cache here records that it was cancelled and removed."""
    job = replace(job, object=await job.session.client.get(job.target))
    await bring_home(job, whole=False)
    await remove(job)
    cache = job.cache
    if cache.claim(job.info):  # else its follower here notes its end
        try:
            for fact in (ev.Removed(job.session.client.now()), ev.Closed(job.session.client.now())):
                cache.note(fact)
        finally:
            cache.release()


_PODS_GONE_S = 60.0


async def cancel(job: JobRef, early: str = "") -> None:
    """End the job's pods and keep its object; first cache the logs on this machine.

    ``early`` is why a run is stopped early.
    """
    # Whether nothing of the job is left to end; False if its facts make no sense
    try:
        state = concluded(job)
        if state.cancelled is not None:
            # Whether the newest attempt ends, too: the kernel that cancelled it may have been killed midway
            if holding.applies(job.kind, job.object) and state.verdict is None:
                has_ended = False  # check once more
            else:
                marked = bool(labelling.cancelled(job.object) and job.kind.suspend)
                has_ended = marked or state.suspended or state.verdict is not None
        else:
            has_ended = await over(job)
    except (DamagedError, *UNREADABLE):  # else a forged fact would keep the job from being ended
        has_ended = False
    if has_ended:
        return
    await save_logs(job, whole=False)
    when = labelling.wish(job.session.client.now(), early)
    await holding.halt(
        job.session,
        job.kind,
        job.target,
        labelling.CANCELLED,
        when,
        within=_PODS_GONE_S,
        last=partial(end, job),
    )


async def annotate(job: JobRef, fact: ev.Annotated) -> None:
    """Write a person's note and tags into an annotation of the object that owns the rest of the job."""
    await job.session.client.patch(
        job.whole, {"metadata": {"annotations": {labelling.NOTE: labelling.note(fact)}}}
    )


async def number(job: JobRef, newest: int) -> int:
    """Return a unique number for a pool's next job; 0 if the user may not patch the pool.

    A pod's log may be rotated, and is deleted with the pod, so the pool's object holds the newest number. The
    ``newest`` number known from elsewhere counts as well: people edit annotations, and jobs of users who may
    not patch aren't recorded there.
    """
    while True:
        obj = await job.session.client.get(job.whole)
        new, version = max(labelling.number(obj), newest) + 1, obj["metadata"]["resourceVersion"]
        metadata = {"annotations": {labelling.NUMBER: str(new)}, "resourceVersion": version}
        try:
            await job.session.client.patch(job.whole, {"metadata": metadata})
        except ForbiddenError:
            return 0
        except ApiError as exc:  # its operator and other senders change it as well
            if not exc.conflict:
                raise
        else:
            return new


async def suspend(job: JobRef) -> None:
    """Take the job's pods away; cache their output until they are gone, unless a follower here does.

    Raises ``SpecError`` for a job that has ended.
    """
    await _check_alive(job, "suspend")
    async with _saving(job, whole=False) as logs:
        await _set(job, suspended=True)
        within = _PODS_GONE_S + max((log.grace_s for log in logs), default=0.0)
        rest = [asyncio.ensure_future(log.save_rest()) for log in logs]
        try:
            if rest:
                await asyncio.wait(rest, timeout=within)
        finally:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)


async def resume(job: JobRef) -> None:
    """Let the job's pods be created again. Raises ``SpecError`` for a job that has ended."""
    await _check_alive(job, "resume")
    # Whether the job should have no pods: its spec says so before its status does
    suspended = job.kind.suspends(job.object) if job.kind.suspend else concluded(job).suspended
    if not suspended:
        return
    until = time.monotonic() + _PODS_GONE_S
    # A PyTorchJob that is resumed while a pod is still ending from the suspension fails (operator 1.9).
    while any((reading.deleted(pod) is not None or not reading.ended(pod)) for _, pod in await job.pods()):
        if time.monotonic() > until:
            name = job.info.name
            raise NBTorchJobError(f"{name}: its pods haven't ended yet; try {hint('resume', name)} again")
        await asyncio.sleep(0.5)
    await _set(job, suspended=False)


async def begin(job: JobRef) -> bool:
    """Start a run that waits for its turn; return False if it doesn't wait, or no longer.

    Any number of processes may do so at a time: an object that changed since it was read isn't patched.
    """
    while True:
        obj = await job.session.client.get(job.target)
        if labelling.turn(obj) != AWAITED or labelling.cancelled(obj):
            return False
        back = labelling.returned(obj)
        patch: dict[str, Any] = {
            "metadata": {
                **back,
                "annotations": {**back.get("annotations", {}), labelling.TURN: None},
                "resourceVersion": obj["metadata"]["resourceVersion"],
            }
        }
        # A run in a Kueue queue only goes back to that queue, and Kueue starts it.
        if not (back and await holding.decides(job.session, job.kind, obj)):
            patch = {**job.kind.suspended(suspended=False), **patch}
        try:
            await job.session.client.patch(job.target, patch)
        except ApiError as exc:
            if not exc.conflict:
                raise
        else:
            return True


async def _set(job: JobRef, *, suspended: bool) -> None:
    if labelling.turn(job.object):
        await job.session.client.patch(
            job.target, {"metadata": {"annotations": {labelling.TURN: HELD if suspended else None}}}
        )
    await holding.suspend(
        job.session, job.kind, job.target, job.object, suspended=suspended, within=_PODS_GONE_S
    )


async def _check_alive(job: JobRef, verb: str) -> None:
    state, name = concluded(job), job.info.name
    if state.cancelled is not None:
        raise SpecError(verb, name, "a job that wasn't cancelled: run its cell again")
    if state.verdict is None:
        return
    if await over(job):
        raise SpecError(verb, name, "a job that hasn't ended")
    number = labelling.attempt(job.object) + 1
    raise SpecError(verb, name, f"a job that has nodes; attempt {number} is yet to begin: wait, or cancel it")


Deed: TypeAlias = Literal[
    "started a run", "began an attempt", "ended an attempt", "deleted pods", "removed the job"
]

LOG = logging.getLogger("nbtorchjob.tending")
deeds: Counter[Deed] = Counter()


def log_deed(info: JobInfo, deed: Deed, why: str) -> None:
    """Log and count what was done to a job, with the reason."""
    deeds[deed] += 1
    LOG.info("%s: %s: %s", info.address, deed, why)
