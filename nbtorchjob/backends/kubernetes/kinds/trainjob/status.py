"""A TrainJob as facts (trainer 2.3)."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.state import events as ev

_CONTAINER = "node"  # the trainer's; an initializer's container has another name
_BOTHER = "TrainJob resources reconciliation failed: "
_INDEX = "batch.kubernetes.io/job-completion-index"


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a TrainJob's status reports; it has no condition while its pods wait or run."""
    return reading.job_facts(obj, "Complete", "Failed")


def plain(_reason: str, message: str) -> str:
    """Return the message of an operator's event, without the beginning that they all share."""
    return message.removeprefix(_BOTHER)


def node(pod: Object) -> int | None:
    """Return which node a pod is: its completion index; None for an initializer's pod."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    # Older servers have the index only as an annotation (the label came with Kubernetes 1.28).
    index = reading.index((reading.meta(pod).get("annotations") or {}).get(_INDEX))
    trains = any(each.get("name") == _CONTAINER for each in containers)
    return index if trains else None
