"""The account, the server and the namespace, with what its Pod Security level refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import session
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.login import Login
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects.paths import NAMESPACES, WHO, Target
from nbtorchjob.errors import ApiError, ClusterError, ForbiddenError, NotFoundError
from nbtorchjob.spec.jobspec import JobSpec


def login(context: str | None, credentials: Login) -> Finding:
    """Report where the credentials lead."""
    name = f"the context {context}" if context else "the current context"
    return Finding(True, f"{name} points to {credentials.server}, namespace {credentials.namespace}")


async def version(client: Client) -> list[Finding]:
    """Report which release answers. Raises ``ClusterError``, also for credentials that aren't accepted."""
    release = (await session.version(client))["gitVersion"]
    return [Finding(True, f"it responds and accepts the credentials: Kubernetes {release}")]


async def user(client: Client) -> str:
    """Return the name by which the server knows us; "" where it doesn't report it."""
    review = {"apiVersion": WHO.group_version, "kind": WHO.kind}
    try:
        return str((await client.create(WHO, None, review))["status"]["userInfo"].get("username", ""))
    except ClusterError:
        return await _refused_user(client)


async def _refused_user(client: Client) -> str:
    """Make the server refuse something harmless: before Kubernetes 1.28 only a refusal names the user."""
    try:
        await client.list(NAMESPACES, None)
    except ClusterError as exc:
        match = re.search(r'User "([^"]*)"', exc.said if isinstance(exc, ApiError) else "")
        return match[1] if match else ""
    return ""


def account(name: str) -> Finding:
    """Report who we are."""
    return Finding(
        True, f"you are {name}" if name else "your user name is unknown: this server doesn't report it"
    )


async def namespace(client: Client, name: str) -> list[Finding]:
    """Report whether the namespace exists and isn't being deleted. Raises ``ClusterError``."""
    try:
        obj = await client.get(Target(NAMESPACES, None, name))
    except ForbiddenError:
        text = f"namespace {name}: can't check whether it exists, because reading it isn't permitted"
        return [Finding(True, text)]
    except NotFoundError:
        text = f"the namespace {name} doesn't exist: choose one with --namespace, or have it created"
        return [Finding(False, text, f"kubectl create namespace {name}")]
    if (obj.get("status") or {}).get("phase") == "Terminating":
        text = f"the namespace {name} is being deleted: wait until it is gone, or choose another --namespace"
        return [Finding(False, text)]
    return [Finding(True, f"the namespace {name} exists")]


ENFORCE = "pod-security.kubernetes.io/enforce"
_HOSTS = {"bind": "a host's folder", "device": "a host's device"}


async def pod_security_findings(
    client: Client, namespace: str, kind: Kind | None, spec: JobSpec
) -> list[Finding]:
    """Report what level is enforced, and what of the job it refuses. Raises ``ClusterError``."""
    try:
        obj = await client.get(Target(NAMESPACES, None, namespace))
    except ForbiddenError:
        text = "its Pod Security level is unknown, too: if it refuses a pod, the waiting job says so"
        return [Finding(True, text)]
    labels: Mapping[str, Any] = obj["metadata"].get("labels") or {}
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
