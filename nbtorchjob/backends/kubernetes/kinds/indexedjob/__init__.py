"""A plain Indexed Job with a headless Service: it needs no operator."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.kinds.base import Kind, Use
from nbtorchjob.backends.kubernetes.kinds.indexedjob.manifest import (
    API,
    CONTAINER,
    SUCCESS_POLICY,
    cautions,
    manifests,
    owns_retries,
)
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.paths import SERVICES
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


__all__ = ["KIND"]

KIND = Kind(
    name="indexedjob",
    about=__doc__,
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(
        [
            "elastic",
            "elastic backoff",
            "backoff",
            "deadline",
            "ttl",
            "elastic ttl",
            "priority class",
            "workload priority",
        ]
    ),
    owns_retries=owns_retries,
    notes={
        "clean pods": "a Job keeps its ended pods",
        "backoff": "counts the failures of each node",
        "retries": "backoffLimitPerIndex limits failures, and podFailurePolicy tells preemptions apart",
        "suspend": "spec.suspend",
        "at once": "by Kubernetes 1.36, with its alpha gate EnableWorkloadWithJob",
    },
    minor=24,  # Indexed Jobs became stable
    since={"elastic": SUCCESS_POLICY},
    suspend=("spec", "suspend"),
    cautions=cautions,
    uses=(
        Use("create get", SERVICES, "the names of the nodes; read if a response was lost"),
        Use("delete", SERVICES, "`gc`, of exported jobs"),
    ),
    grouped=True,
)
