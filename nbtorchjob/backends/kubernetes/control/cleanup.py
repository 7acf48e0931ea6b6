"""What jobs leave behind: ended ones, and Secrets and Services that belong to none."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Collection, Iterable
from contextlib import suppress

from nbtorchjob.backends.base import Leftover
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.control import actions, controller
from nbtorchjob.backends.kubernetes.control.actions import bring_home, remove
from nbtorchjob.backends.kubernetes.jobs import JobRef, find, of_object
from nbtorchjob.backends.kubernetes.kinds import Kind, fit
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import BESIDE, POLICIES, SECRETS, Target, created
from nbtorchjob.backends.kubernetes.payload import shared
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit import submitter
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import (
    ClusterError,
    DamagedError,
    ForbiddenError,
    JobNotFoundError,
    NBTorchJobError,
    SpecError,
    SubmitError,
)
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.facts.events import Verdict

_ENDING_S = 60.0  # for a cancelled job to end
_PARTS = {"Secret": SECRETS, **BESIDE}


async def leftovers() -> list[Leftover]:
    """Return ended jobs of this user, parts of jobs that don't exist, and what no job uses in stores.

    And jobs that somebody has cancelled, and that go on: whoever did so was killed before that held.
    """
    every: list[Leftover] = []
    for scope in namespaces.looked_at():
        with find.asking(scope):
            states = await find.states(scope, everyone=False)
            for job, state in states:
                since = state.ended if state.ended is not None else state.cancelled
                now = job.session.client.now()
                if since is not None and (state.ended is not None or now - since > _ENDING_S):
                    what = f"{state.phase.word} {job.kind.api.kind} in {scope.namespace}"
                    every.append(Leftover(state.info.name, what, now - since, state))
            for kind, item, age in await _orphans(scope, [job.info for job, _ in states]):
                every.append(_orphan(scope, kind, item, age))
    for unused, _ in await _unused():
        every.append(Leftover(unused.url, str(unused), unused.age))
    return every


async def _unused() -> list[tuple[shared.Unused, Collection[str] | None]]:
    """Return what no job uses in the stores that jobs from here share, and the runs of the jobs there are."""
    states: list[JobState] = []
    whole = True  # else there may be more
    stores_ = shared.remembered()
    for scope in namespaces.looked_at() if stores_ else ():
        try:
            states += [state for _, state in await find.states(scope, everyone=False)]
        except ClusterError:  # which was said
            whole = False
    alive = {state.info.run for state in states} if whole else None
    pairs: list[tuple[shared.Unused, Collection[str] | None]] = []
    for storage in stores_:
        of = [state for state in states if state.info.cluster and state.info.asked.cluster.storage == storage]
        installs = not whole or any(
            state.ended is None and (state.info.asked.package or state.info.asked.requirements)
            for state in of
        )
        try:
            batch = await asyncio.to_thread(shared.unused, storage, alive, installs=installs)
        except SubmitError as exc:
            warnings.warn(str(exc), stacklevel=2)
            continue
        pairs += [(unused, alive) for unused in batch]
    return pairs


def _orphan(scope: Scope, kind: str, item: Object, age: float) -> Leftover:
    return Leftover(item["metadata"]["name"], f"{kind} without a job in {scope.namespace}", age)


async def _orphans(scope: Scope, jobs: Iterable[JobInfo]) -> list[tuple[str, Object, float]]:
    """Return what belongs to no job, by kind, and for how many seconds it has been there."""
    names, groups = {info.name for info in jobs}, {info.group for info in jobs} - {""}
    client, labels = (await session(scope.context)).client, labelling.of_user(user())
    orphans = []
    for kind, api in _PARTS.items():
        try:
            items = (await client.list(api, scope.namespace, labels=labels, bare=True)).items
        except ForbiddenError:
            if api is POLICIES:  # whoever asks for none needs no permission to see any
                continue
            raise
        orphans += [(kind, item, client.now() - created(item)) for item in items]
    # What has an owner goes with it; the owner may be a job of a kind that we may not list. And a kernel
    # may be about to create the job that a young one belongs to.
    return [
        (kind, item, age)
        for kind, item, age in orphans
        if (item["metadata"].get("labels") or {}).get(labelling.JOB) not in names
        and (item["metadata"].get("labels") or {}).get(labelling.GROUP) not in groups
        and not item["metadata"].get("ownerReferences")
        and age > submitter.HALF_MADE_S
    ]


async def clear(leftover: Leftover) -> None:
    """Remove it; a job's logs and values are brought to this machine first, and stay here."""
    if "/" in leftover.name:  # as no object's
        for unused, alive in await _unused():
            if unused.url == leftover.name:
                await asyncio.to_thread(shared.remove, unused, alive)
        return
    if leftover.state is None:
        await _clear_orphan(leftover)
        return
    try:
        job = await find.find(leftover.state.info.address)
    except JobNotFoundError:
        return
    if job.info.created != leftover.state.info.created:
        return  # the name is another job's by now
    if leftover.state.ended is None:
        await actions.cancel(job)
    else:
        await bring_home(job, whole=True)
        await remove(job)


