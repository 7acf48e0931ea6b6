"""Who starts a job's attempts again, and whether there are hosts that it may be preempted on."""

from __future__ import annotations

from collections.abc import Iterator

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.enforcement import enforced
from nbtorchjob.backends.kubernetes.kinds.retry_owner import retry_owner
from nbtorchjob.backends.kubernetes.objects.paths import HOSTS
from nbtorchjob.errors import ForbiddenError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import US


def findings(kind: Kind, spec: JobSpec, minor: int) -> Iterator[Finding]:
    """Say who enforces the budgets, and what that needs; nothing of a job without any."""
    if spec.retry is None:
        return
    who = retry_owner(kind, spec, minor)
    text = f"retries and preemptions: {enforced(kind, spec, who)['retries']}"
    # What the first attempt needs, too: it is among the permissions that are looked at.
    needs = f", and needs permission to create {kind.api} and to list secrets" if who == US else ""
    yield Finding(True, text + needs)


async def hosts(client: Client, spec: JobSpec) -> list[Finding]:
    """Say whether there are preemptible hosts, for a job that asks for them. Raises ``ClusterError``."""
    labels = ",".join(f"{key}={value}" for key, value in spec.cluster.spot_selector.items())
    if not (spec.cluster.preemptible and labels):
        return []
    what = f"preemptible hosts ({labels})"
    try:
        found = len((await client.list(HOSTS, None, labels=labels)).items)
    except ForbiddenError:
        return [Finding(True, f"{what}: can't check, because listing nodes isn't permitted")]
    if found:
        return [Finding(True, f"{what}: {found} now")]
    text = (
        f"{what}: none now; unless the cluster adds hosts by itself, change --spot-selector or omit "
        "--preemptible"
    )
    return [Finding(False, text)]
