"""Clean up after jobs: ended jobs, and Secrets and Services that belong to no job."""

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
    """Return this user's ended jobs, parts of jobs that don't exist, and files in stores that no job uses.

    Also cancelled jobs that go on: the process that cancelled them was killed before that took effect.
    """
    every: list[Leftover] = []
    for scope in namespaces.looked_at():
        with find.asking(scope):
            states = await find.states(scope, everyone=False)
            for job, state in states:
                since = state.ended if state.ended is not None else state.cancelled
                now = job.session.client.now()
                if since is not None and (state.ended is not None or now - since > _ENDING_S):
                    description = f"{state.phase.word} {job.kind.api.kind} in {scope.namespace}"
                    every.append(Leftover(state.info.name, description, now - since, state))
            for kind, item, age in await _orphans(scope, [job.info for job, _ in states]):
                every.append(_orphan(scope, kind, item, age))
    for unused, _ in await _unused():
        every.append(Leftover(unused.url, str(unused), unused.age))
    return every


async def _unused() -> list[tuple[shared.Unused, Collection[str] | None]]:
    """Return unused files in the stores that jobs from here share, each with the runs of existing jobs."""
    states: list[JobState] = []
    whole = True  # False if some jobs couldn't be listed
    stores_ = shared.remembered()
    for scope in namespaces.looked_at() if stores_ else ():
        try:
            states += [state for _, state in await find.states(scope, everyone=False)]
        except ClusterError:  # already reported
            whole = False
    alive = {state.info.run for state in states} if whole else None
    readable = [state for state in states if state.info.cluster and not state.info.unreadable]
    # What a job takes whose spec can't be read is unknown.
    hidden = any(state.info.unreadable and state.ended is None for state in states)
    pairs: list[tuple[shared.Unused, Collection[str] | None]] = []
    for storage in stores_:
        of = [state for state in readable if state.info.jobspec.cluster.storage == storage]
        installs = (
            not whole
            or hidden
            or any(
                state.ended is None and (state.info.jobspec.package or state.info.jobspec.requirements)
                for state in of
            )
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
    """Return the objects that belong to no job, each with its kind and its age in seconds."""
    names, groups = {info.name for info in jobs}, {info.group for info in jobs} - {""}
    client, labels = (await session(scope.context)).client, labelling.of_user(user())
    orphans = []
    for kind, api in _PARTS.items():
        try:
            items = (await client.list(api, scope.namespace, labels=labels, bare=True)).items
        except ForbiddenError:
            if api is POLICIES:  # users who request none need no permission to list them
                continue
            raise
        orphans += [(kind, item, client.now() - created(item)) for item in items]
    # An object with an owner is deleted with it; the owner may be a job of a kind that we may not list.
    # And a kernel may be about to create the job that a young object belongs to.
    return [
        (kind, item, age)
        for kind, item, age in orphans
        if (item["metadata"].get("labels") or {}).get(labelling.JOB) not in names
        and (item["metadata"].get("labels") or {}).get(labelling.GROUP) not in groups
        and not item["metadata"].get("ownerReferences")
        and age > submitter.HALF_MADE_S
    ]


async def clear(leftover: Leftover) -> None:
    """Remove a leftover; a job's logs and values are first fetched to this machine, and stay here."""
    if "/" in leftover.name:  # a URL: no object's name has a slash
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
    """Remove the jobs whose time to live is over; return the states of the other jobs."""
    states = []
    for job, state in jobs:
        # An expired job is removed, unless what must be saved can't be fetched.
        due = expires(job, state) if job.mine else None
        expired = False
        if due is not None and due <= job.session.client.now():
            with suppress(NBTorchJobError):  # then the job is listed, and the next list tries again
                await expire(job)
                expired = True
        if not expired:
            states.append(state)
    return states


def expire_later(job: JobRef, state: JobState) -> None:
    """Remove an ended job when it expires, if this kernel lives that long; else a later list removes it."""
    due = expires(job, state) if job.mine else None
    if due is None:
        return

    async def wait() -> None:
        await asyncio.sleep(max(0.0, due - job.session.client.now()))
        with suppress(NBTorchJobError):  # another process was faster, may do more, or reaches the store
            current = await find.find(job.info.address)
            if current.root["metadata"]["uid"] == job.root["metadata"]["uid"]:
                await expire(current)

    task = asyncio.ensure_future(wait())
    _expiring.add(task)  # the loop itself keeps only weak references
    task.add_done_callback(_expiring.discard)


_expiring: set[asyncio.Task[None]] = set()


async def expire(job: JobRef) -> None:
    """Remove an expired job; if it is this user's, first fetch its logs, values and artifacts.

    A job stays while one of its attempts goes on, whatever its other objects say: somebody else may have made
    those. Raises ``NBTorchJobError`` if fetching or removing fails.
    """
    if not all(ended_itself(job.kind, obj) for obj in (*job.earlier, job.object)):
        return
    if job.mine:
        await bring_home(job, whole=False)
    if await remove(job):
        actions.log_deed(job.info, "removed the job", f"it ended more than {job.info.ttl_s} s ago")


def expires(job: JobRef, state: JobState) -> float | None:
    """When nbtorchjob, not an operator, is to remove an ended job; None if it isn't."""
    ttl, info = job.info.ttl_s, job.info
    if ttl is None or state.ended is None:
        return None
    try:
        left = fit.own_policies(job.kind, info.jobspec, info.retry_owner, halted=controller.halted(state))
    except (DamagedError, SpecError):  # anybody may have edited the object: that mustn't hide other jobs
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
                if (orphan.name, orphan.description) == (leftover.name, leftover.description):
                    client = (await session(scope.context)).client
                    target = Target(_PARTS[kind], scope.namespace, orphan.name)
                    await client.delete(target, uid=item["metadata"]["uid"])
