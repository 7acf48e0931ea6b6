"""A submission as an Indexed Job, and the headless Service by which its pods find each other.

An older API server drops fields that it doesn't know, so each goes only to a server that has it.
"""

from __future__ import annotations

from typing import Any

from nbtorchjob.backends.kubernetes import objects
from nbtorchjob.backends.kubernetes.kinds.base import Api, Submission
from nbtorchjob.backends.kubernetes.pod.resources import replicas
from nbtorchjob.backends.kubernetes.pod.template import PORT, template
from nbtorchjob.config import Launch
from nbtorchjob.policies import RunPolicy
from nbtorchjob.runtime import exits

API = Api("batch", "v1", "jobs", "Job")
CONTAINER = "main"

# Kubernetes 1.x that has the field switched on.
POD_FAILURE_POLICY = 26
POD_REPLACEMENT_POLICY = 29
SUCCESS_POLICY = 31


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Give the Job and its Service."""
    metadata = sub.metadata
    if sub.spec.cluster.queue:
        metadata["labels"] |= {objects.QUEUE: sub.spec.cluster.queue}
    job = {"apiVersion": API.group_version, "kind": API.kind, "metadata": metadata, "spec": _spec(sub)}
    return [job, _service(sub)]


def _spec(sub: Submission) -> dict[str, Any]:
    launch = sub.spec.launch
    policy = launch.run_policy or RunPolicy()
    env = {"NBTORCHJOB_DOMAIN": sub.name, "PET_RDZV_ENDPOINT": f"{sub.name}-0.{sub.name}:{PORT}"}
    spec = {
        "completionMode": "Indexed",
        "completions": launch.max_nodes,
        "parallelism": launch.max_nodes,
        **_retries(launch, policy.backoff_limit or 0),
        "podFailurePolicy": _failures() if sub.minor >= POD_FAILURE_POLICY else None,
        # Two pods of one index would be two hosts of one name.
        "podReplacementPolicy": "Failed" if sub.minor >= POD_REPLACEMENT_POLICY else None,
        "activeDeadlineSeconds": policy.active_deadline_seconds,
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        "template": template(sub, CONTAINER, replicas(sub.spec)[0], env, subdomain=sub.name),
    }
    return {key: value for key, value in spec.items() if value is not None}


def _retries(launch: Launch, limit: int) -> dict[str, Any]:
    if not launch.elastic:
        return {"backoffLimit": limit}
    # Node 0 has the rendezvous: when it is done, all are. Others may fail while enough are left.
    return {
        "backoffLimitPerIndex": limit,
        "maxFailedIndexes": launch.max_nodes - launch.min_nodes,
        "successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
    }


def _failures() -> dict[str, Any]:
    final = [exits.USER_ERROR, exits.CONFIG_ERROR]
    return {
        "rules": [
            # A lost host isn't the job's fault, and doesn't count.
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            # Another try would end the same way.
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": final},
            },
        ]
    }


def _service(sub: Submission) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": sub.name, "namespace": sub.namespace, "labels": dict(sub.labels)},
        "spec": {
            "clusterIP": "None",
            # The prefixed label is there from 1.27 on, this one always.
            "selector": {"job-name": sub.name},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
