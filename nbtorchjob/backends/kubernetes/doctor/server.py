"""What the server has for a job: an account, a version, a namespace with its Pod Security, kinds, rights.

The table of rights is the only one: it has every call that jobs need, with its purpose. The doctor checks
each with the server and prints a Role with the missing ones, and ``docs/permissions.md`` is made from it; a
test runs jobs of all kinds under a Role with exactly these rights, and checks that none is unused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import session
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.login import Login
from nbtorchjob.backends.kubernetes.kinds import KINDS, Kind, fit
from nbtorchjob.backends.kubernetes.kinds.fit import Served, enforced, retry_owner
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import (
    HOSTS,
    NAMESPACES,
    POD_GROUPS,
    WHO,
    Right,
    Target,
    Use,
    grant,
)
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ApiError, ClusterError, ForbiddenError, NotFoundError, SpecError, SubmitError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import US


def login(context: str | None, credentials: Login) -> Finding:
    """Report where the credentials lead."""
    name = f"the context {context}" if context else "the current context"
    return Finding(True, f"{name} points to {credentials.server}, namespace {credentials.namespace}")


async def version(client: Client) -> list[Finding]:
    """Report the server's release. Raises ``ClusterError``, also for credentials that aren't accepted."""
    release = (await session.version(client))["gitVersion"]
    return [Finding(True, f"it responds and accepts the credentials: Kubernetes {release}")]


async def user(client: Client) -> str:
    """Return the user's name on the server; "" if the server doesn't report it."""
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
    """Report who the user is."""
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
    """Report which level is enforced, and what it refuses of the job. Raises ``ClusterError``."""
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
    """Yield what a level refuses of a job's pods as they are made here, each with a remedy."""
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


_FOR_ALL = "v1alpha2"  # of 1.36, whose Job controller groups all jobs that it can
_WHAT = "PodGroups (scheduling.k8s.io, Kubernetes 1.36)"
_ALONE = (
    "some nodes may hold their hosts while the others wait; --start-within 10m ends that, "
    "and a queue of Kueue's (--queue) avoids it"
)


