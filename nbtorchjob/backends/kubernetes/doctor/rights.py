"""What an account must be permitted: every call that jobs need, with its purpose (pure).

This is the only table. The doctor checks each with the server and prints a Role with the missing ones, and
``docs/permissions.md`` is made of it; a test runs jobs of all kinds under a Role of exactly these rights,
and checks that none is unused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import session
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects import paths
from nbtorchjob.backends.kubernetes.objects.rights import Right, Use, grant
from nbtorchjob.spec.jobspec import JobSpec

# For jobs of any kind.
ALWAYS = (
    Use("create patch", paths.SECRETS, "the payload and the job's key; the job is made their owner; `swap`"),
    Use("get list", paths.SECRETS, "the key of a value, a further attempt, `retry`, `export`, `swap`, `gc`"),
    Use("delete", paths.SECRETS, "cleaning up a failed submission, `gc`"),
    Use("list watch", paths.PODS, "status, `list`"),
    Use("get", paths.PODS, "logs, metrics, values", "log"),
    Use("list", paths.SERVICES, "`export`, `gc`"),
)
CLEANING = (Use("delete", paths.PODS, "pods that nothing else removes"),)
ISOLATING = (
    Use("create get", paths.POLICIES, "`--network-policy`; read if a response was lost"),
    Use("list delete", paths.POLICIES, "`gc`, of exported jobs"),
)
_RUNTIMES = [
    (kind.runtimes, f"the runtime that a {kind.api.kind} names; the panel's choices")
    for kind in KINDS.values()
    if kind.runtimes is not None
]
ADOPTED = tuple(
    Use("list", api, f"refusing a job's name where {kind.operator} would take another's object of that name")
    for kind in KINDS.values()
    for api, _ in kind.adopts
    if api != paths.SERVICES  # which all may list
)
# A job runs without these: what they are for is left out, and the doctor reports it.
OPTIONAL = (
    Use("list watch", paths.EVENTS, "why a pod waits"),
    Use(
        "get create",
        paths.PODS,
        "asking a running job's nodes (`create`: from Kubernetes 1.35 on)",
        "exec",
    ),
    *(Use("get list", runtimes.own, why) for runtimes, why in _RUNTIMES),
    Use("get list", paths.ACCOUNTS, "`doctor`: whether it exists; the panel's choices"),
    Use("get list", paths.CLAIMS, "`doctor`: whether it exists and is usable; the panel's choices"),
    Use("list", paths.QUOTAS, "`doctor`: whether the job fits"),
    Use(
        "list",
        paths.LOCAL_QUEUES,
        "`doctor`: whether the queue exists and is open; how much is used; the panel's choices",
    ),
    Use(
        "list watch", paths.WORKLOADS, "what a job in a queue of Kueue's waits for, and why it lost its nodes"
    ),
    Use(
        "get", paths.VISIBLE_QUEUES, "which place a job has in its queue, as Kueue counts", "pendingworkloads"
    ),
    Use("list watch", paths.POD_GROUPS, "what pods wait for that Kubernetes places all at once"),
    *ADOPTED,
    Use("patch", paths.WORKLOADS, "`suspend` and `resume` of a job that its queue has admitted"),
)
# The same, for what is in no namespace, or in all.
CLUSTERWIDE = (
    Use("get list", paths.NAMESPACES, "`doctor`: whether it exists, its Pod Security; the panel's choices"),
    *(Use("get list", runtimes.shared, why) for runtimes, why in _RUNTIMES),
    Use("get list", paths.CLUSTER_QUEUES, "what a queue of Kueue's has, may borrow, and what is used of it"),
    Use("get", paths.COHORTS, "`doctor`: whether more may be borrowed than other queues have"),
    Use("get list", paths.WORKLOAD_PRIORITIES, "`doctor`: whether it exists; the panel's choices"),
    Use("get list", paths.PRIORITIES, "`doctor`: whether it exists; the panel's choices"),
    *(
        Use("get list", kind.queues.api, "`doctor`: whether it exists and is open; the panel's choices")
        for kind in KINDS.values()
        if kind.queues is not None
    ),
    Use("list", paths.HOSTS, "`doctor`: which have room for a pod or are preemptible; the panel's choices"),
    Use("get", paths.HOSTS, "telling ranks to save as soon as a cloud says that their host is about to end"),
    Use("list", paths.PODS, "the panel: free room on hosts"),
)
# Who looks after jobs, and being that: without these it isn't told, and several tenders watch the same.
BEATS = (
    Use("list", paths.LEASES, "`describe`: who looks after a job now"),
    Use("get create patch", paths.LEASES, "`nbtorchjob tend`, the Jupyter server: which of several does it"),
)
# For a tender of everybody's jobs; what it does to job objects comes beside.
TENDING = (
    Use("list", paths.SECRETS, "a further attempt: which Secrets its payload is in"),
    Use("list", paths.SERVICES, "a further attempt: whether its operator would take another's of its name"),
    *ADOPTED,
    Use("list watch", paths.PODS, "what becomes of jobs"),
    Use("get", paths.PODS, "why a node ended", "log"),
    *CLEANING,
    Use("list watch", paths.EVENTS, "why a pod waits"),
    *(Use("get", runtimes.own, why) for runtimes, why in _RUNTIMES),
    BEATS[1],
)
TENDING_CLUSTERWIDE = tuple(Use("get", runtimes.shared, why) for runtimes, why in _RUNTIMES)
EVENTS = tuple(OPTIONAL[0].rights)
ASKING = tuple(OPTIONAL[1].rights)
# Of what only some clusters have: Kueue's queues, and PodGroups.
SOME = tuple(
    right
    for use in (*OPTIONAL, *CLUSTERWIDE)
    if use.api.group in (paths.KUEUE, paths.VISIBILITY) or use.api == paths.POD_GROUPS
    for right in use.rights
)


def own(kind: Kind) -> tuple[Use, ...]:
    """Return what is done to the job objects themselves."""
    return (
        Use("create", kind.api, "to submit"),
        Use("get list watch", kind.api, "to find a job, to follow it"),
        Use("patch", kind.api, "`cancel`, `suspend`, `resume`, `note`, `tag`"),
        Use("delete", kind.api, "`delete`, `gc`, cleaning up a failed submission"),
    )


def tended() -> list[Right]:
    """Return what a tender of everybody's jobs needs in their namespace."""
    kinds = (Use("create get list watch patch delete", kind.api, "") for kind in KINDS.values())
    more = (use for kind in KINDS.values() for use in kind.uses if use.verbs != "delete")
    return rights((*kinds, *more, *TENDING))


