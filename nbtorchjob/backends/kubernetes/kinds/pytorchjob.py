"""Kubeflow's PyTorchJob (training-operator 1.9).

Nodes that are alike are Workers under an ``elasticPolicy``, even if their number is fixed: the
operator then tells them where to meet (``PET_RDZV_ENDPOINT``). It calls such a job Succeeded as soon
as one of them has exited with 0, so a node must not exit with 0 before its job is done.

With restart policy Never the operator fails the job as soon as one pod has failed. A job that may go on
with fewer nodes, and has no budgets, gets ExitCode, which replaces pods that ended with a code of 128 or
more (``exits.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.lifecycle import Complaints
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Api, Object
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.template import Replica, replicas, template
from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec.config import Elastic, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, RunPolicy
from nbtorchjob.state import failure
from nbtorchjob.state.facts import events as ev

API = Api("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
CONTAINER = "pytorch"
# The operator takes the rendezvous' port from the one of this name.
_PORT = "pytorchjob-port"
_INDEX_FIELD = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}


def check(spec: JobSpec) -> None:
    """Raise ``SpecError`` where both the operator and we would start pods again."""
    restarts = [replica.restart_policy for replica in replicas(spec)]
    own = next((policy for policy in restarts if policy not in (None, RestartPolicy.NEVER)), None)
    if spec.retry is not None and own is not None:
        raise SpecError("restart_policy", own.value, "beside retries and preemptions", Shape.CONFLICT)


def cautions(spec: JobSpec, minor: int) -> Iterator[str]:
    """Yield a caution for restarts that work otherwise than a user might expect."""
    policy = spec.launch.run_policy or RunPolicy()
    restarts = [replica.restart_policy for replica in replicas(spec)]
    if policy.backoff_limit is None and {RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS} & set(restarts):
        yield "restart_policy without a backoff_limit restarts a failing pod forever"
    if policy.backoff_limit:
        yield (
            f"backoff_limit={policy.backoff_limit}: a PyTorchJob fails at that restart, not after it, and "
            "its pods are removed with their logs (training-operator 1.9)"
        )
    if policy.backoff_limit and set(restarts) == {RestartPolicy.NEVER}:
        yield f"backoff_limit={policy.backoff_limit} has nothing to count: restart_policy is Never"


def unrestricted(spec: JobSpec) -> Iterator[str]:
    """Yield what the operator itself adds that ``restricted`` refuses, and what to do."""
    # Workers wait for the master in this container.
    if isinstance(spec.launch, PyTorch) and spec.launch.max_nodes > 1:
        yield "the operator's init container (use --nnodes instead of roles, or another --kind)"


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the PyTorchJob; the operator makes the Services itself."""
    head = {"apiVersion": API.group_version, "kind": API.kind, "metadata": sub.queued_metadata}
    launch = sub.spec.launch
    policy, cluster = sub.policy, sub.spec.cluster
    scheduling = {"queue": cluster.queue, "priorityClass": cluster.priority_class}
    clean_policy = sub.policy.clean_pod_policy or CleanPodPolicy.NONE
    # The remaining nodes of a failed attempt would hold what the next one needs.
    cleaned = (
        CleanPodPolicy.RUNNING if sub.retried_by_us and clean_policy is CleanPodPolicy.NONE else clean_policy
    )
    run_policy = {
        "cleanPodPolicy": cleaned.value,
        "ttlSecondsAfterFinished": sub.ttl_s,
        "activeDeadlineSeconds": sub.deadline_s,
        "backoffLimit": policy.backoff_limit,
        # Read only where the operator schedules gangs.
        "schedulingPolicy": {key: value for key, value in scheduling.items() if value} or None,
    }
    spec: dict[str, Any] = {
        "nprocPerNode": str(launch.nproc_per_node),
        "runPolicy": {key: value for key, value in run_policy.items() if value is not None},
    }
    if isinstance(launch, Elastic):
        if launch.max_nodes > 1:
            spec["elasticPolicy"] = {
                "rdzvBackend": "c10d",
                "minReplicas": launch.min_nodes,
                "maxReplicas": launch.max_nodes,
                "maxRestarts": launch.max_restarts,
            }
        env = {"NBTORCHJOB_NODE": {"valueFrom": _INDEX_FIELD}}
        job_spec = {**spec, "pytorchReplicaSpecs": {"Worker": _replica(sub, Worker(), launch.max_nodes, env)}}
    else:
        roles = {"Master": _replica(sub, launch.master, 1, {})}
        if launch.worker.replicas:
            roles["Worker"] = _replica(sub, launch.worker, launch.worker.replicas, {})
        job_spec = {**spec, "pytorchReplicaSpecs": roles}
    return [{**head, "spec": job_spec}]


