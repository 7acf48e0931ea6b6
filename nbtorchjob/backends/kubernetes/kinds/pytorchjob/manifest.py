"""A submission as a PyTorchJob.

Nodes that are alike are Workers under an ``elasticPolicy``, also where their number is fixed: the
operator then tells them where to meet (``PET_RDZV_ENDPOINT``). It calls such a job Succeeded as soon
as one of them has exited with 0, so a node must not exit with 0 before its job is done.

With restart policy Never it fails the job as soon as one pod has failed. A job that may go on with
fewer nodes, and has no budgets, has ExitCode, which replaces pods that ended with a code of 128 or more
(``exits.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbtorchjob.backends.kubernetes.kinds.base import Api, Submission
from nbtorchjob.backends.kubernetes.pod.resources import Replica, replicas
from nbtorchjob.backends.kubernetes.pod.template import template
from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec.config import Elastic, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, RunPolicy

API = Api("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
CONTAINER = "pytorch"
# The operator takes the rendezvous' port from the one of this name.
_PORT = "pytorchjob-port"
_INDEX = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}


def check(spec: JobSpec) -> None:
    """Raise ``SpecError`` where both the operator and we would start pods again."""
    restarts = [replica.restart_policy for replica in replicas(spec)]
    own = next((policy for policy in restarts if policy not in (None, RestartPolicy.NEVER)), None)
    if spec.retry is not None and own is not None:
        raise SpecError("restart_policy", own.value, "beside retries and preemptions", Shape.CONFLICT)


def cautions(spec: JobSpec, minor: int) -> Iterator[str]:
    """Yield a caution for restarts that work otherwise than one might expect."""
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
    # Workers wait for the master in it.
    if isinstance(spec.launch, PyTorch) and spec.launch.max_nodes > 1:
        yield "the operator's init container (use --nnodes instead of roles, or another --kind)"


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the PyTorchJob; the operator makes the Services itself."""
    head = {"apiVersion": API.group_version, "kind": API.kind, "metadata": sub.queued_metadata}
    return [{**head, "spec": _spec(sub)}]


def _spec(sub: Submission) -> dict[str, Any]:
    launch = sub.spec.launch
    policy, cluster = sub.policy, sub.spec.cluster
    scheduling = {"queue": cluster.queue, "priorityClass": cluster.priority_class}
    asked = sub.policy.clean_pod_policy or CleanPodPolicy.NONE
    # The remaining nodes of a failed attempt would hold what the next one needs.
    cleaned = CleanPodPolicy.RUNNING if sub.ours and asked is CleanPodPolicy.NONE else asked
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
        env = {"NBTORCHJOB_NODE": {"valueFrom": _INDEX}}
        return {**spec, "pytorchReplicaSpecs": {"Worker": _replica(sub, Worker(), launch.max_nodes, env)}}
    roles = {"Master": _replica(sub, launch.master, 1, {})}
    if launch.worker.replicas:
        roles["Worker"] = _replica(sub, launch.worker, launch.worker.replicas, {})
    return {**spec, "pytorchReplicaSpecs": roles}


def _replica(sub: Submission, replica: Replica, count: int, env: dict[str, Any]) -> dict[str, Any]:
    # The operator checks its own deadline only when a pod changes (kubeflow/trainer#3358).
    spec = {"activeDeadlineSeconds": sub.deadline_s} if sub.deadline_s else {}
    pod = template(sub, CONTAINER, replica, env, port=_PORT, **spec)
    del pod["spec"]["restartPolicy"]  # the operator sets it from the replica's, and warns about any other
    return {
        "replicas": count,
        "restartPolicy": _restart_policy(sub, replica),
        "template": pod,
    }


def _restart_policy(sub: Submission, replica: Replica) -> str:
    if replica.restart_policy is not None:
        return replica.restart_policy.value
    if sub.policy.backoff_limit:
        # All that the limit counts are restarts in place (training-operator 1.9).
        return RestartPolicy.ON_FAILURE.value
    # The operator doesn't count the pods that it replaces, nor pass a count on to them: with budgets we
    # start all nodes again.
    replaced = sub.spec.launch.elastic and not sub.ours
    return "ExitCode" if replaced else RestartPolicy.NEVER.value
