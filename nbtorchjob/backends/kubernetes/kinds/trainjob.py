"""Kubeflow's TrainJob (trainer 2.3).

A manifest says what differs from the job's runtime. The container's image, command, environment and resources
belong to the ``trainer``; in the rest of the pod a ``runtimePatch`` can change only what ``_REACHED`` names;
the runtime decides everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob.backends.kubernetes.kinds import Kind, Runtimes
from nbtorchjob.backends.kubernetes.lifecycle import Complaints
from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.reading import CLUSTER_RUNTIMES, RUNTIMES, SERVICES, Api, Object
from nbtorchjob.backends.kubernetes.objects.submission import Runtime, Submission
from nbtorchjob.backends.kubernetes.template import replicas, template
from nbtorchjob.errors import SpecError
from nbtorchjob.runtime.facts.injected import RESTARTS
from nbtorchjob.spec.cluster.grammars import DOMAIN
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts import events as ev
from nbtorchjob.text import words

_BOTHER = "TrainJob resources reconciliation failed: "
_INDEX = "batch.kubernetes.io/job-completion-index"


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a TrainJob's status reports; it has no condition while its pods wait or run."""
    # What the job's code, or ours on its behalf, reported to the trainer: an alpha field, ``TrainJobStatus``
    status = reading.status(obj).get("trainerStatus")
    if not isinstance(status, dict):
        progress = []
    else:
        when = reading.seconds(status.get("lastUpdatedTime")) or reading.created(obj)
        metrics = {
            str(metric["name"]): number
            for metric in status.get("metrics") or ()
            if (number := _number(metric.get("value"))) is not None
        }
        progress = [
            ev.TrainerStatus(
                when, status.get("progressPercentage"), status.get("estimatedRemainingSeconds"), metrics
            )
        ]
    return [*reading.job_facts(obj, "Complete", "Failed"), *progress]


def plain(_reason: str, message: str) -> str:
    """Return the message of an operator's event, without the beginning that they all share."""
    return message.removeprefix(_BOTHER)


def node(pod: Object) -> int | None:
    """Return which node a pod is: its completion index; None for an initializer's pod."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    # Older servers have the index only as an annotation (the label came with Kubernetes 1.28).
    index = reading.index((reading.meta(pod).get("annotations") or {}).get(_INDEX))
    trains = any(container.get("name") == CONTAINER for container in containers)
    return index if trains else None


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:  # any text may be a metric's value
        return None


# The label that tells the step that trains from initializers and others.
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_INITIALIZERS = ("dataset-initializer", "model-initializer")
_FRAMEWORK = "trainer.kubeflow.org/framework"


def trainer(runtime: Object) -> str:
    """Return the replicated job that is labelled as the trainer."""
    return str(_trainer_of(runtime)["name"])


def made_for(runtime: Object) -> str:
    """Return what a runtime is made for; "" for torch."""
    # Only with mlPolicy.torch do nodes learn where to meet; the label is what Kubeflow's SDK relies on.
    if "torch" in _policy(runtime):
        return ""
    return str((reading.meta(runtime).get("labels") or {}).get(_FRAMEWORK) or "no particular framework")


def runs(runtime: Object) -> str:
    """Return what a runtime runs, for a list: ``torch, 2 nodes, pytorch/pytorch:2.13.0``."""
    pod: Any = _trainer_of(runtime).get("template")
    for name in ("spec", "template", "spec"):
        pod = (pod or {}).get(name)
    containers = (pod or {}).get("containers") or ()
    image = next(
        (container.get("image") for container in containers if container.get("name") == CONTAINER), None
    )
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


def initializers(runtime: Object) -> list[str]:
    """Return the steps of a runtime that fetch a dataset, or a model, before its trainer starts."""
    labels = (
        job.get("template", {}).get("metadata", {}).get("labels", {})
        for job in _template(runtime)["replicatedJobs"]
    )
    return sorted({step for job_labels in labels if (step := job_labels.get(_STEP)) in _INITIALIZERS})


def _template(runtime: Object) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = runtime["spec"]["template"]["spec"]
    return spec


def _policy(runtime: Object) -> Mapping[str, Any]:
    policy: Mapping[str, Any] = runtime["spec"].get("mlPolicy") or {}
    return policy


def _trainer_of(runtime: Object) -> Mapping[str, Any]:
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
    initializers=initializers,
)


API = Api("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
CONTAINER = "node"  # the trainer's; an initializer's container has another name

_MANAGER = f"{DOMAIN}/{labelling.MANAGER}"
_TRAINER = ("image", "command", "args", "env")
_PATCHED = ("volumeMounts", "securityContext")
_REACHED = (
    "serviceAccountName",
    "volumes",
    "imagePullSecrets",
    "securityContext",
    "nodeSelector",
    "affinity",
    "tolerations",
    "schedulingGates",
    "terminationGracePeriodSeconds",
)
_MOST_ENV = 128  # of trainer.env, in the CRD; a few are nbtorchjob's own
_OUR_ENV = 12
_RESTARTED = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the TrainJob; its controllers make the JobSet, the Job and the Service."""
    env: dict[str, Any] = {"NBTORCHJOB_DOMAIN": sub.name}
    if not sub.retried_by_us:  # a runtime may start a failed job again by itself
        env[RESTARTS] = {"valueFrom": {"fieldRef": {"fieldPath": _RESTARTED}}}
    pod = template(sub, CONTAINER, replicas(sub.spec)[0], env)
    runtime = sub.runtime or OURS.default
    container = pod["spec"]["containers"][0]
    launch = sub.spec.launch
    trainer = {
        "numNodes": launch.max_nodes,
        "numProcPerNode": launch.nproc_per_node,
        **{key: container.get(key) for key in _TRAINER},
        "resourcesPerNode": container.get("resources"),
    }
    container = {
        key: value for key, value in pod["spec"]["containers"][0].items() if key in ("name", *_PATCHED)
    }
    patch_spec = {
        **{key: value for key, value in pod["spec"].items() if key in _REACHED},
        "containers": [container],
    }
    patch_template = {"spec": {"template": {"metadata": pod["metadata"], "spec": patch_spec}}}
    jobs = [{"name": runtime.job, "template": patch_template}]
    patch = {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }
    spec: dict[str, Any] = {
        "runtimeRef": {"apiGroup": API.group, "kind": runtime.kind, "name": runtime.name},
        "trainer": {key: value for key, value in trainer.items() if value},
        "runtimePatches": [patch],
    }
    if sub.deadline_s:
        spec["activeDeadlineSeconds"] = sub.deadline_s
    return [
        {"apiVersion": API.group_version, "kind": API.kind, "metadata": sub.queued_metadata, "spec": spec}
    ]