def _replica(sub: Submission, replica: Replica, count: int, env: dict[str, Any]) -> dict[str, Any]:
    # The operator checks its own deadline only when a pod changes (kubeflow/trainer#3358).
    spec = {"activeDeadlineSeconds": sub.deadline_s} if sub.deadline_s else {}
    pod = template(sub, CONTAINER, replica, env, port=_PORT, **spec)
    del pod["spec"]["restartPolicy"]  # the operator sets it from the replica's, and warns about any other
    if replica.restart_policy is not None:
        restart_policy = replica.restart_policy.value
    elif sub.policy.backoff_limit:
        # The limit counts only restarts in place (training-operator 1.9).
        restart_policy = RestartPolicy.ON_FAILURE.value
    else:
        # The operator doesn't count the pods that it replaces, nor pass a count on to them: with budgets we
        # start all nodes again.
        replaced = sub.spec.launch.elastic and not sub.retried_by_us
        restart_policy = "ExitCode" if replaced else RestartPolicy.NEVER.value
    return {
        "replicas": count,
        "restartPolicy": restart_policy,
        "template": pod,
    }


_TYPE = "training.kubeflow.org/replica-type"
_INDEX = "training.kubeflow.org/replica-index"


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a PyTorchJob's status reports.

    ``Restarting`` may stay True beside a condition that ends the job, and ``Created`` may be missing
    for good: only conditions that end or suspend the job are read.
    """
    elastic = "elasticPolicy" in (obj.get("spec") or {})
    events = reading.job_facts(obj, "Succeeded", "Failed", every_node=not elastic)
    # The reason is PyTorchJobFailed whatever failed; only the text mentions a deadline.
    return [
        replace(event, reason=failure.DEADLINE_EXCEEDED)
        if isinstance(event, ev.Verdict) and "longer than specified deadline" in event.text
        else event
        for event in events
    ]


def plain(reason: str, message: str) -> str:
    """Return the message of an operator's event; "" if it is no trouble for the job."""
    # The operator tries to create a pod again before it has seen the first.
    return "" if reason == "FailedCreatePod" and "already exists" in message else message


def node(pod: Object) -> int | None:
    """Return which node a pod is: a master is 0, its worker i is i + 1; workers alone count from 0."""
    labels: Object = reading.meta(pod).get("labels") or {}
    index = reading.index(labels.get(_INDEX))
    if index is None:
        return None
    if labels.get(_TYPE) != "worker":
        return 0
    # The operator makes a worker wait for its master, and for nothing where there is none.
    waits = (pod.get("spec") or {}).get("initContainers") or ()
    has_master = any(wait.get("name") == "init-pytorch" for wait in waits)
    return index + (1 if has_master else 0)


KIND = Kind(
    name="pytorchjob",
    about="Kubeflow's PyTorchJob (training-operator 1.9).",
    operator="Kubeflow's training-operator 1.9",
    install=(
        "kubectl apply --server-side -k "
        '"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4"'
    ),
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(
        [
            "elastic",
            "elastic backoff",
            "roles",
            "restart policy",
            "backoff",
            "ttl",
            "clean pods",
            "priority class",
            "workload priority",
        ]
    ),
    check=check,
    notes={
        "deadline": "the operator looks at the clock only when a pod changes (training-operator 1.9)",
        "elastic ttl": "once it has failed: the operator forgets such a job (training-operator 1.9)",
        "clean pods": "within moments of the job's end",
        "backoff": "counts restarts in place",
        "suspend": "spec.runPolicy.suspend",
        "at once": "by its operator, with a scheduler for gangs",
    },
    suspend=("spec", "runPolicy", "suspend"),
    # By default the pods of a failed job run on, whether it failed by a deadline or not.
    ended={"spec": {"runPolicy": {"activeDeadlineSeconds": 1, "cleanPodPolicy": "Running"}}},
    cautions=cautions,
    unrestricted=unrestricted,
    # Where the operator is configured to schedule gangs.
    children={"PodGroup": lambda obj: str(obj["metadata"]["name"])},
    complaints=Complaints(
        plain=plain,
        forbidden={
            "init-pytorch": "its operator's init container may not run there, use --nnodes or another --kind"
        },
    ),
)
