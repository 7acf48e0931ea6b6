"""Kubeflow's TrainJob (trainer 2.3)."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.kinds.base import Complaints, Kind
from nbtorchjob.backends.kubernetes.kinds.trainjob.manifest import API, CONTAINER, OURS, check, manifests
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.paths import SERVICES
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


__all__ = ["KIND"]

KIND = Kind(
    name="trainjob",
    about=__doc__,
    operator="Kubeflow's trainer 2.3",
    install=(
        "helm install kubeflow-trainer oci://ghcr.io/kubeflow/charts/kubeflow-trainer --version 2.3.0 "
        "--namespace kubeflow-system --create-namespace --set runtimes.defaultEnabled=true"
    ),
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["deadline", "runtime", "workload priority"]),
    check=check,
    notes={
        "ttl": "a TrainJob has no TTL (trainer 2.3)",
        "clean pods": "a TrainJob has no setting for it: its Jobs keep their ended pods (trainer 2.3)",
        "backoff": "set by its runtime, not by the job",
        "suspend": "spec.suspend",
        "at once": "by its runtime's podGroupPolicy",
    },
    needs_image=False,  # its runtime has one
    suspend=("spec", "suspend"),
    runtimes=OURS,
    adopts=((SERVICES, "{name}"),),  # JobSet 0.12 does: one that selects other pods knows no node's name
    stubborn=True,  # the JobSet's default restartPolicy is OnFailure, six times (JobSet 0.12)
    children={"JobSet": "{name}", "Job": "{name}-node-0"},
    complaints=Complaints(
        # Trainer's of a JobSet, and JobSet's of a Job.
        refusals=dict.fromkeys(
            ("TrainJobResourcesCreationFailed", "JobCreationFailed"),
            "its runtime and this job don't fit together",
        ),
        plain=plain,
    ),
    # The Job of its JobSet, which isn't read here: what a runtime calls it comes behind the TrainJob's name.
    controls=lambda owner, obj: (
        owner.get("kind") == "Job" and str(owner.get("name")).startswith(f"{obj['metadata']['name']}-")
    ),
)