async def gang_findings(cluster_session: Session, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report whether Kubernetes itself places all nodes at once, if the kind leaves that to it.

    Raises ``ClusterError``.
    """
    if kind is None or not kind.grouped or spec.launch.max_nodes < 2:
        return []
    api = await cluster_session.newest(POD_GROUPS)
    if api is None:
        return [Finding(True, f"{_WHAT} aren't served, so nodes get their hosts one by one: {_ALONE}")]
    if api.version == _FOR_ALL:
        gates = "where the Job controller makes them (its gate EnableWorkloadWithJob)"
        return [Finding(True, f"{_WHAT} are served: {gates}, all nodes are placed at once, or none")]
    restriction = "but from 1.37 on only for jobs that request them, which this one doesn't"
    return [Finding(True, f"{_WHAT} are served, {restriction}: {_ALONE}")]


def findings(kind: Kind, spec: JobSpec, minor: int) -> Iterator[Finding]:
    """Report who enforces the budgets, and what that needs; nothing for a job without budgets."""
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
    subject = f"preemptible hosts ({labels})"
    try:
        number = len((await client.list(HOSTS, None, labels=labels)).items)
    except ForbiddenError:
        return [Finding(True, f"{subject}: can't check, because listing nodes isn't permitted")]
    if number:
        return [Finding(True, f"{subject}: {number} now")]
    text = (
        f"{subject}: none now; unless the cluster adds hosts by itself, change --spot-selector or omit "
        "--preemptible"
    )
    return [Finding(False, text)]


def per_kind(served: Served, minor: int, spec: JobSpec, *, needed: bool) -> Iterator[Finding]:
    """Report for each kind whether it is served and can run the job.

    A missing one is bad only if it was requested, or if any kind is ``needed``.
    """
    for kind in KINDS.values():
        is_requested = spec.cluster.kind == kind.name
        if kind.api[:3] not in served:
            is_needed = is_requested or (needed and spec.cluster.kind is None)
            others = fit.other_versions(kind, served)
            status = f"served only in {others}" if others else "not served"
            operator = kind.operator or "Kubernetes itself"
            text = f"{kind.name}: {kind.api} {kind.api.version} is {status}; it comes with {operator}"
            # Users who don't need it shouldn't have to read how to install it.
            yield Finding(not is_needed, text, kind.install if is_needed else "")
            continue
        text = f"{kind.name}: {kind.api} {kind.api.version} is served"
        if minor < kind.minor:
            yield Finding(not is_requested, f"{text}, but this kind needs Kubernetes 1.{kind.minor}")
            continue
        try:
            fit.check(kind, spec, minor)
        except SpecError as exc:
            yield Finding(not is_requested, f"{text}, but it can't do this job: {exc}")
        else:
            yield Finding(True, text)


def chosen(served: Served, minor: int, spec: JobSpec) -> tuple[Kind | None, list[Finding]]:
    """Return the kind that the job would be, and the findings about it."""
    try:
        kind = fit.choose(served, spec, minor)
    except (SpecError, SubmitError) as exc:
        # One of the kinds that need nothing installed may do, or would on a newer server.
        bare = (kind for kind in KINDS.values() if not kind.operator)
        able = min(bare, key=lambda kind: minor < kind.minor, default=None)
        text = str(exc)
        if able is not None:
            text += f"; --kind {able.name} needs nothing installed"
            text += f", but Kubernetes 1.{able.minor} or later" if minor < able.minor else ""
        return None, [Finding(False, text)]
    cautions = [*fit.left_to_us(kind, spec, minor), *fit.cautions(kind, spec, minor)]
    notes = [Finding(True, f"mind: {caution}") for caution in cautions]
    finding = Finding(True, f"the job would be a {kind.api.kind} (--kind {kind.name})")
    return kind, [finding, *findings(kind, spec, minor), *notes]


# For jobs of any kind.
ALWAYS = (
    Use(
        "create patch", reading.SECRETS, "the payload and the job's key; the job is made their owner; `swap`"
    ),
    Use(
        "get list", reading.SECRETS, "the key of a value, a further attempt, `retry`, `export`, `swap`, `gc`"
    ),
    Use("delete", reading.SECRETS, "cleaning up a failed submission, `gc`"),
    Use("list watch", reading.PODS, "status, `list`"),
    Use("get", reading.PODS, "logs, metrics, values", "log"),
    Use("list", reading.SERVICES, "`export`, `gc`"),
)
CLEANING = (Use("delete", reading.PODS, "pods that nothing else removes"),)
ISOLATING = (
    Use("create get", reading.POLICIES, "`--network-policy`; read if a response was lost"),
    Use("list delete", reading.POLICIES, "`gc`, of exported jobs"),
)
_RUNTIMES = [
    (kind.runtimes, f"the runtime that a {kind.api.kind} names; the panel's choices")
    for kind in KINDS.values()
    if kind.runtimes is not None
]
ADOPTED = tuple(
    Use(
        "list", api, f"refusing a job's name if {kind.operator} would take over another's object of that name"
    )
    for kind in KINDS.values()
    for api, _ in kind.adopts
    if api != reading.SERVICES  # which all jobs may list already
)
# A job also runs without these: what needs them is left out, and the doctor reports it.
OPTIONAL = (
    Use("list watch", reading.EVENTS, "why a pod waits"),
    Use(
        "get create",
        reading.PODS,
        "asking a running job's nodes (`create`: from Kubernetes 1.35 on)",
        "exec",
    ),
    *(Use("get list", runtimes.own, why) for runtimes, why in _RUNTIMES),
    Use("get list", reading.ACCOUNTS, "`doctor`: whether it exists; the panel's choices"),
    Use("get list", reading.CLAIMS, "`doctor`: whether it exists and is usable; the panel's choices"),
    Use("list", reading.QUOTAS, "`doctor`: whether the job fits"),
    Use(
        "list",
        reading.LOCAL_QUEUES,
        "`doctor`: whether the queue exists and is open; how much is used; the panel's choices",
    ),
    Use(
        "list watch",
        reading.WORKLOADS,
        "what a job in a queue of Kueue's waits for, and why it lost its nodes",
    ),
    Use(
        "get",
        reading.VISIBLE_QUEUES,
        "a job's position in its queue, as Kueue counts it",
        "pendingworkloads",
    ),
    Use("list watch", reading.POD_GROUPS, "why pods that Kubernetes places all at once are waiting"),
    *ADOPTED,
    Use("patch", reading.WORKLOADS, "`suspend` and `resume` of a job that its queue has admitted"),
)
# The same, for objects in no namespace, or in all.
CLUSTERWIDE = (
    Use("get list", reading.NAMESPACES, "`doctor`: whether it exists, its Pod Security; the panel's choices"),
    *(Use("get list", runtimes.shared, why) for runtimes, why in _RUNTIMES),
    Use("get list", reading.CLUSTER_QUEUES, "how much a Kueue queue has, may borrow and uses"),
    Use("get", reading.COHORTS, "`doctor`: whether more may be borrowed than other queues have"),
    Use("get list", reading.WORKLOAD_PRIORITIES, "`doctor`: whether it exists; the panel's choices"),
    Use("get list", reading.PRIORITIES, "`doctor`: whether it exists; the panel's choices"),
    *(
        Use("get list", kind.queues.api, "`doctor`: whether it exists and is open; the panel's choices")
        for kind in KINDS.values()
        if kind.queues is not None
    ),
    Use("list", reading.HOSTS, "`doctor`: which have room for a pod or are preemptible; the panel's choices"),
    Use(
        "get", reading.HOSTS, "telling ranks to save as soon as a cloud says that their host is about to end"
    ),
    Use("list", reading.PODS, "the panel: free room on hosts"),
)
# To know and announce who tends jobs: without these it is unknown, and several tenders watch the same jobs.
BEATS = (
    Use("list", reading.LEASES, "`describe`: who looks after a job now"),
    Use(
        "get create patch",
        reading.LEASES,
        "`nbtorchjob tend`, the Jupyter server: which of several is active",
    ),
)
# For a tender of everyone's jobs; ``tender_rights`` adds its rights on job objects.
TENDING = (
    Use("list", reading.SECRETS, "a further attempt: which Secrets its payload is in"),
    Use(
        "list",
        reading.SERVICES,
        "a further attempt: whether its operator would take over another's of its name",
    ),
    *ADOPTED,
    Use("list watch", reading.PODS, "what becomes of jobs"),
    Use("get", reading.PODS, "why a node ended", "log"),
    *CLEANING,
    Use("list watch", reading.EVENTS, "why a pod waits"),
    *(Use("get", runtimes.own, why) for runtimes, why in _RUNTIMES),
    BEATS[1],
)
TENDING_CLUSTERWIDE = tuple(Use("get", runtimes.shared, why) for runtimes, why in _RUNTIMES)
EVENTS = tuple(OPTIONAL[0].rights)
ASKING = tuple(OPTIONAL[1].rights)


def own_rights(kind: Kind) -> tuple[Use, ...]:
    """Return the calls on the job objects themselves."""
    return (
        Use("create", kind.api, "to submit"),
        Use("get list watch", kind.api, "to find a job, to follow it"),
        Use("patch", kind.api, "`cancel`, `suspend`, `resume`, `note`, `tag`, jobs of pools"),
        Use("delete", kind.api, "`delete`, `gc`, cleaning up a failed submission"),
    )


def tender_rights() -> list[Right]:
    """Return the rights that a tender of everyone's jobs needs in their namespace."""
    kinds = (Use("create get list watch patch delete", kind.api, "") for kind in KINDS.values())
    more = (use for kind in KINDS.values() for use in kind.uses if use.verbs != "delete")
    return rights((*kinds, *more, *TENDING))


def needed_rights(kind: Kind | None, spec: JobSpec | None = None) -> list[Right]:
    """Return the rights that a job can't do without; by default one that requests nothing special."""
    if kind is None:
        return rights(ALWAYS)
    own_policies = fit.own_policies(kind, spec, "") if spec else ()
    cleaning = CLEANING if "clean_pod_policy" in own_policies else ()
    isolating = ISOLATING if spec and spec.cluster.network_policy else ()
    return rights((*own_rights(kind), *ALWAYS, *kind.uses, *cleaning, *isolating))


def rights(uses: Iterable[Use]) -> list[Right]:
    """Return each of their rights once."""
    return [*dict.fromkeys(right for use in uses for right in use.rights)]


_NOBODY = "NAME-OF-THE-USER"
_OPTIONAL = {
    EVENTS: "reading events isn't permitted, so the reason why a pod waits won't be shown",
    ASKING: "exec in pods isn't permitted, so a running job's nodes can't be asked anything",
}


async def permission_findings(
    client: Client, namespace: str, kind: Kind | None, spec: JobSpec, user: str
) -> list[Finding]:
    """Report what is permitted, with a Role for all that isn't. Raises ``ClusterError``."""
    must = needed_rights(kind, spec)
    rights = [*must, *EVENTS, *ASKING]
    answers = await asyncio.gather(*(session.allowed(client, *right, namespace) for right in rights))
    denied = [right for right, good in zip(rights, answers, strict=True) if not good]

    def role(rights: Sequence[Right]) -> str:
        return grant(user or _NOBODY, namespace, rights).rstrip()

    bad = [right for right in denied if right not in (*EVENTS, *ASKING)]
    if bad:
        by_resource: dict[str, list[str]] = {}
        for right in bad:
            by_resource.setdefault(right.full_name, []).append(right.verb)
        permissions = "; ".join(f"{' '.join(verbs)} {resource}" for resource, verbs in by_resource.items())
        text = f"not permitted: {permissions}; an administrator can grant it"
        findings = [Finding(False, text, role(denied))]
    else:
        findings = [Finding(True, f"all {len(must)} permissions that a job needs are granted")]
    for optional, text in _OPTIONAL.items():
        if missing := [right for right in optional if right in denied]:
            findings.append(Finding(True, text, "" if bad else role(missing)))
    return findings
