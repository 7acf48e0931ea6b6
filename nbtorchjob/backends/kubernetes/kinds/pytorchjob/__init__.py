"""Kubeflow's PyTorchJob (training-operator 1.9)."""

from __future__ import annotations

from dataclasses import replace

from nbtorchjob.backends.kubernetes.kinds.base import Complaints, Kind
from nbtorchjob.backends.kubernetes.kinds.pytorchjob.manifest import (
    API,
    CONTAINER,
    cautions,
    check,
    manifests,
    unrestricted,
)
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.state import events as ev
from nbtorchjob.state import failure

_TYPE = "training.kubeflow.org/replica-type"
_INDEX = "training.kubeflow.org/replica-index"


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a PyTorchJob's status reports.

    ``Restarting`` may stay True beside a condition that ends the job, and ``Created`` may be missing
    for good: only conditions that end or suspend the job are read.
    """
    elastic = "elasticPolicy" in (obj.get("spec") or {})
    events = reading.job_facts(obj, "Succeeded", "Failed", every_node=not elastic)
    return [_with_reason(event) if isinstance(event, ev.Verdict) else event for event in events]


def _with_reason(verdict: ev.Verdict) -> ev.Verdict:
    # The reason is PyTorchJobFailed whatever failed; only the text mentions a deadline.
    late = "longer than specified deadline" in verdict.text
    return replace(verdict, reason=failure.DEADLINE_EXCEEDED) if late else verdict


def plain(reason: str, message: str) -> str:
    """Return the message of an operator's event; "" where it is no trouble of the job's."""
    # It tries to create a pod again before it has seen the first.
    return "" if reason == "FailedCreatePod" and "already exists" in message else message


def node(pod: Object) -> int | None:
    """Return which node a pod is: a master is 0, its worker i is i + 1; workers alone count from 0."""
    labels: Object = reading.meta(pod).get("labels") or {}
    index = reading.index(labels.get(_INDEX))
    if index is None:
        return None
    if labels.get(_TYPE) != "worker":
        return 0
    return index + (1 if _has_master(pod) else 0)


def _has_master(pod: Object) -> bool:
    # The operator makes a worker wait for its master, and for nothing where there is none.
    waits = (pod.get("spec") or {}).get("initContainers") or ()
    return any(wait.get("name") == "init-pytorch" for wait in waits)


__all__ = ["KIND"]

KIND = Kind(
    name="pytorchjob",
    about=__doc__,
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
    # The pods of one that failed run on by default, deadline or not.
    ended={"spec": {"runPolicy": {"activeDeadlineSeconds": 1, "cleanPodPolicy": "Running"}}},
    cautions=cautions,
    unrestricted=unrestricted,
    children={"PodGroup": "{name}"},  # where the operator is configured to schedule gangs
    complaints=Complaints(
        plain=plain,
        forbidden={
            "init-pytorch": "its operator's init container may not run there, use --nnodes or another --kind"
        },
    ),
)
