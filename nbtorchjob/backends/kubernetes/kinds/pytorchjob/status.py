"""A PyTorchJob as facts (training-operator 1.9)."""

from __future__ import annotations

from dataclasses import replace

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
