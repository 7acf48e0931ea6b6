"""An Indexed Job as facts (batch/v1)."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.state import events as ev

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
