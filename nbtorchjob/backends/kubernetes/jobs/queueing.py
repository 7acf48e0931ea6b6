"""What Kueue says of jobs that are in its queues, read once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.objects import workloads
from nbtorchjob.backends.kubernetes.objects.paths import WORKLOADS
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError
from nbtorchjob.state import events as ev

_MOST_NAMED = 20  # of a selector, which travels in a URL


async def facts(job: JobRef) -> list[ev.Event]:
    """Return what Kueue says of a job; nothing where it isn't asked, or where that may not be read."""
    found = await read(job.session, job.scope.namespace, _uids([job]))
    return [fact for workload in found.values() for fact in workloads.facts(workload)]


async def of_jobs(here: Session, namespace: str, jobs: Iterable[JobRef]) -> dict[str, Object]:
    """Return the Workloads of jobs that haven't ended, by the uids of their newest objects."""
    return await read(here, namespace, _uids(jobs, newest=True))


async def read(here: Session, namespace: str, uids: Collection[str]) -> dict[str, Object]:
    """Return the Workloads of these job objects by their uids, as far as they may be read."""
    api = await here.newest(WORKLOADS) if uids else None
    if api is None:
        return {}
    named = f"{workloads.UID} in ({','.join(uids)})" if len(uids) <= _MOST_NAMED else workloads.UID
    try:
        listing = await here.client.list(api, namespace, labels=named)
    except ClusterError:
        return {}
    return {workloads.owner(item): item for item in listing.items if workloads.owner(item) in uids}


def _uids(jobs: Iterable[JobRef], *, newest: bool = False) -> list[str]:
    return [
        obj["metadata"]["uid"]
        for job in jobs
        for obj in ((job.object,) if newest else (*job.earlier, job.object))
        if job.kind.suspend and workloads.queue(obj)
    ]
