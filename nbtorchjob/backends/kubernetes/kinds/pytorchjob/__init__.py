"""Kubeflow's PyTorchJob (training-operator 1.9)."""

from nbtorchjob.backends.kubernetes.kinds.base import Complaints, Kind
from nbtorchjob.backends.kubernetes.kinds.pytorchjob.manifest import (
    API,
    CONTAINER,
    cautions,
    check,
    manifests,
    unrestricted,
)
from nbtorchjob.backends.kubernetes.kinds.pytorchjob.status import facts, node, plain

__all__ = ["KIND"]

KIND = Kind(
    name="pytorchjob",
    about=__doc__,
    operator="Kubeflow's training-operator 1.9",
    install=(
        "kubectl apply --server-side -k "
        '"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.4"'
    ),
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
            "ttl",
            "clean pods",
            "priority class",
            "workload priority",
        ]
    ),
    check=check,
    notes={
        "deadline": "the operator looks at the clock only when a pod changes (training-operator 1.9)",
        "elastic ttl": "once it has failed: the operator forgets such a job (training-operator 1.9)",
        "clean pods": "within moments of the job's end",
        "backoff": "counts restarts in place",
        "suspend": "spec.runPolicy.suspend",
        "at once": "by its operator, with a scheduler for gangs",
    },
    suspend=("spec", "runPolicy", "suspend"),
    # The pods of one that failed run on by default, deadline or not.
    ended={"spec": {"runPolicy": {"activeDeadlineSeconds": 1, "cleanPodPolicy": "Running"}}},
    cautions=cautions,
    unrestricted=unrestricted,
    children={"PodGroup": "{name}"},  # where the operator is configured to schedule gangs
    complaints=Complaints(
        plain=plain,
        forbidden={
            "init-pytorch": "its operator's init container may not run there, use --nnodes or another --kind"
        },
    ),
)