def needed(kind: Kind | None, spec: JobSpec | None = None) -> list[Right]:
    """Return what a job can't do without; without ``spec`` one that asks for nothing."""
    if kind is None:
        return rights(ALWAYS)
    ours = fit.ours(kind, spec, "") if spec else ()
    cleaning = CLEANING if "clean_pod_policy" in ours else ()
    isolating = ISOLATING if spec and spec.cluster.network_policy else ()
    return rights((*own(kind), *ALWAYS, *kind.uses, *cleaning, *isolating))


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
    """Yield what is permitted, and the Role for all that isn't. Raises ``ClusterError``."""
    must = needed(kind, spec)
    rights = [*must, *EVENTS, *ASKING]
    answers = await asyncio.gather(*(session.allowed(client, *right, namespace) for right in rights))
    denied = [right for right, good in zip(rights, answers, strict=True) if not good]
    return list(
        _findings(denied, len(must), lambda rights: grant(user or _NOBODY, namespace, rights).rstrip())
    )


def _findings(
    denied: Sequence[Right], count: int, role: Callable[[Sequence[Right]], str]
) -> Iterator[Finding]:
    bad = [right for right in denied if right not in (*EVENTS, *ASKING)]
    if bad:
        yield Finding(False, f"not permitted: {_said(bad)}; an administrator can grant it", role(denied))
    else:
        yield Finding(True, f"all {count} permissions that a job needs are granted")
    for optional, text in _OPTIONAL.items():
        if missing := [right for right in optional if right in denied]:
            yield Finding(True, text, "" if bad else role(missing))


def _said(rights: Iterable[Right]) -> str:
    by_resource: dict[str, list[str]] = {}
    for right in rights:
        by_resource.setdefault(right.what, []).append(right.verb)
    return "; ".join(f"{' '.join(verbs)} {what}" for what, verbs in by_resource.items())
