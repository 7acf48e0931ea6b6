"""What the namespace's Pod Security level would refuse of a job's pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects.paths import NAMESPACES, Target
from nbtorchjob.errors import ForbiddenError
from nbtorchjob.spec.jobspec import JobSpec

ENFORCE = "pod-security.kubernetes.io/enforce"
_HOSTS = {"bind": "a host's folder", "device": "a host's device"}


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report what level is enforced, and what of the job it refuses. Raises ``ClusterError``."""
    try:
        found = await client.get(Target(NAMESPACES, None, namespace))
    except ForbiddenError:
        text = "its Pod Security level is unknown, too: if it refuses a pod, the waiting job says so"
        return [Finding(True, text)]
    labels: Mapping[str, Any] = found["metadata"].get("labels") or {}
    level = str(labels.get(ENFORCE) or "privileged")
    wrong = list(refused(level, kind, spec))
    if wrong:
        text = f"Pod Security: the namespace enforces {level}, which refuses {', and '.join(wrong)}"
        return [Finding(False, text)]
    if level == "privileged":
        return [Finding(True, "Pod Security: the namespace allows every pod")]
    doubt = "; what --pod-patch changes wasn't checked" if spec.cluster.pod_patch else ""
    return [Finding(True, f"Pod Security: the job's pods pass {level}{doubt}")]


def refused(level: str, kind: Kind | None, spec: JobSpec) -> Iterator[str]:
    """Yield what a level refuses of a job's pods as they are made here, each with what to do."""
    if level not in ("baseline", "restricted"):
        return
    for type_ in dict.fromkeys(mount.type for mount in spec.cluster.mounts if mount.type in _HOSTS):
        yield f"{_HOSTS[type_]} (omit the --mount, or choose another --namespace)"
    if level == "baseline":
        return
    if spec.cluster.user is None:
        yield "pods that may run as root (set --run-as UID)"
    if kind is not None:
        yield from kind.unrestricted(spec)
