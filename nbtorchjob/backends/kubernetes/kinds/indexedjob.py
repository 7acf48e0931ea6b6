"""A plain Indexed Job with a headless Service: it needs no operator.

The pods find each other through the Service. An older API server drops fields that it doesn't know, so each
field is sent only to a server that has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.reading import SERVICES, Api, Object, Use
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.template import PORT, replicas, template
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.injected import FAILURES, IGNORED
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts import events as ev

API = Api("batch", "v1", "jobs", "Job")
CONTAINER = "main"

# The Kubernetes 1.x from which on the field is enabled.
POD_FAILURE_POLICY = 26
POD_REPLACEMENT_POLICY = 29
BACKOFF_LIMIT_PER_INDEX = 29
SUCCESS_POLICY = 31


def owns_retries(spec: JobSpec, minor: int) -> bool:
    """Whether the Job controller can enforce the budgets: it limits failures, but never preemptions."""
    retry = spec.retry
    if retry is None or minor < POD_FAILURE_POLICY:
        return False
    # With nothing to spend, nothing is started again.
    none = not retry.retries and not retry.most_preemptions and not spec.launch.elastic
    # Without a limit for each index it counts pods: two that fail together would count as two attempts.
    return none or (retry.most_preemptions == math.inf and minor >= BACKOFF_LIMIT_PER_INDEX)


def cautions(spec: JobSpec, minor: int) -> Iterator[str]:
    """Yield a caution for what an older server can't tell apart, and for nodes that wait for each other."""
    launch, cluster = spec.launch, spec.cluster
    patient = launch.run_policy is None or launch.run_policy.start_within is None
    if launch.min_nodes > 1 and cluster.gpu and not cluster.queue and patient:
        yield (
            "an Indexed Job's nodes aren't placed all at once: some may hold their GPUs while the others "
            "wait for room; --start-within 10m ends that, and a queue of Kueue's (--queue) avoids it"
        )
    if minor < POD_FAILURE_POLICY:
        needed = f"distinguishes them only since Kubernetes 1.{POD_FAILURE_POLICY}"
        yield f"pods that are evicted or preempted count as failures: an Indexed Job {needed}"


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the Job and its Service."""
    head = {"apiVersion": API.group_version, "kind": API.kind, "metadata": sub.queued_metadata}
    env: dict[str, Any] = {
        "NBTORCHJOB_DOMAIN": sub.domain,
        "PET_RDZV_ENDPOINT": f"{sub.name}-0.{sub.domain}:{PORT}",
    }
    if sub.minor >= BACKOFF_LIMIT_PER_INDEX and not sub.retried_by_us:
        env |= {name: {"valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _COUNTS.items()}
    limits: dict[str, Any] = {"backoffLimit": sub.retries}
    if sub.minor >= BACKOFF_LIMIT_PER_INDEX:
        # All nodes of a failed attempt end as failed, so each index counts attempts, and all counts agree.
        limits = {"backoffLimitPerIndex": sub.retries, "maxFailedIndexes": _spares(sub)}
        if sub.spec.launch.elastic:
            # Node 0 hosts the rendezvous: when it is done, all are.
            limits["successPolicy"] = {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
        if _spares(sub):
            # Whatever its success policy says, a job has failed once each of its indexes is lost or has
            # succeeded (1.36). So there is one more index than can end.
            limits["completions"] = sub.spec.launch.max_nodes + _spares(sub) + 1
    spec = {
        "completionMode": "Indexed",
        "completions": sub.spec.launch.max_nodes,
        "parallelism": sub.spec.launch.max_nodes,
        **limits,
        "podFailurePolicy": _failures(sub) if sub.minor >= POD_FAILURE_POLICY else None,
        # Two pods of one index would be two hosts with one name.
        "podReplacementPolicy": "Failed" if sub.minor >= POD_REPLACEMENT_POLICY else None,
        "activeDeadlineSeconds": sub.deadline_s,
        "ttlSecondsAfterFinished": sub.ttl_s,
        "template": template(sub, CONTAINER, replicas(sub.spec)[0], env, subdomain=sub.domain),
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": sub.domain, "namespace": sub.namespace, "labels": sub.marks},
        "spec": {
            "clusterIP": "None",
            # The prefixed label exists only from 1.27 on, this one always. Pods of an earlier job with the
            # same name may still be ending.
            "selector": {"job-name": sub.name, labelling.RUN: sub.info.run},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    return [{**head, "spec": {key: value for key, value in spec.items() if value is not None}}, service]


# What a pod learns about its index's earlier failures, if the index has a limit.
_COUNTS = {
    FAILURES: "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
    IGNORED: "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']",
}


def _spares(sub: Submission) -> int:
    """Return how many nodes an elastic job without retries may lose for good."""
    launch = sub.spec.launch
    return launch.max_nodes - 1 if launch.elastic and not sub.retries else 0


def _failures(sub: Submission) -> dict[str, Any]:
    retry = sub.spec.retry
    forgiven = retry is None or (not sub.retried_by_us and retry.most_preemptions > 0)
    # Another try would end the same way.
    final = {"action": "FailJob", **_exited(exits.USER_ERROR, exits.CONFIG_ERROR, *_NO_START)}
    # If node 0 is lost for good, the others mustn't wait for it forever.
    rules = [] if _spares(sub) else [_PEERS]
    return {"rules": [*([_DISRUPTED, *rules] if forgiven else ()), final]}


def _exited(*codes: int) -> dict[str, Any]:
    return {"onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(codes)}}


# The exit codes of a shell and of containerd for a command that can't be run or a container that can't
# start.
_NO_START = (126, 127, 128)
# This isn't the job's fault, and doesn't count.
_DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
# A pod that is simply deleted has no such condition (1.36), and the other nodes only report that its node
# was lost: the loss would count once more.
_PEERS = {"action": "Ignore", **_exited(exits.INFRASTRUCTURE_ERROR, exits.CANCELLED, exits.LEFT)}


_INDEX = "batch.kubernetes.io/job-completion-index"


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a Job's status reports.

    FailureTarget and SuccessCriteriaMet announce an end that is reached once the pods have ended
    (Kubernetes 1.31), so they are no verdict.
    """
    return reading.job_facts(obj, "Complete", "Failed")


def node(pod: Object) -> int | None:
    """Return which node a pod is: its completion index."""
    # Older servers have it only as an annotation (the label came with Kubernetes 1.28).
    return reading.index((reading.meta(pod).get("annotations") or {}).get(_INDEX))


KIND = Kind(
    name="indexedjob",
    about="A plain Indexed Job with a headless Service: it needs no operator.",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(
        [
            "elastic",
            "elastic backoff",
            "backoff",
            "deadline",
            "ttl",
            "elastic ttl",
            "priority class",
            "workload priority",
        ]
    ),
    owns_retries=owns_retries,
    notes={
        "clean pods": "a Job keeps its ended pods",
        "backoff": "counts the failures of each node",
        "retries": "backoffLimitPerIndex limits failures, and podFailurePolicy tells preemptions apart",
        "suspend": "spec.suspend",
        "at once": "by Kubernetes 1.36, with its alpha gate EnableWorkloadWithJob",
    },
    minor=24,  # Indexed Jobs became stable
    since={"elastic": SUCCESS_POLICY},
    suspend=("spec", "suspend"),
    cautions=cautions,
    uses=(
        Use("create get", SERVICES, "the names of the nodes; read if a response was lost"),
        Use("delete", SERVICES, "`gc`, of exported jobs"),
    ),
    grouped=True,
)
