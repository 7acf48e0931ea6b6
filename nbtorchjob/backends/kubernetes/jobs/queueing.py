"""What Kueue says of jobs that are in its queues, read once."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.backends.kubernetes.objects.paths import WORKLOADS
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError
from nbtorchjob.state import events as ev


async def facts(job: JobRef) -> list[ev.Event]:
    """Return what Kueue says of a job; nothing where it isn't asked, or where that may not be read."""
    uids = _uids([job])
    found = await _all(job.session, job.scope.namespace) if uids else []
    return [fact for each in found if workloads.owner(each) in uids for fact in _said(each, found)]


async def of_jobs(here: Session, namespace: str, jobs: Iterable[JobRef]) -> dict[str, list[ev.Event]]:
    """Return what Kueue says of jobs by the uids of their newest objects; one request for all."""
    uids = _uids(jobs, newest=True)
    found = await _all(here, namespace) if uids else []
    return {workloads.owner(each): _said(each, found) for each in found if workloads.owner(each) in uids}


async def workload(here: Session, namespace: str, uid: str) -> Object | None:
    """Return the Workload of a job object; None where there is none, or none that may be read."""
    found = await _all(here, namespace, f"={uid}")
    return next((each for each in found if workloads.owner(each) == uid), None)


async def _all(here: Session, namespace: str, only: str = "") -> list[Object]:
    api = await here.newest(WORKLOADS)
    if api is None:
        return []
    try:
        return (await here.client.list(api, namespace, labels=f"{workloads.UID}{only}")).items
    except ClusterError:
        return []


def _said(mine: Object, others: Collection[Object]) -> list[ev.Event]:
    waits = [wait for each in others if (wait := workloads.wait(each)) is not None]
    return [*workloads.facts(mine), *workloads.standing(workloads.wait(mine), waits, time.time())]


def _uids(jobs: Iterable[JobRef], *, newest: bool = False) -> set[str]:
    return {
        obj["metadata"]["uid"]
        for job in jobs
        for obj in ((job.object,) if newest else (*job.earlier, job.object))
        if job.kind.suspend and workloads.queue(obj)
    }
