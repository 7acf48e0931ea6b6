"""The webhooks of Kueue 0.19 for jobs that name a queue."""

from tests.backends.kubernetes.cluster.refusals import webhook
from tests.backends.kubernetes.cluster.resources import Object, Resource

QUEUE, MANAGER = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/manager"
# The path of each kind's suspend field, and the name of its webhook.
KINDS = {
    "jobs.batch": (("spec", "suspend"), "vjob.kb.io"),
    "pytorchjobs.kubeflow.org": (("spec", "runPolicy", "suspend"), "vpytorchjob.kb.io"),
    "trainjobs.trainer.kubeflow.org": (("spec", "suspend"), "vtrainjob.kb.io"),
}


def default(resource: Resource, obj: Object) -> None:
    """Suspend a new job that names a queue; add Kueue's own patch to any TrainJob that does (recorded)."""
    if resource.qualified in KINDS and _queue(obj):
        if resource.plural == "trainjobs":
            own = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {}}}}
            obj["spec"].setdefault("runtimePatches", []).append(own)
        part, (*path, last) = obj, KINDS[resource.qualified][0]
        for name in path:
            part = part.setdefault(name, {})
        part[last] = True


def update(resource: Resource, obj: Object, before: Object) -> None:
    """Refuse a change of queue, unless it leaves the job suspended."""
    if resource.qualified not in KINDS or _queue(obj) == _queue(before):
        return
    path, name = KINDS[resource.qualified]
    if not _suspended(obj, path):
        text = f'Invalid value: "{_queue(obj)}": field is immutable'
        raise webhook(name, f"metadata.labels[{QUEUE}]: {text}")


def _queue(obj: Object) -> str:
    return (obj["metadata"].get("labels") or {}).get(QUEUE) or ""


def _suspended(obj: Object, path: tuple[str, ...]) -> bool:
    part = obj
    for name in path:
        part = part.get(name) or {}
    return bool(part)
