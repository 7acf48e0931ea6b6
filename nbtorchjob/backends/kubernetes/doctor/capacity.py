"""Whether a cluster has room for a job: on an empty host, and within its namespace's quotas and its queue.

This follows the scheduler's filters (Kubernetes 1.36: NodeResourcesFit, NodeAffinity, TaintToleration),
except for what other pods use and for what only the scheduler knows, such as the topology of volumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.jobs import queueing
from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.objects import reading, workloads
from nbtorchjob.backends.kubernetes.objects.reading import (
    CLUSTER_QUEUES,
    COHORTS,
    HOSTS,
    LOCAL_QUEUES,
    QUOTAS,
    SECRETS,
    SERVICES,
    WORKLOAD_PRIORITIES,
    Target,
)
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.backends.kubernetes.template import replicas, resources, template
from nbtorchjob.errors import ClusterError, ForbiddenError, NotFoundError
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.text import words

# What a quota may name without distinguishing requests from limits.
_REQUESTED = ("cpu", "memory")
_GIB = 2.0**30


async def quota_findings(client: Client, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report for each quota whether the job fits. Raises ``ClusterError`` and ``SpecError``."""
    try:
        quotas = (await client.list(QUOTAS, namespace)).items
    except ForbiddenError:
        return [
            Finding(
                True, "can't check whether the job fits the quota, because reading quotas isn't permitted"
            )
        ]
    needs = {**total_needs(spec), **(_objects(kind) if kind is not None else {})}
    findings = []
    for quota in quotas:
        name = quota["metadata"]["name"]
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            findings.append(Finding(True, f"quota {name} applies only to some pods and wasn't checked"))
            continue
        lacking: list[str] = []
        amounts: list[str] = []
        unknown: list[str] = []
        for key, left in _room(quota).items():
            # The name that :func:`total_needs` uses
            need_name = f"requests.{key}" if key in _REQUESTED else key.removeprefix("count/")
            need, option = needs.get(need_name), need_name.partition(".")[2]
            if need is None and option in _REQUESTED:
                lacking.append(f"{key} must be set: use --{option} (unless a LimitRange or runtime does)")
            elif need is not None and need > left:
                lacking.append(f"the job requests {worded(key, need)} {key}, but {worded(key, left)} is left")
            elif need is not None:
                amounts.append(f"{worded(key, need)} of {worded(key, left)} {key}")
            elif left <= 0:
                unknown.append(key)
        if lacking:
            findings.append(Finding(False, f"quota {name}: {'; '.join(lacking)}"))
        else:
            text = f"quota {name} has room for the job{': ' if amounts else ''}{', '.join(amounts)}"
            if unknown:
                text += f"; nothing is left of {', '.join(unknown)}, which wasn't checked"
            findings.append(Finding(True, text))
    return findings or [Finding(True, "no quota limits the namespace")]


def total_needs(spec: JobSpec) -> dict[str, float]:
    """Return what all of the job's pods need together, as a quota names it."""
    parts = replicas(spec)
    total = {"pods": float(spec.launch.max_nodes)}
    # A master is one pod; all others are alike.
    counts = [1, spec.launch.max_nodes - 1] if len(parts) == 2 else [spec.launch.max_nodes]
    for replica, count in zip(parts, counts, strict=True):
        for kind, amounts in resources(spec.cluster, replica).items():
            for name, text in amounts.items():
                key = f"{kind}.{name}"
                total[key] = total.get(key, 0.0) + count * amount(text)
    return total


def _objects(kind: Kind) -> dict[str, float]:
    """Return how many objects besides pods a job of that kind needs at least, as a quota names them."""
    total = {str(kind.api): 1.0, str(SECRETS): 2.0}  # the claim to its name, and its key and payload
    by_us = any(use.api == SERVICES and "create" in use.verbs.split() for use in kind.uses)
    if by_us or any(api == SERVICES for api, _ in kind.adopts):
        total[str(SERVICES)] = 1.0
    return total


def _room(quota: Object) -> dict[str, float]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    hard = status.get("hard") or quota["spec"].get("hard") or {}
    left = {}
    for key, text in hard.items():
        with suppress(ValueError):  # a number too big to limit anything
            left[key] = amount(str(text)) - amount(str(used.get(key) or "0"))
    return left


def worded(key: str, number: float) -> str:
    """Return an amount of a resource as text."""
    number = max(number, 0.0)
    return f"{number / _GIB:.3g} GiB" if "memory" in key else f"{number:g}"


Manifest = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_HARD = ("NoSchedule", "NoExecute")
_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda has, values: has in values,
    "NotIn": lambda has, values: has not in values,
    "Exists": lambda has, values: has is not None,
    "DoesNotExist": lambda has, values: has is None,
    "Gt": lambda has, values: _whole(has) > _whole(*values[:1]),
    "Lt": lambda has, values: has is not None and _whole(has) < _whole(*values[:1]),
}


