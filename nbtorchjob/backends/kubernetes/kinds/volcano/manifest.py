"""A submission as a Volcano Job: one task, whose pods are scheduled as a gang.

When a job of a fixed size loses a pod, it ends, or all of its pods are started anew, as often as the
backoff limit allows. An elastic one continues without the lost pod, and has succeeded when as many pods
as it needs have: else it would wait for pods that never start.

A suspension has no field: Volcano's controller obeys Commands (1.15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbtorchjob.backends.kubernetes.kinds.base import Api, Submission
from nbtorchjob.backends.kubernetes.objects.paths import COMMANDS
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.backends.kubernetes.pod.resources import replicas
from nbtorchjob.backends.kubernetes.pod.template import PORT, template
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.injected import RESTARTS
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import RunPolicy

RETRIES = "volcano.sh/job-retry-count"  # an annotation of pods
API = Api("batch.volcano.sh", "v1alpha1", "jobs", "Job")
CONTAINER = "main"
TASK = "node"
QUEUE = "default"  # of a job that names none
_RETRIES = f"metadata.annotations['{RETRIES}']"

# Another try would end the same way.
_FINAL = [{"action": "TerminateJob", "exitCode": code} for code in (exits.USER_ERROR, exits.CONFIG_ERROR)]
_LOSSES = ["PodFailed", "PodEvicted"]
# Volcano counts a resume as a restart (1.15), so where nothing is restarted the count mustn't end the job.
_UNCOUNTED = 1000


def owns_retries(spec: JobSpec, minor: int) -> bool:
    """Whether Volcano can enforce the budgets: it counts restarts of the whole job, whatever their cause."""
    return not spec.launch.elastic and spec.retry is not None and not spec.retry.most_preemptions


def cautions(spec: JobSpec, minor: int) -> Iterator[str]:
    """Yield a caution for a deadline that works otherwise than one might expect."""
    policy = spec.launch.run_policy or RunPolicy()
    if policy.backoff_limit and policy.active_deadline_seconds:
        yield (
            "active_deadline_seconds begins anew with each restart of a Volcano job while nobody follows it; "
            "--retries instead of backoff_limit ends it there"
        )


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the Job; Volcano makes the Service and the NetworkPolicy itself."""
    launch, cluster = sub.spec.launch, sub.spec.cluster
    restarts = _restarts(sub)
    spec = {
        "schedulerName": "volcano",
        "queue": cluster.queue or QUEUE,
        "minAvailable": launch.min_nodes,
        "minSuccess": launch.min_nodes if launch.elastic else None,
        # Volcano allows one restart less than the field's name promises.
        "maxRetry": restarts + 1 if restarts else _UNCOUNTED,
        "policies": _FINAL if launch.elastic else [*_FINAL, *_losses(sub)],
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses"]},
        "priorityClassName": cluster.priority_class,
        "ttlSecondsAfterFinished": sub.ttl_s,
        "tasks": [_task(sub)],
    }
    return [
        {
            "apiVersion": API.group_version,
            "kind": API.kind,
            "metadata": sub.metadata,
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
    ]


def _restarts(sub: Submission) -> int:
    retry = sub.spec.retry
    return retry.retries if retry and not sub.ours else sub.policy.backoff_limit or 0


def _losses(sub: Submission) -> list[dict[str, Any]]:
    if sub.spec.retry is None:
        return [{"action": "RestartJob" if sub.policy.backoff_limit else "TerminateJob", "events": _LOSSES}]
    again = [{"action": "RestartJob", "exitCode": exits.RECOVERABLE_ERROR}] if _restarts(sub) else []
    return [
        *again,
        {"action": "TerminateJob", "events": _LOSSES},
    ]


def _task(sub: Submission) -> dict[str, Any]:
    launch = sub.spec.launch
    env: dict[str, Any] = {
        "NBTORCHJOB_DOMAIN": sub.name,
        "PET_RDZV_ENDPOINT": f"{sub.name}-{TASK}-0.{sub.name}:{PORT}",
    }
    if not sub.ours:
        env[RESTARTS] = {"valueFrom": {"fieldRef": {"fieldPath": _RETRIES}}}
    # Volcano has no deadline (1.15); a pod's counts from its own start.
    deadline: dict[str, Any] = {"activeDeadlineSeconds": sub.deadline_s} if sub.deadline_s else {}
    return {
        "name": TASK,
        "replicas": launch.max_nodes,
        "minAvailable": launch.min_nodes,
        "template": template(sub, CONTAINER, replicas(sub.spec)[0], env, **deadline),
    }


def command(obj: Object, suspended: bool) -> dict[str, Any]:
    """Return the Command that suspends a job, or resumes it."""
    meta = obj["metadata"]
    about = {
        "apiVersion": API.group_version,
        "kind": API.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": COMMANDS.group_version,
        "kind": COMMANDS.kind,
        "metadata": {"generateName": f"{meta['name']}-", "ownerReferences": [about]},
        "action": "AbortJob" if suspended else "ResumeJob",
        "target": about,
    }
