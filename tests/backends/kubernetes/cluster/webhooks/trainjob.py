"""The webhooks of Kubeflow Trainer."""

import json
import re

from tests.backends.kubernetes.cluster.refusals import invalid, webhook
from tests.backends.kubernetes.cluster.resources import Object, Resource
from tests.backends.kubernetes.cluster.store import Store

TRAINJOB, DEFAULTER = "validator.trainjob.trainer.kubeflow.org", "defaulter.trainjob.trainer.kubeflow.org"
RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
OWN_CONTAINERS = ("node", "dataset-initializer", "model-initializer")


def default(resource: Resource, obj: Object) -> None:
    """Refuse what can't be decoded at all: the defaulting webhook comes before the schema."""
    spec, managers = obj["spec"], list[str]()
    for index, patch in enumerate(spec.get("runtimePatches") or ()):  # its schema: a map by manager
        if patch.get("manager") in managers:
            shown = json.dumps({"manager": patch["manager"]}, separators=(",", ":"))
            cause = ("FieldValueDuplicate", f"Duplicate value: {shown}", f"spec.runtimePatches[{index}]")
            raise invalid(resource, obj["metadata"]["name"], [cause])
        managers.append(patch.get("manager"))
    processes = (spec.get("trainer") or {}).get("numProcPerNode", 0)
    if isinstance(processes, str):
        field = "Go struct field Trainer.spec.trainer.numProcPerNode of type int32"
        raise webhook(DEFAULTER, f"json: cannot unmarshal string into {field}", 400)


def validate(obj: Object, store: Store) -> None:
    """Refuse an invalid TrainJob."""
    spec = obj["spec"]
    ref = spec["runtimeRef"]
    kind = ref["kind"]
    space = obj["metadata"]["namespace"] if kind == "TrainingRuntime" else ""
    runtimes = [obj for resource, obj in store.everything() if resource.kind == kind]
    if not any(
        obj["metadata"]["name"] == ref["name"] and obj["metadata"].get("namespace", "") == space
        for obj in runtimes
    ):
        shown = json.dumps(
            {"name": ref["name"], "apiGroup": ref["apiGroup"], "kind": kind}, separators=(",", ":")
        )
        where = kind[0].lower() + kind[1:]
        why = (
            f'spec.runtimeRef: Invalid value: {shown}: {kind}.trainer.kubeflow.org "{ref["name"]}" not found: '
            f"specified {where} must be created before the TrainJob is created"
        )
        raise webhook(TRAINJOB, why)
    variables = (spec.get("trainer") or {}).get("env") or []
    conflicts = [variable["name"] for variable in variables if variable["name"] in RESERVED]
    if conflicts:
        shown = json.dumps(variables, separators=(",", ":"))
        why = f"spec.trainer.env: Invalid value: {shown}: must not have reserved envs, invalid envs configured: "
        raise webhook(TRAINJOB, f"{why}[{' '.join(conflicts)}]")
    for patch in spec.get("runtimePatches") or ():
        if not re.fullmatch(r"[a-z0-9.-]+\.[a-z0-9-]+/.+", patch["manager"]):
            why = (
                f'spec.runtimePatches.manager: Invalid value: "{patch["manager"]}": must be a domain-prefixed path '
                '(such as "acme.io/foo")'
            )
            raise webhook(TRAINJOB, why)
        if _sets_environment(patch):
            shown = json.dumps(spec["runtimePatches"], separators=(",", ":"))
            why = "must not have envs for the dataset-initializer, model-initializer, node containers"
            raise webhook(TRAINJOB, f"spec.runtimePatches: Invalid value: {shown}: {why}")


def _sets_environment(patch: Object) -> bool:
    """Return whether a patch sets environment variables of a container that the TrainJob configures."""
    jobs = patch.get("trainingRuntimeSpec", {}).get("template", {}).get("spec", {}).get("replicatedJobs", ())
    pods = [job.get("template", {}).get("spec", {}).get("template", {}).get("spec", {}) for job in jobs]
    containers = [container for pod in pods for container in pod.get("containers", ())]
    return any(container.get("env") for container in containers if container["name"] in OWN_CONTAINERS)