def requested(pod: Manifest) -> dict[str, float]:
    """Return what a pod's containers request together, by resource; a limit alone is a request, too."""
    totals: dict[str, float] = defaultdict(float)
    for container in pod.get("containers") or ():
        resources = container.get("resources") or {}
        requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, number in _amounts(requests):
            totals[name] += number
    return dict(totals)


def room(host: Manifest) -> dict[str, float]:
    """Return what a host has for pods, by resource."""
    status = host.get("status") or {}
    return dict(_amounts(status.get("allocatable") or {}))


def _amounts(texts: Manifest) -> Iterator[tuple[str, float]]:
    """Yield the amounts that can be read; the server will refuse others, as in a faulty patch."""
    for name, text in texts.items():
        with suppress(ValueError):
            yield name, amount(str(text))


def matches(pod: Manifest, host: Manifest) -> bool:
    """Whether a host has the labels that the pod's node selector and affinity require."""
    labels = host["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    if terms is None:
        return True
    fields = {"metadata.name": host["metadata"]["name"]}
    for term in terms:
        rules = [(expression, labels) for expression in term.get("matchExpressions") or ()]
        rules += [(expression, fields) for expression in term.get("matchFields") or ()]
        # What the server will refuse anyway rules out no host.
        known_rules = [(rule, has) for rule, has in rules if rule.get("operator") in _OPERATORS]
        if rules and all(
            _OPERATORS[rule["operator"]](has.get(rule.get("key")), rule.get("values") or ())
            for rule, has in known_rules
        ):
            return True
    return False


def _whole(text: str | None = None) -> float:
    try:
        return int(text or "")
    except ValueError:
        return float("-inf")


def untolerated(pod: Manifest, host: Manifest) -> list[Manifest]:
    """Return the taints of a host that keep the pod away."""
    taints = [taint for taint in (host.get("spec") or {}).get("taints") or () if taint.get("effect") in _HARD]
    return [
        taint
        for taint in taints
        if not any(_tolerates(toleration, taint) for toleration in pod.get("tolerations") or ())
    ]


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if (key and key != taint["key"]) or (effect and effect != taint["effect"]):
        return False
    exists = toleration.get("operator") == "Exists"
    return exists or (bool(key) and (toleration.get("value") or "") == (taint.get("value") or ""))


_CORDONED = "node.kubernetes.io/unschedulable"
_GROWS = "unless the cluster adds hosts by itself"


async def room_findings(client: Client, spec: JobSpec) -> list[Finding]:
    """Report whether the hosts could hold the job's pods. Raises ``ClusterError`` and ``SpecError``."""
    try:
        hosts = (await client.list(HOSTS, None)).items
    except ForbiddenError:
        text = "can't check whether any host has room for a pod, because listing nodes isn't permitted"
        return [Finding(True, text)]
    sub = Submission(spec, JobInfo("doctor"), "default", secrets=(), labels={}, annotations={})
    pods = [template(sub, "main", replica, {})["spec"] for replica in replicas(spec)]
    return list(dict.fromkeys(judge(pod, hosts) for pod in pods))


def judge(pod: Mapping[str, Any], hosts: Sequence[Object]) -> Finding:
    """Report how many of the hosts could hold a pod of that spec; if none could, why."""
    requests = requested(pod)
    rooms = [room(host) for host in hosts]
    big = [
        host
        for host, has in zip(hosts, rooms, strict=True)
        if all(has.get(name, 0.0) >= number for name, number in requests.items())
    ]
    chosen = [host for host in big if matches(pod, host)]
    free = [host for host in chosen if not untolerated(pod, host)]
    if free:
        return Finding(True, f"{len(free)} of {words.count(len(hosts), 'host')} can hold a pod when empty")
    if not hosts:
        why = "the cluster has no hosts"
    elif not big:
        # Find the resources that no host has enough of
        most = {name: max(has.get(name, 0.0) for has in rooms) for name in requests}
        absent = [name for name, number in most.items() if not number]
        if absent:
            why = f"no host could hold a pod: none has any {' or '.join(absent)}"
        else:
            short = [
                f"{_amount_text(name, requests[name])} {name} (the most is {_amount_text(name, most[name])})"
                for name in requests
                if most[name] < requests[name]
            ]
            every = " and ".join(f"{_amount_text(name, number)} {name}" for name, number in requests.items())
            why = f"no host has {' and '.join(short)}" if short else f"no host has all of {every} together"
    elif not chosen:
        labels = ", ".join(f"{key}={value}" for key, value in (pod.get("nodeSelector") or {}).items())
        why = f"no big enough host has the requested labels{': ' if labels else ''}{labels}"
    else:
        taints = [_taint(taint) for host in chosen for taint in untolerated(pod, host)]
        why = f"no suitable host accepts the pod: {', '.join(dict.fromkeys(taints))}"
    return Finding(False, f"{why}; {_GROWS}")


def _taint(taint: Mapping[str, Any]) -> str:
    key, value = taint["key"], taint.get("value")
    if key == _CORDONED:
        return "a host is cordoned"
    toleration = f"{key}={value}" if value else key
    return f"a host has a taint that --toleration {toleration}:{taint['effect']} would tolerate"


def _amount_text(name: str, number: float) -> str:
    return f"{number / _GIB:.3g} GiB" if name == "memory" else f"{number:g}"


async def queue_findings(session: Session, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report on the job's queue and priority, if Kueue manages its kind. Raises ``ClusterError``."""
    queue = await _queue(session, namespace, kind, spec)
    return [*queue, *await _priority(session, spec.cluster.workload_priority)]


async def _priority(session: Session, name: str | None) -> list[Finding]:
    """Report whether the job's WorkloadPriorityClass exists: without it Kueue never looks at the job."""
    if name is None:
        return []
    api, text = await session.newest(WORKLOAD_PRIORITIES), f"workload priority {name}"
    if api is None:
        return [Finding(False, f"{text}: this cluster has no Kueue; leave out --workload-priority")]
    try:
        await session.client.get(Target(api, None, name))
    except ForbiddenError:
        return [Finding(True, f"{text}: can't check whether it exists, because reading it isn't permitted")]
    except NotFoundError:
        # Kueue (0.19) makes no Workload for such a job, and doesn't report that.
        return [Finding(False, f"{text} doesn't exist, and Kueue would never start the job: choose another")]
    return [Finding(True, f"{text} exists")]


async def _queue(session: Session, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    name = spec.cluster.queue
    # For a job that names no queue, the cluster isn't asked.
    api = await session.newest(LOCAL_QUEUES) if name and kind is not None and kind.suspend else None
    if api is None:
        return []
    try:
        # A namespace's queues by name. Raises ``ClusterError``.
        items = (await session.client.list(api, namespace)).items
        queues = {item["metadata"]["name"]: item for item in items}
    except ForbiddenError as exc:
        text = f"queue {name}: can't check whether it exists, because listing queues isn't permitted"
        return [Finding(True, text, exc.grant)]
    available = ", ".join(sorted(queues)) or "none"
    if name not in queues:
        text = f"there is no queue {name} in {namespace}: choose another with --queue, or have it created"
        return [Finding(False, f"{text}; there are: {available}")]
    closed = reading.condition(queues[name], "Active", "False")
    if closed is not None:
        reason = closed.get("message") or closed.get("reason")
        return [Finding(False, f"queue {name} is closed: {reason}; choose another with --queue")]
    return [Finding(True, f"queue {name} exists and is open"), await _admits(session, queues[name], spec)]


async def _admits(session: Session, local: Object, spec: JobSpec) -> Finding:
    """Report whether the quota of a queue would ever be enough, as far as that may be read."""
    text, whole = f"queue {local['metadata']['name']}", workloads.cluster_queue(local)
    try:
        queue = await queueing.cluster_queue(session, whole)
    except ClusterError:
        queue = None
    if queue is None:
        reason = f"its quota is unknown, because reading {whole} isn't permitted"
        return Finding(True, f"{text}: {reason}")
    # What all nodes request, by resource
    requests = ((key.partition("."), need) for key, need in total_needs(spec).items())
    needs = {name: need for (kind, _, name), need in requests if kind == "requests"}
    if not _short(needs, workloads.quota(queue)):
        return Finding(True, f"{text} has enough in all for the job")
    cohort = workloads.cohort(queue)
    others = await _lenders(session, whole, cohort) if cohort else ()
    most = workloads.most(queue, others)
    if short := _short(needs, most):
        borrowed = f", with all that may be borrowed in cohort {cohort}" if cohort else ""
        amounts = ((key, worded(key, needs[key]), worded(key, most.get(key, 0.0))) for key in short)
        why = "; ".join(f"{need} {key} requested, {has} in all" for key, need, has in amounts)
        problem = f"{text} can never admit the job: {why}{borrowed}: ask for less, or choose another"
        return Finding(False, problem)
    if others is None:
        reason = "the cohort's quota is unknown: not all of it may be read, or it is part of another cohort"
        return Finding(True, f"{text} would have to borrow in cohort {cohort}: {reason}")
    return Finding(True, f"{text} has enough for the job only with what others in cohort {cohort} don't use")


async def _lenders(session: Session, name: str, cohort: str) -> list[Object] | None:
    """Return the other ClusterQueues of a cohort; None if unreadable, or if it has more than theirs."""
    api, above = await session.newest(CLUSTER_QUEUES), await session.newest(COHORTS)
    try:
        items = (await session.client.list(api, None)).items if api is not None else []
        with suppress(NotFoundError):  # a cohort needs no object
            if above is not None and not workloads.plain(
                await session.client.get(Target(above, None, cohort))
            ):
                return None
    except ClusterError:
        return None
    return [item for item in items if workloads.cohort(item) == cohort and item["metadata"]["name"] != name]


def _short(needs: Mapping[str, float], has: Mapping[str, float]) -> list[str]:
    return [name for name, need in needs.items() if need > has.get(name, 0.0)]
