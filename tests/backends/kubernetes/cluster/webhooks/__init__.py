"""The admission webhooks of the operators, as far as their answers were recorded."""

from tests.backends.kubernetes.cluster.refusals import webhook
from tests.backends.kubernetes.cluster.resources import Object, Resource
from tests.backends.kubernetes.cluster.store import Store
from tests.backends.kubernetes.cluster.webhooks import kueue, pytorchjob, trainjob, volcano

VOLCANO_JOB = "jobs.batch.volcano.sh"


def default(resource: Resource, obj: Object, *, queues: bool) -> None:
    """Change a new object as mutating webhooks do, before the validation of its schema."""
    if queues:
        kueue.default(resource, obj)
    if resource.qualified == VOLCANO_JOB:
        volcano.default(obj["spec"])
    elif resource.plural == "trainjobs":
        trainjob.default(resource, obj)


def validate(resource: Resource, obj: Object, store: Store, warnings: list[str]) -> None:
    """Refuse the objects that validating webhooks refuse."""
    if resource.plural == "pytorchjobs":
        pytorchjob.validate(obj, warnings)
    elif resource.plural == "trainjobs":
        trainjob.validate(obj, store)
    elif resource.qualified == VOLCANO_JOB:
        volcano.validate(obj, store)
    elif resource.plural == "jobsets":
        _jobset(obj)


def update(resource: Resource, obj: Object, before: Object, *, queues: bool) -> None:
    """Refuse the changes that validating webhooks refuse."""
    if queues:
        kueue.update(resource, obj, before)


def _jobset(obj: Object) -> None:
    name = obj["metadata"]["name"]
    for index, replicated in enumerate(obj["spec"].get("replicatedJobs", ())):
        last = replicated["template"]["spec"].get("completions", 1) - 1
        job = f"{name}-{replicated['name']}-0"
        # Five random characters come after the index.
        if len(f"{job}-{last}-abcde") > 63:
            why = "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
            field = f"spec.replicatedJobs[{index}].name"
            text = f'JobSet.jobset.x-k8s.io "{name}" is invalid: {field}: Invalid value: "{job}": {why}'
            raise webhook("vjobset.kb.io", text)
