"""What Kueue says about jobs in its queues, read once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable
from typing import TypeVar

from nbtorchjob.backends.kubernetes.api import answers
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.jobs import JobRef
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.backends.kubernetes.objects.reading import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    VISIBLE_QUEUES,
    WORKLOADS,
    Target,
)
from nbtorchjob.backends.kubernetes.objects.workloads import Look
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError
from nbtorchjob.state.facts import events as ev

T = TypeVar("T")

LATELY_S = 3.0  # for which one look at a queue serves all callers, whatever happens there


async def facts(job: JobRef) -> list[ev.Event]:
    """Return what Kueue says about a job; nothing if it is in no queue, or if that may not be read."""
    uids = _uids([job])
    listed = await _all(job.session, job.scope.namespace) if uids else []
    own_workloads = [item for item in listed if workloads.owner(item) in uids]
    return [fact for item in own_workloads for fact in await _queue_facts(job.session, item, listed)]


async def of_jobs(session: Session, namespace: str, jobs: Iterable[JobRef]) -> dict[str, list[ev.Event]]:
    """Return what Kueue says about jobs by the uids of their newest objects; one request for all."""
    uids = _uids(jobs, newest=True)
    listed = await _all(session, namespace) if uids else []
    by_uid = {uid: item for item in listed if (uid := workloads.owner(item)) in uids}
    return {uid: await _queue_facts(session, item, listed) for uid, item in by_uid.items()}


async def workload(session: Session, namespace: str, uid: str) -> Object | None:
    """Return the Workload of a job object; None if there is none, or none that may be read."""
    listed = await _all(session, namespace, f"={uid}")
    return next((candidate for candidate in listed if workloads.owner(candidate) == uid), None)


async def _all(session: Session, namespace: str, only: str = "") -> list[Object]:
    api = await session.newest(WORKLOADS)
    if api is None:
        return []
    try:
        return (await session.client.list(api, namespace, labels=f"{workloads.UID}{only}")).items
    except ClusterError:
        return []


async def _queue_facts(session: Session, own_workload: Object, others: Collection[Object]) -> list[ev.Event]:
    if (wait := workloads.wait(own_workload)) is None:
        return workloads.facts(own_workload)
    waits = [waiting for other in others if (waiting := workloads.wait(other)) is not None]
    look = await queue(session, own_workload["metadata"]["namespace"], wait.queue)
    return [*workloads.facts(own_workload), *workloads.standing(wait, waits, look, time.time())]


async def queue(session: Session, namespace: str, name: str) -> Look:
    """Return the state of a queue: as of now, or of a few seconds ago if it was just read."""
    answer = session.queues.get((namespace, name))
    if answer is None or time.monotonic() - answer[0] > LATELY_S:
        answer = time.monotonic(), asyncio.ensure_future(_look(session, namespace, name))
        session.queues[namespace, name] = answer
    return await asyncio.shield(answer[1])


async def _look(session: Session, namespace: str, name: str) -> Look:
    async def visible() -> dict[str, int]:
        api = await session.newest(VISIBLE_QUEUES)
        if api is None:
            return {}
        target = Target(api, namespace, name, "pendingworkloads")
        return workloads.places(await session.client.document(target.path, answers.PENDING))

    async def own() -> Object | None:
        api = await session.newest(LOCAL_QUEUES)
        items = (await session.client.list(api, namespace)).items if api is not None else []
        return next((item for item in items if item["metadata"]["name"] == name), None)

    places, local = await asyncio.gather(_permitted(visible()), _permitted(own()))
    if local is None:
        return Look(places or {})
    whole = await _permitted(cluster_queue(session, workloads.cluster_queue(local)))
    if whole is None:
        return Look(places or {}, workloads.used(local))
    return Look(places or {}, workloads.used(whole), workloads.quota(whole))


async def _permitted(work: Awaitable[T]) -> T | None:
    """Return what may be read; None for what may not, or doesn't exist."""
    try:
        return await work
    except ClusterError:
        return None


async def cluster_queue(session: Session, name: str) -> Object | None:
    """Return a ClusterQueue; None if the cluster has no such kind. Raises ``ClusterError``."""
    api = await session.newest(CLUSTER_QUEUES)
    return await session.client.get(Target(api, None, name)) if api is not None and name else None


def _uids(jobs: Iterable[JobRef], *, newest: bool = False) -> set[str]:
    return {
        obj["metadata"]["uid"]
        for job in jobs
        for obj in ((job.object,) if newest else (*job.earlier, job.object))
        if job.kind.suspend and workloads.queue(obj)
    }
