"""The runtimes of a TrainJob (trainer 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob.backends.kubernetes.kinds.base import Runtime, Runtimes
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.paths import CLUSTER_RUNTIMES, RUNTIMES
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.text import words

# The step that trains, among initializers and others.
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_FRAMEWORK = "trainer.kubeflow.org/framework"
_CONTAINER = "node"


def trainer(runtime: Object) -> str:
    """Return the replicated job that is labelled as the trainer."""
    return str(_trainer(runtime)["name"])


def made_for(runtime: Object) -> str:
    """Return what a runtime is made for; "" for torch."""
    # Only with mlPolicy.torch do nodes learn where to meet; the label is what Kubeflow's SDK relies on.
    if "torch" in _policy(runtime):
        return ""
    return str((reading.meta(runtime).get("labels") or {}).get(_FRAMEWORK) or "nothing in particular")


def runs(runtime: Object) -> str:
    """Return what a runtime runs, for a list: ``torch, 2 nodes, pytorch/pytorch:2.13.0``."""
    pod: Any = _trainer(runtime).get("template")
    for name in ("spec", "template", "spec"):
        pod = (pod or {}).get(name)
    containers = (pod or {}).get("containers") or ()
    image = next((each.get("image") for each in containers if each.get("name") == _CONTAINER), None)
    nodes = words.count(int(_policy(runtime).get("numNodes") or 1), "node")
    return ", ".join(filter(None, [made_for(runtime) or "torch", nodes, image]))


def restarts(runtime: Object) -> str:
    """Return how often a runtime starts a failed job again, which a TrainJob can't change; "" for never."""
    policy = _template(runtime).get("failurePolicy") or {}
    most = policy.get("maxRestarts")
    if not most:
        return ""
    place = " in place" if policy.get("restartStrategy") == "InPlaceRestart" else ""
    return f"up to {words.count(int(most), 'time')}{place}"


def _template(runtime: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = runtime["spec"]["template"]["spec"]
    return found


def _policy(runtime: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = runtime["spec"].get("mlPolicy") or {}
    return found


def _trainer(runtime: Object) -> Mapping[str, Any]:
    jobs: list[Mapping[str, Any]] = _template(runtime)["replicatedJobs"]
    for job in jobs:
        labels = job.get("template", {}).get("metadata", {}).get("labels", {})
        if labels.get(_STEP) == "trainer":
            return job
    return jobs[0]


# The default is Trainer's own for torch.
OURS = Runtimes(
    own=RUNTIMES,
    shared=CLUSTER_RUNTIMES,
    default=Runtime("torch-distributed", CLUSTER_RUNTIMES.kind, "node"),
    trainer=trainer,
    made_for=made_for,
    runs=runs,
    restarts=restarts,
)
