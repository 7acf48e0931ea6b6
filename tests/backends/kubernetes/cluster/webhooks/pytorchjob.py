"""The webhook of training-operator."""

import re
from typing import Any

from tests.backends.kubernetes.cluster.refusals import webhook
from tests.backends.kubernetes.cluster.resources import Object

PYTORCHJOB = "validator.pytorchjob.training-operator.kubeflow.org"
MANAGERS = ("kueue.x-k8s.io/multikueue", "kubeflow.org/training-operator")


def validate(obj: Object, warnings: list[str]) -> None:
    """Refuse an invalid PyTorchJob; warn of a deprecated field."""

    def refuse(field: str, why: str) -> None:
        raise webhook(PYTORCHJOB, f"{field}: {why}")

    spec, name = obj["spec"], obj["metadata"]["name"]
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > 63:
        why = (
            f'Invalid value: "{name}": should match: must be no more than 63 characters'
            if len(name) > 63
            else f"Invalid value: \"{name}\": should match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
            "start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
            "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
        )
        refuse("metadata.name", why)
    elastic, replicas = spec.get("elasticPolicy"), spec["pytorchReplicaSpecs"]
    if elastic is not None and "nProcPerNode" in elastic:
        warnings.append(
            '299 - "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"'
        )
        if "nprocPerNode" in spec:
            refuse("spec.elasticPolicy.nProcPerNode", "Forbidden: must not be used with spec.nprocPerNode")
    if elastic is not None and "Worker" not in replicas:
        refuse(
            "spec.pytorchReplicaSpecs[Worker]", "Required value: must be configured if elastic policy is used"
        )
    manager = (spec.get("runPolicy") or {}).get("managedBy")
    if manager and manager not in MANAGERS:
        listed = ", ".join(f'"{manager}"' for manager in MANAGERS)
        refuse("spec.runPolicy.managedBy", f'Unsupported value: "{manager}": supported values: {listed}')
    for kind, replica in replicas.items():
        _replica(kind, replica, refuse)


def _replica(kind: str, replica: Object, refuse: Any) -> None:
    path = f"spec.pytorchReplicaSpecs[{kind}]"
    if kind not in ("Master", "Worker"):
        refuse(path, f'Unsupported value: "{kind}": supported values: "Master", "Worker"')
    containers = replica.get("template", {}).get("spec", {}).get("containers") or []
    if not containers:
        refuse(f"{path}.template.spec.containers", "Required value: must be specified")
    for index, container in enumerate(containers):
        if not container.get("image"):
            refuse(f"{path}.template.spec.containers[{index}].image", "Required value: must be required")
    if not any(container["name"] == "pytorch" for container in containers):
        refuse(
            f"{path}.template.spec.containers",
            "Required value: must have at least one container with name pytorch",
        )
    if kind == "Master" and replica.get("replicas") != 1:
        refuse(f"{path}.replicas", "Forbidden: must be 1")
    if kind == "Worker" and replica.get("replicas", 1) < 1:
        refuse(f"{path}.replicas", "Forbidden: must be at least 1")
