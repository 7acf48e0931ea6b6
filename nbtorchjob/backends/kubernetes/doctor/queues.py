"""The queue of Kueue's that a job names: whether it is there, open, and could ever admit the job.

And the priority that it is to have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.doctor.capacity import asked, worded
from nbtorchjob.backends.kubernetes.jobs import queueing
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects import reading, workloads
from nbtorchjob.backends.kubernetes.objects.paths import (
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    WORKLOAD_PRIORITIES,
    Api,
    Target,
)
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError, ForbiddenError, NotFoundError
from nbtorchjob.spec.jobspec import JobSpec


async def look(here: Session, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report of the job's queue and priority, where Kueue looks after its kind. Raises ``ClusterError``."""
    queue = await _queue(here, namespace, kind, spec)
    return [*queue, *await _priority(here, spec.cluster.workload_priority)]


async def _priority(here: Session, name: str | None) -> list[Finding]:
    """Report whether the job's WorkloadPriorityClass is there: without it Kueue never looks at the job."""
    if name is None:
        return []
    api, text = await here.newest(WORKLOAD_PRIORITIES), f"workload priority {name}"
    if api is None:
        return [Finding(False, f"{text}: this cluster has no Kueue; leave out --workload-priority")]
    try:
        await here.client.get(Target(api, None, name))
    except ForbiddenError:
        return [Finding(True, f"{text}: can't check whether it exists, because reading it isn't permitted")]
    except NotFoundError:
        # Kueue (0.19) makes no Workload for such a job, and says so to nobody.
        return [Finding(False, f"{text} doesn't exist, and Kueue would never start the job: choose another")]
    return [Finding(True, f"{text} exists")]


async def _queue(here: Session, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    name = spec.cluster.queue
    # Nothing is asked of a cluster for a job that names none.
    api = await here.newest(LOCAL_QUEUES) if name and kind is not None and kind.suspend else None
    if api is None:
        return []
    try:
        there = await names(here.client, api, namespace)
    except ForbiddenError as exc:
        text = f"queue {name}: can't check whether it exists, because listing queues isn't permitted"
        return [Finding(True, text, exc.grant)]
    known = ", ".join(sorted(there)) or "none"
    if name not in there:
        text = f"there is no queue {name} in {namespace}: choose another with --queue, or have it created"
        return [Finding(False, f"{text}; there are: {known}")]
    closed = reading.condition(there[name], "Active", "False")
    if closed is not None:
        said = closed.get("message") or closed.get("reason")
        return [Finding(False, f"queue {name} is closed: {said}; choose another with --queue")]
    return [Finding(True, f"queue {name} exists and is open"), *await _fits(here, there[name], spec)]


async def names(client: Client, api: Api, namespace: str) -> dict[str, Object]:
    """Return a namespace's queues by name. Raises ``ClusterError``."""
    items = (await client.list(api, namespace)).items
    return {item["metadata"]["name"]: item for item in items}


async def _fits(here: Session, local: Object, spec: JobSpec) -> list[Finding]:
    """Report whether the queue's quota would ever be enough, as far as that may be read."""
    text, whole = f"queue {local['metadata']['name']}", workloads.cluster_queue(local)
    try:
        queue = await queueing.cluster_queue(here, whole)
    except ClusterError:
        queue = None
    if queue is None:
        said = f"it isn't known how much it has, because reading {whole} isn't permitted"
        return [Finding(True, f"{text}: {said}")]
    # What all nodes request, by resource.
    requests = ((key.partition("."), need) for key, need in asked(spec).items())
    wanted = {name: need for (kind, _, name), need in requests if kind == "requests"}
    if not _short(wanted, workloads.quota(queue)):
        return [Finding(True, f"{text} has enough in all for the job")]
    cohort = workloads.cohort(queue)
    others = await _lenders(here, whole, cohort) if cohort else ()
    most = workloads.most(queue, others)
    if short := _short(wanted, most):
        borrowed = f", with all that may be borrowed in cohort {cohort}" if cohort else ""
        amounts = ((key, worded(key, wanted[key]), worded(key, most.get(key, 0.0))) for key in short)
        why = "; ".join(f"{need} {key} requested, {has} in all" for key, need, has in amounts)
        said = f"{text} can never admit the job: {why}{borrowed}: ask for less, or choose another"
        return [Finding(False, said)]
    if others is None:
        said = "how much there is isn't known, as not all of it may be read, or it is part of another cohort"
        return [Finding(True, f"{text} would have to borrow in cohort {cohort}: {said}")]
    said = f"has enough for the job only with what others in cohort {cohort} don't use"
    return [Finding(True, f"{text} {said}")]


async def _lenders(here: Session, name: str, cohort: str) -> list[Object] | None:
    """Return the other ClusterQueues of a cohort; None where they may not be read, or aren't all there is."""
    api, above = await here.newest(CLUSTER_QUEUES), await here.newest(COHORTS)
    try:
        items = (await here.client.list(api, None)).items if api is not None else []
        with suppress(NotFoundError):  # a cohort needs no object
            if above is not None and not workloads.plain(await here.client.get(Target(above, None, cohort))):
                return None
    except ClusterError:
        return None
    return [item for item in items if workloads.cohort(item) == cohort and item["metadata"]["name"] != name]


def _short(wanted: Mapping[str, float], has: Mapping[str, float]) -> list[str]:
    return [name for name, need in wanted.items() if need > has.get(name, 0.0)]
