"""The queue of Kueue's that a job names: whether it is there, open, and could ever admit the job."""

from __future__ import annotations

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.doctor.quota import asked, worded
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.paths import CLUSTER_QUEUES, LOCAL_QUEUES, Api, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError, ForbiddenError
from nbtorchjob.spec.cluster.quantities import amount
from nbtorchjob.spec.jobspec import JobSpec


async def look(here: Session, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report of the job's queue, where Kueue looks after jobs of its kind. Raises ``ClusterError``."""
    name = spec.cluster.queue
    # Nothing is asked of a cluster for a job that names none.
    api = await here.newest(LOCAL_QUEUES) if name and kind is not None and kind.suspend else None
    if api is None:
        return []
    try:
        queues = await names(here.client, api, namespace)
    except ForbiddenError as exc:
        text = f"queue {name}: can't check whether it exists, because listing queues isn't permitted"
        return [Finding(True, text, exc.grant)]
    known = ", ".join(sorted(queues)) or "none"
    if name not in queues:
        text = f"there is no queue {name} in {namespace}: choose another with --queue, or have it created"
        return [Finding(False, f"{text}; there are: {known}")]
    closed = reading.condition(queues[name], "Active", "False")
    if closed is not None:
        said = closed.get("message") or closed.get("reason")
        return [Finding(False, f"queue {name} is closed: {said}; choose another with --queue")]
    return [Finding(True, f"queue {name} exists and is open"), *await _fits(here, queues[name], spec)]


async def names(client: Client, api: Api, namespace: str) -> dict[str, Object]:
    """Return a namespace's queues by name. Raises ``ClusterError``."""
    items = (await client.list(api, namespace)).items
    return {item["metadata"]["name"]: item for item in items}


async def _fits(here: Session, queue: Object, spec: JobSpec) -> list[Finding]:
    """Report whether the queue's quota would ever be enough, as far as that may be read."""
    name, whole = queue["metadata"]["name"], (queue.get("spec") or {}).get("clusterQueue") or ""
    api = await here.newest(CLUSTER_QUEUES)
    try:
        found = await here.client.get(Target(api, None, whole)) if api is not None else None
    except ClusterError:
        found = None
    if found is None:
        return [
            Finding(
                True, f"queue {name}: it isn't known how much it has, because reading {whole} isn't permitted"
            )
        ]
    inside = found.get("spec") or {}
    if inside.get("cohortName") or inside.get("cohort"):
        return [Finding(True, f"queue {name} may borrow from others: how much it has in all wasn't checked")]
    has = _quota(inside)
    wanted = {
        key.removeprefix("requests."): need
        for key, need in asked(spec).items()
        if key.startswith("requests.")
    }
    short = [
        f"{worded(what, need)} {what} requested, {worded(what, has.get(what, 0.0))} in all"
        for what, need in wanted.items()
        if need > has.get(what, 0.0)
    ]
    if short:
        return [
            Finding(
                False,
                f"queue {name} can never admit the job: {'; '.join(short)}: ask for less, or choose another",
            )
        ]
    return [Finding(True, f"queue {name} has enough in all for the job")]


def _quota(inside: Object) -> dict[str, float]:
    """Return how much a ClusterQueue has of each resource, over all its flavors."""
    found: dict[str, float] = {}
    for group in inside.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for each in flavor.get("resources") or ():
                found[each["name"]] = found.get(each["name"], 0.0) + amount(
                    str(each.get("nominalQuota") or "0")
                )
    return found
