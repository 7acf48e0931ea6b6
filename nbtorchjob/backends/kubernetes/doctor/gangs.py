"""Whether the cluster itself places all nodes of a job at once, or none."""

from __future__ import annotations

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects.paths import POD_GROUPS
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.spec.jobspec import JobSpec

_FOR_ALL = "v1alpha2"  # of 1.36, whose Job controller groups all that it can
_WHAT = "PodGroups (scheduling.k8s.io, Kubernetes 1.36)"
_ALONE = (
    "some may hold theirs while the others wait; --start-within 10m ends that, "
    "and a queue of Kueue's (--queue) avoids it"
)


async def look(here: Session, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report it of a kind of several nodes that no operator of its own places. Raises ``ClusterError``."""
    if kind is None or not kind.grouped or spec.launch.max_nodes < 2:
        return []
    api = await here.newest(POD_GROUPS)
    if api is None:
        return [Finding(True, f"{_WHAT} aren't served, so nodes get their hosts one by one: {_ALONE}")]
    if api.version == _FOR_ALL:
        gates = "where the Job controller makes them (its gate EnableWorkloadWithJob)"
        return [Finding(True, f"{_WHAT} are served: {gates}, all nodes are placed at once, or none")]
    asked = "but from 1.37 on they place at once only what asks for it, which this job doesn't"
    return [Finding(True, f"{_WHAT} are served, {asked}: {_ALONE}")]