def trainers_job(obj: Mapping[str, Any]) -> str:
    """Return the name of the Job that runs a TrainJob's nodes: the runtime determines its second part."""
    patches = (obj.get("spec") or {}).get("runtimePatches") or ()
    jobs: Any = next((patch for patch in patches if patch.get("manager") == _MANAGER), None)
    for name in ("trainingRuntimeSpec", "template", "spec", "replicatedJobs"):
        jobs = (jobs or {}).get(name)
    job = jobs[0]["name"] if jobs else OURS.default.job
    return f"{obj['metadata']['name']}-{job}-0"


def check(spec: JobSpec) -> None:
    """Raise ``SpecError`` for what neither ``trainer`` nor ``runtimePatches`` can express."""
    if spec.cluster.env_from:
        raise SpecError(
            "env_from", list(spec.cluster.env_from), "left out on a trainjob, which takes no whole Secret"
        )
    if len(spec.env) + len(spec.secret_env) > _MOST_ENV - _OUR_ENV:
        raise SpecError(
            "env",
            f"{len(spec.env) + len(spec.secret_env)} variables",
            f"at most {_MOST_ENV - _OUR_ENV} on a trainjob",
        )
    metadata, pod = (spec.cluster.patch.get(part) or {} for part in ("metadata", "spec"))
    beyond = [f"metadata.{key}" for key in metadata if key not in ("labels", "annotations")]
    beyond += [f"spec.{key}" for key in pod if key not in (*_REACHED, "containers")]
    for container in pod.get("containers") or ():
        if container.get("name", CONTAINER) != CONTAINER:
            beyond.append("spec.containers other than its own")
        container_keys = ("name", "resources", *_TRAINER, *_PATCHED)
        beyond += [f"spec.containers[].{key}" for key in container if key not in container_keys]
    if beyond:
        left = f"left without {', '.join(sorted(beyond))} on a trainjob"
        allowed = f"{left}, whose runtime determines these; use another --kind"
        raise SpecError("pod_patch", spec.cluster.pod_patch, allowed)


KIND = Kind(
    name="trainjob",
    about="Kubeflow's TrainJob (trainer 2.3).",
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
    adopts=((SERVICES, "{name}"),),  # by JobSet 0.12; a Service for other pods resolves no node's name
    stubborn=True,  # the JobSet's default restartPolicy is OnFailure, six times (JobSet 0.12)
    children={"JobSet": lambda obj: str(obj["metadata"]["name"]), "Job": trainers_job},
    complaints=Complaints(
        # Trainer's about a JobSet, and JobSet's about a Job.
        refusals=dict.fromkeys(
            ("TrainJobResourcesCreationFailed", "JobCreationFailed"),
            "its runtime and this job don't fit together",
        ),
        plain=plain,
    ),
    # The Job of its JobSet, which isn't read here: the runtime's name for it follows the TrainJob's name.
    controls=lambda owner, obj: (
        owner.get("kind") == "Job" and str(owner.get("name")).startswith(f"{obj['metadata']['name']}-")
    ),
)