async def unexpired(jobs: list[tuple[JobRef, JobState]]) -> list[JobState]:
    """Return the states of the jobs that stay; those whose time has come are removed."""
    states = []
    for job, state in jobs:
        # A job whose time has come goes, unless what is to be saved can't be fetched.
        due = expires(job, state) if job.mine else None
        expired = False
        if due is not None and due <= job.session.client.now():
            with suppress(NBTorchJobError):  # it is listed then, and the next list tries again
                await expire(job)
                expired = True
        if not expired:
            states.append(state)
    return states


def expire_later(job: JobRef, state: JobState) -> None:
    """Remove an ended job when its time has come, if this kernel lives that long; else a list does."""
    due = expires(job, state) if job.mine else None
    if due is None:
        return

    async def wait() -> None:
        await asyncio.sleep(max(0.0, due - job.session.client.now()))
        with suppress(NBTorchJobError):  # somebody was faster, may do more than we, or reaches the store
            current = await find.find(job.info.address)
            if current.root["metadata"]["uid"] == job.root["metadata"]["uid"]:
                await expire(current)

    task = asyncio.ensure_future(wait())
    _expiring.add(task)  # the loop itself keeps only weak references
    task.add_done_callback(_expiring.discard)


_expiring: set[asyncio.Task[None]] = set()


async def expire(job: JobRef) -> None:
    """Remove a job whose time has come; one of this user's is brought home before.

    One of which an attempt goes on stays, whatever its other objects say: somebody else may have made those.
    Raises ``NBTorchJobError`` where it stays.
    """
    if not all(ended_itself(job.kind, obj) for obj in (*job.earlier, job.object)):
        return
    if job.mine:
        await bring_home(job, whole=False)
    if await remove(job):
        actions.log_deed(job.info, "removed the job", f"it had {job.info.ttl_s} s to live once it had ended")


def expires(job: JobRef, state: JobState) -> float | None:
    """When an ended job is to be removed by us; None where it isn't."""
    ttl, info = job.info.ttl_s, job.info
    if ttl is None or state.ended is None:
        return None
    try:
        left = fit.ours(job.kind, info.asked, info.retry_owner, halted=controller.halted(state))
    except (DamagedError, SpecError):  # who may change its object may write anything; it hides no other job
        return None
    return state.ended + ttl if "ttl_seconds_after_finished" in left else None


def ended_itself(kind: Kind, obj: Object) -> bool:
    """Whether an attempt's own object says that it has ended, or was ended."""
    return bool(labelling.cancelled(obj)) or any(isinstance(f, Verdict) for f in of_object(kind, obj))


async def _clear_orphan(leftover: Leftover) -> None:
    for scope in namespaces.looked_at():
        with find.asking(scope):
            jobs = [job.info for job, _ in await find.states(scope, everyone=False)]
            for kind, item, age in await _orphans(scope, jobs):
                orphan = _orphan(scope, kind, item, age)
                if (orphan.name, orphan.what) == (leftover.name, leftover.what):
                    client = (await session(scope.context)).client
                    target = Target(_PARTS[kind], scope.namespace, orphan.name)
                    await client.delete(target, uid=item["metadata"]["uid"])
