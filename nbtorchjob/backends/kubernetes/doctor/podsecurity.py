"""What the namespace's Pod Security level would refuse of a job's pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.client import Client
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import NAMESPACES, Target
from nbtorchjob.backends.kubernetes.refusals import Refusal
from nbtorchjob.config import PyTorch
from nbtorchjob.spec import JobSpec

ENFORCE = "pod-security.kubernetes.io/enforce"
_HOSTS = {"bind": "a host's folder", "device": "a host's device"}


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Say what level is enforced, and what of the job it refuses. Raises ``Refusal``."""
    try:
        found = await client.get(Target(NAMESPACES, None, namespace))
    except Refusal as exc:
        if exc.status == 403:
            text = "its Pod Security level isn't known either: a pod that it refuses says so as it waits"
            return [Finding(True, text)]
        raise
    labels: Mapping[str, Any] = found["metadata"].get("labels") or {}
    level = str(labels.get(ENFORCE) or "privileged")
    wrong = list(refused(level, kind, spec))
    if wrong:
        text = f"Pod Security: the namespace enforces {level}, which refuses {', and '.join(wrong)}"
        return [Finding(False, text)]
    if level == "privileged":
        return [Finding(True, "Pod Security: the namespace refuses no pod for what it may do")]
    doubt = "; what --pod-patch changes wasn't looked into" if spec.cluster.pod_patch else ""
    return [Finding(True, f"Pod Security: the job's pods pass {level}{doubt}")]


def refused(level: str, kind: Kind | None, spec: JobSpec) -> Iterator[str]:
    """Give what of a job's pods, as they are made here, a level refuses, each with what to do."""
    if level not in ("baseline", "restricted"):
        return
    for type_ in dict.fromkeys(mount.type for mount in spec.cluster.mounts if mount.type in _HOSTS):
        yield f"{_HOSTS[type_]} (leave the --mount out, or choose another --namespace)"
    if level == "baseline":
        return
    if spec.cluster.user is None:
        yield "pods that may run as root (give --run-as UID)"
    # Its workers wait for the master in a container of the operator's own making (1.9).
    roles = isinstance(spec.launch, PyTorch) and spec.launch.max_nodes > 1
    if roles and kind is not None and kind.name == "pytorchjob":
        yield "the operator's init container (give --nnodes instead of roles, or another --kind)"
