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
    return [*reading.job_facts(obj, "Complete", "Failed"), *_progress(obj)]


def plain(_reason: str, message: str) -> str:
    """Return the message of an operator's event, without the beginning that they all share."""
    return message.removeprefix(_BOTHER)


def node(pod: Object) -> int | None:
    """Return which node a pod is: its completion index; None for an initializer's pod."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    # Older servers have the index only as an annotation (the label came with Kubernetes 1.28).
    index = reading.index((reading.meta(pod).get("annotations") or {}).get(_INDEX))
    trains = any(container.get("name") == _CONTAINER for container in containers)
    return index if trains else None


def _progress(obj: Object) -> list[ev.Event]:
    """Return what the job's code, or ours for it, told the trainer: an alpha field, ``TrainJobStatus``."""
    status = reading.status(obj).get("trainerStatus")
    if not isinstance(status, dict):
        return []
    when = reading.seconds(status.get("lastUpdatedTime")) or reading.created(obj)
    metrics = {
        str(metric["name"]): number
        for metric in status.get("metrics") or ()
        if (number := _number(metric.get("value"))) is not None
    }
    return [
        ev.TrainerStatus(
            when, status.get("progressPercentage"), status.get("estimatedRemainingSeconds"), metrics
        )
    ]


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:  # any text may be a metric's value
        return None
