"""Kubeflow's TrainJob (trainer 2.3)."""

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.trainjob.manifest import API, CONTAINER, check, manifests
from nbtorchjob.backends.kubernetes.kinds.trainjob.status import facts, node

__all__ = ["KIND"]

KIND = Kind(
    name="trainjob",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["deadline", "runtime"]),
    check=check,
    notes={
        "ttl": "a TrainJob has none (trainer 2.3)",
        "clean pods": "a TrainJob can't say so: its Jobs keep their ended pods (trainer 2.3)",
        "backoff": "its runtime says how often pods are started again, not the job",
        "suspend": "spec.suspend",
    },
    needs_image=False,  # its runtime has one
    suspend=("spec", "suspend"),
    stubborn=True,  # the JobSet's default restartPolicy is OnFailure, six times (JobSet 0.12)
    children={"JobSet": "{name}", "Job": "{name}-node-0"},
)
