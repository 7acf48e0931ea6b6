"""Kubeflow's TrainJob (trainer 2.3)."""

from nbtorchjob.backends.kubernetes.kinds.base import Complaints, Kind
from nbtorchjob.backends.kubernetes.kinds.trainjob.manifest import API, CONTAINER, OURS, check, manifests
from nbtorchjob.backends.kubernetes.kinds.trainjob.status import facts, node, plain
from nbtorchjob.backends.kubernetes.objects.paths import SERVICES

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
