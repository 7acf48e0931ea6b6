"""The pods of an Indexed Job, and the notation of indexes."""

from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import now, suffix

INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"
NAME = "batch.kubernetes.io/job-name"
UID = "batch.kubernetes.io/controller-uid"
# With a back-off limit per index: how many failures of the index's earlier pods count, and how many were
# ignored; the second is left out if it is 0 (1.36).
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"


def index_of(pod: Object) -> int:
    """Return the completion index of a pod."""
    return int(pod["metadata"]["annotations"][INDEX])


def counted(pod: Object, name: str) -> int:
    """Return one of these two counts of a pod; 0 if it is missing."""
    return int(pod["metadata"]["annotations"].get(name, 0))


def pod_of(job: Object, index: int, owner: Object, notes: Object) -> Object:
    """Return the pod of an index; ``notes`` are annotations with the counts of earlier pods."""
    template, name = job["spec"]["template"], job["metadata"]["name"]
    template_meta, spec = template.get("metadata", {}), dict(template["spec"])
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    env = {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [container | {"env": [*container.get("env", ()), env]} for container in spec[kind]]
    spec.setdefault("hostname", f"{name}-{index}")
    meta = {
        "name": f"{name}-{index}-{suffix()}",
        "generateName": f"{name}-{index}-",
        "labels": {**template_meta.get("labels", {}), INDEX: str(index)},
        "annotations": {**template_meta.get("annotations", {}), INDEX: str(index), **notes},
        "finalizers": [TRACKING],
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def ended_at(pod: Object) -> str:
    """Return when a pod ended."""
    ends = [
        status["state"].get("terminated", {}) for status in pod.get("status", {}).get("containerStatuses", ())
    ]
    times = [end["finishedAt"] for end in ends if end.get("finishedAt")]
    return str(max(times, default=pod["metadata"].get("deletionTimestamp") or now()))


def ranges(indexes: list[int]) -> str:
    """Format indexes as the status does: `0,2-4`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    # A run of two isn't a range.
    shown = [
        f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(str(index) for index in part) for part in parts
    ]
    return ",".join(shown)


def read_ranges(text: str) -> list[int]:
    """Parse what `ranges` returns."""
    indexes: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.extend(range(int(first), int(last or first) + 1))
    return indexes
