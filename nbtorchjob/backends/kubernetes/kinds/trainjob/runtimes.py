"""The runtimes of a TrainJob (trainer 2.3)."""

from __future__ import annotations

from nbtorchjob.backends.kubernetes.kinds.base import Runtime, Runtimes
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.paths import CLUSTER_RUNTIMES, RUNTIMES
from nbtorchjob.backends.kubernetes.objects.reading import Object

# The step that trains, among initializers and others.
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_FRAMEWORK = "trainer.kubeflow.org/framework"


def trainer(runtime: Object) -> str:
    """Return the replicated job that is labelled as the trainer."""
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    for job in jobs:
        labels = job.get("template", {}).get("metadata", {}).get("labels", {})
        if labels.get(_STEP) == "trainer":
            return str(job["name"])
    return str(jobs[0]["name"])


def made_for(runtime: Object) -> str:
    """Return what a runtime is made for; "" for torch."""
    # Only with mlPolicy.torch do nodes learn where to meet; the label is what Kubeflow's SDK relies on.
    if "torch" in (runtime["spec"].get("mlPolicy") or {}):
        return ""
    return str((reading.meta(runtime).get("labels") or {}).get(_FRAMEWORK) or "nothing in particular")


# The default is Trainer's own for torch.
OURS = Runtimes(
    own=RUNTIMES,
    shared=CLUSTER_RUNTIMES,
    default=Runtime("torch-distributed", CLUSTER_RUNTIMES.kind, "node"),
    trainer=trainer,
    made_for=made_for,
)
