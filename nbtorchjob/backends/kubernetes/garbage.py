"""What jobs leave behind: ended ones, and Secrets and Services that belong to none."""

from __future__ import annotations

import time

from nbtorchjob.backends.base import Leftover
from nbtorchjob.backends.kubernetes import control, lookup, objects, once, stores, values
from nbtorchjob.backends.kubernetes.client import Object
from nbtorchjob.backends.kubernetes.lookup import Found
from nbtorchjob.backends.kubernetes.packing import user
from nbtorchjob.backends.kubernetes.paths import SECRETS, SERVICES, Target
from nbtorchjob.backends.kubernetes.places import Place
from nbtorchjob.backends.kubernetes.reading import created
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.errors import JobNotFoundError
from nbtorchjob.state import JobState

_PARTS = {"Secret": SECRETS, "Service": SERVICES}
# A kernel may be about to create the job that they belong to.
_HALF_MADE_S = 60.0


async def leftovers() -> list[Leftover]:
    """Give ended jobs of this user, and parts of jobs that don't exist."""
    found: list[Leftover] = []
    for place in lookup.looked_at():
        with lookup.asking(place):
            states = await lookup.states(place, everyone=False)
            found += [_ended(job, state) for job, state in states if state.ended is not None]
            found += await _orphans(place, {job.info.name for job, _ in states})
    return found


def _ended(job: Found, state: JobState) -> Leftover:
    what = f"{state.phase.value} {job.kind.api.kind} in {job.place.namespace}"
    return Leftover(state.info.name, what, time.time() - (state.ended or 0.0), state)


async def _orphans(place: Place, jobs: set[str]) -> list[Leftover]:
    client = (await session(place.context)).client
    found = []
    for kind, api in _PARTS.items():
        labels = f"{objects.OURS},{objects.USER}={objects.word(user())}"
        for item in (await client.list(api, place.namespace, labels=labels)).items:
            age = time.time() - created(item)
            if _job(item) not in jobs and age > _HALF_MADE_S:
                name = item["metadata"]["name"]
                found.append(Leftover(name, f"{kind} without a job in {place.namespace}", age))
    return found


def _job(item: Object) -> str:
    return str((item["metadata"].get("labels") or {}).get(objects.JOB))


async def clear(leftover: Leftover) -> None:
    """Remove it; a job's logs and values are brought to this machine first, and stay here."""
    if leftover.state is None:
        await _clear_orphan(leftover)
        return
    try:
        job = await lookup.find(leftover.name)
    except JobNotFoundError:
        return
    await _bring_home(job)
    await job.session.client.delete(job.target)
    storage = (job.info.spec.get("cluster") or {}).get("storage")
    if storage:
        stores.remove(stores.inside(storage, job.info.name))


async def _bring_home(job: Found) -> None:
    await control.save_logs(job)
    state = await once.snapshot(job)
    for value in state.values.values():
        await values.of(job, value)


async def _clear_orphan(leftover: Leftover) -> None:
    kind, _, namespace = leftover.what.partition(" without a job in ")
    for place in lookup.looked_at():
        if place.namespace == namespace:
            client = (await session(place.context)).client
            await client.delete(Target(_PARTS[kind], namespace, leftover.name))
