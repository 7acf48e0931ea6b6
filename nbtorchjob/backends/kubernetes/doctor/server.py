"""What the server has for a job: an account, a version, a namespace with its Pod Security, kinds of job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import session
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.login import Login
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.fit import Served, enforced, retry_owner
from nbtorchjob.backends.kubernetes.objects.paths import HOSTS, NAMESPACES, POD_GROUPS, WHO, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ApiError, ClusterError, ForbiddenError, NotFoundError, SpecError, SubmitError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import US


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
        # Make the server refuse something harmless: before Kubernetes 1.28 only a refusal names the user.
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


_FOR_ALL = "v1alpha2"  # of 1.36, whose Job controller groups all that it can
_WHAT = "PodGroups (scheduling.k8s.io, Kubernetes 1.36)"
_ALONE = (
    "some may hold theirs while the others wait; --start-within 10m ends that, "
    "and a queue of Kueue's (--queue) avoids it"
)


async def gang_findings(here: Session, kind: Kind | None, spec: JobSpec) -> list[Finding]:
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
        number = len((await client.list(HOSTS, None, labels=labels)).items)
    except ForbiddenError:
        return [Finding(True, f"{what}: can't check, because listing nodes isn't permitted")]
    if number:
        return [Finding(True, f"{what}: {number} now")]
    text = (
        f"{what}: none now; unless the cluster adds hosts by itself, change --spot-selector or omit "
        "--preemptible"
    )
    return [Finding(False, text)]


def per_kind(served: Served, minor: int, spec: JobSpec, *, needed: bool) -> Iterator[Finding]:
    """Report of each kind whether it is there and can do the job.

    A missing one is bad only if it was requested, or if any is ``needed``.
    """
    for kind in KINDS.values():
        if kind.api[:3] in served:
            yield _there(kind, minor, spec)
        else:
            wanted = spec.cluster.kind == kind.name or (needed and spec.cluster.kind is None)
            others = fit.other_versions(kind, served)
            seen = f"served only in {others}" if others else "not served"
            operator = kind.operator or "Kubernetes itself"
            text = f"{kind.name}: {kind.api} {kind.api.version} is {seen}; it comes with {operator}"
            # Whoever doesn't need it shouldn't have to read how to install it.
            yield Finding(not wanted, text, kind.install if wanted else "")


def _there(kind: Kind, minor: int, spec: JobSpec) -> Finding:
    text = f"{kind.name}: {kind.api} {kind.api.version} is served"
    asked = spec.cluster.kind == kind.name
    if minor < kind.minor:
        return Finding(not asked, f"{text}, but this kind needs Kubernetes 1.{kind.minor}")
    try:
        fit.check(kind, spec, minor)
    except SpecError as exc:
        return Finding(not asked, f"{text}, but it can't do this job: {exc}")
    return Finding(True, text)


def chosen(served: Served, minor: int, spec: JobSpec) -> tuple[Kind | None, list[Finding]]:
    """Return the kind that the job would be, and the findings about it."""
    try:
        kind = fit.choose(served, spec, minor)
    except (SpecError, SubmitError) as exc:
        return None, [Finding(False, _reason(exc, minor))]
    cautions = [*fit.left_to_us(kind, spec, minor), *fit.cautions(kind, spec, minor)]
    notes = [Finding(True, f"mind: {caution}") for caution in cautions]
    finding = Finding(True, f"the job would be a {kind.api.kind} (--kind {kind.name})")
    return kind, [finding, *findings(kind, spec, minor), *notes]


def _reason(error: Exception, minor: int) -> str:
    """Return why no kind will do, and with it the kinds that need nothing installed."""
    able = [kind for kind in KINDS.values() if not kind.operator]
    for kind in able:
        if minor >= kind.minor:
            return f"{error}; --kind {kind.name} needs nothing installed"
    for kind in able:
        needed = f"but Kubernetes 1.{kind.minor} or later"
        return f"{error}; --kind {kind.name} needs nothing installed, {needed}"
    return str(error)
