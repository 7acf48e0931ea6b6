"""How much a node gets: limits as requested, and requests that leave the host its reserve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.spec.config import Elastic, Master, Worker
from nbtorchjob.spec.jobspec import JobSpec

Replica: TypeAlias = Master | Worker

# What a host reserves for itself (torchx 0.7: reserved_millicpu, reserved_memmb): a request for all that
# a machine has would fit on none.
_RESERVED_CORES = 0.1
_RESERVED_BYTES = 1024e6


def replicas(spec: JobSpec) -> tuple[Replica, ...]:
    """Return each role's own settings: all nodes alike, or a master and its workers."""
    launch = spec.launch
    if isinstance(launch, Elastic):
        return (Worker(),)
    return (launch.master, launch.worker) if launch.worker.replicas else (launch.master,)


def resources(cluster: Cluster, replica: Replica) -> dict[str, dict[str, str]]:
    """Return the container's ``resources``. Raises ``SpecError`` for a request above its limit."""
    limits = _limits(cluster) if replica.limits is None else dict(replica.limits)
    if replica.requests is None:
        requests = {**limits, **({} if cluster.full_requests else _reduced(limits)), **cluster.request}
    else:
        requests = dict(replica.requests)
    for name in limits.keys() & requests.keys():
        if amount(requests[name]) > amount(limits[name]):
            raise SpecError("request", f"{name}={requests[name]}", f"at most its limit of {limits[name]}")
    return {kind: amounts for kind, amounts in (("limits", limits), ("requests", requests)) if amounts}


def shared_memory(spec: JobSpec, limits: Mapping[str, str]) -> str | None:
    """Return the size of ``/dev/shm``; None leaves the container runtime's 64 MB.

    NCCL and DataLoader's processes exchange data there, and die of a bus error when it is full. So a job
    of several ranks gets more by default: half of the pod's memory, as on any Linux machine, or 1 GiB a rank
    where memory has no limit. What lies there counts as the pod's memory.
    """
    asked, launch = spec.cluster.shm, spec.launch
    if asked is not None or not spec.own_shared_memory:
        return asked if spec.own_shared_memory else None
    if "memory" in limits:
        return f"{int(amount(limits['memory'])) // 2 // 2**20}Mi"
    return f"{launch.nproc_per_node}Gi"


def _limits(cluster: Cluster) -> dict[str, str]:
    named = {
        "cpu": cluster.cpu,
        "memory": cluster.memory,
        cluster.gpu_resource: str(cluster.gpu) if cluster.gpu else None,
    }
    return {**{name: text for name, text in named.items() if text}, **cluster.device, **cluster.limit}


def _reduced(limits: Mapping[str, str]) -> dict[str, str]:
    reduced = {}
    if "cpu" in limits:
        reduced["cpu"] = f"{_less(amount(limits['cpu']), _RESERVED_CORES, 1e-3)}m"
    if "memory" in limits:
        reduced["memory"] = f"{_less(amount(limits['memory']), _RESERVED_BYTES, 1e6)}M"
    return reduced


def _less(limit: float, reserved: float, unit: float) -> int:
    # Never below half: TorchX drops a request that isn't above 0, and the API then takes the limit.
    return max(1, int(max(limit - reserved, limit / 2) / unit + 1e-6))
