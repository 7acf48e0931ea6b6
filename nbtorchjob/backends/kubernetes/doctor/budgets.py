"""Who starts a job's next attempts, and whether there are preemptible hosts."""

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
    """Report who enforces the budgets, and what that needs; nothing for a job without any."""
    if spec.retry is None:
        return
    who = retry_owner(kind, spec, minor)
    text = f"retries and preemptions: {enforced(kind, spec, who)['retries']}"
    # The first attempt needs it, too, so it is among the permissions that are checked.
    needs = f", and needs permission to create {kind.api} and to list secrets" if who == US else ""
    yield Finding(True, text + needs)


async def hosts(client: Client, spec: JobSpec) -> list[Finding]:
    """Report whether there are preemptible hosts, for a job that requests them. Raises ``ClusterError``."""
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
