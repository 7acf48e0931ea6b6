"""Kubeflow's PyTorchJob (training-operator 1.9)."""

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.pytorchjob.manifest import API, CONTAINER, manifests
from nbtorchjob.backends.kubernetes.kinds.pytorchjob.status import facts, node

__all__ = ["KIND"]

KIND = Kind(
    name="pytorchjob",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(
        [
            "elastic",
            "elastic backoff",
            "roles",
            "restart policy",
            "backoff",
            "deadline",
            "clean pods",
            "priority class",
        ]
    ),
    suspend=("spec", "runPolicy", "suspend"),
)
