"""The pod template that all kinds share: one container that runs the payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.payload import secrets, stores
from nbtorchjob.backends.kubernetes.pod import mounts, placement, security
from nbtorchjob.backends.kubernetes.pod.patch import patched
from nbtorchjob.backends.kubernetes.pod.resources import Replica, resources, shared_memory
from nbtorchjob.environment.images import Asked
from nbtorchjob.runtime import injected
from nbtorchjob.runtime.given import GIVEN
from nbtorchjob.spec.jobspec import GRACE_S, JobSpec

PORT = 29400  # torch's own for c10d
_KUBERNETES_GRACE_S = 30  # its own default (1.36)
COMMAND = ("python", f"{mounts.PAYLOAD}/job.pyz")

_OURS = {
    "NBTORCHJOB_STREAM": "1",
    "NBTORCHJOB_KEY_FILE": f"{mounts.PAYLOAD}/key",
    "NBTORCHJOB_TERMINATION_LOG": "/dev/termination-log",
    # A node's stores listen there, and nowhere else.
    "NBTORCHJOB_ADDRESS": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
}
# Variables that change which Python runs, and what it imports.
_FOR_IMPORTS = ("PYTHON", "PATH", "LD_", "VIRTUAL_ENV", "CONDA_")
# What nbtorchjob and the operators set: it would override a user's, or make it refused (TrainJob).
RESERVED = frozenset(
    [
        *_OURS,
        *(f"NBTORCHJOB_{name}" for name in ("NODE", "DOMAIN", "STORAGE", "CHECKPOINTS", "JOB", "RUN")),
        *(GIVEN, injected.GRACE, injected.ATTEMPT, injected.FAILURES, injected.IGNORED, injected.RESTARTS),
        *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_MAX_RESTARTS", "PET_STANDALONE"),
    ]
)


def template(
    sub: Submission,
    container: str,
    replica: Replica,
    env: Mapping[str, Any],
    *,
    port: str = "rendezvous",
    **spec: Any,
) -> dict[str, Any]:
    """Return the template of the pods of a role.

    ``container`` is its name, ``env`` what the kind adds (texts, or ``{"valueFrom": …}``), ``port`` the
    name of the rendezvous' port; ``spec`` is what else the kind has in the pod's spec.
    """
    cluster = sub.spec.cluster
    found = {
        "metadata": {
            "labels": sub.marks,
            # A sidecar would keep the pod running when the node has ended (kubeflow/trainer#1183).
            "annotations": {**cluster.annotation, "sidecar.istio.io/inject": "false"},
        },
        "spec": {**_pod(sub), **spec},
    }
    main, volumes = _container(sub, container, replica, env, port)
    found["spec"] |= {"containers": [main], "volumes": volumes}
    found = security.consistent(patched(found, cluster.patch, container), container)
    return placement.elsewhere(found, sub)


def asked_images(spec: JobSpec) -> list[Asked]:
    """Return the images that are requested: that of node 0, then another one's from node 1 on, if any.

    Which image a runtime has only its pods tell: it goes by the runtime's name.
    """
    cluster = spec.cluster
    env = {name: spec.env[name] for name in sorted(spec.env) if name.startswith(_FOR_IMPORTS)}
    beside = [env, list(cluster.mount), cluster.pod_patch, cluster.run_as]
    told = json.dumps(beside) if any(beside) else ""
    runtime = f"of the runtime {cluster.runtime or 'by default'}"
    where = f"{told}\n{cluster.namespace or ''}"  # a namespace may have a runtime of its own
    return [
        Asked(cluster.context or "", image, told) if image else Asked(cluster.context or "", runtime, where)
        for image in spec.images
    ]


def _pod(sub: Submission) -> dict[str, Any]:
    cluster = sub.spec.cluster
    asked = {
        "serviceAccountName": cluster.service_account,
        "imagePullSecrets": [{"name": name} for name in cluster.image_pull_secret],
        "nodeSelector": placement.selector(sub),
        "tolerations": placement.tolerations(sub),
        "priorityClassName": cluster.priority_class,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": sub.spec.grace,
        # A variable for each of the namespace's Services makes for slow starts and surprises.
        "enableServiceLinks": False,
        # The node itself calls no API, but whoever names a service account may want its token.
        "automountServiceAccountToken": cluster.service_account is not None,
        "securityContext": security.of_pod(cluster.user),
        **{key: value for key, value in asked.items() if value},
    }


def _container(
    sub: Submission, name: str, replica: Replica, env: Mapping[str, Any], port: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    cluster = sub.spec.cluster
    amounts = resources(cluster, replica)
    shm = shared_memory(sub.spec, amounts.get("limits", {}))
    volumes = [
        mounts.payload(sub.secrets),
        *([mounts.shared_memory(shm)] if shm else []),
        *mounts.asked(cluster.mounts),
    ]
    container = {
        "name": name,
        "image": replica.image or cluster.image,
        "command": list(COMMAND),
        "env": _env(sub, env),
        "envFrom": [{"secretRef": {"name": name}} for name in cluster.variable_secrets],
        "ports": [{"name": port, "containerPort": PORT}],
        "resources": amounts,
        "volumeMounts": [volume.mount for volume in volumes],
        "securityContext": security.of_container(privileged=mounts.privileged(cluster.mounts)),
    }
    return {key: value for key, value in container.items() if value}, [volume.volume for volume in volumes]


def _env(sub: Submission, env: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        # Kubernetes replaces $(NAME), and $$ by $; a value is meant literally.
        {"name": name, **(value if isinstance(value, Mapping) else {"value": value.replace("$", "$$")})}
        for name, value in {
            **security.home(sub.spec.cluster.user),
            **sub.spec.env,
            **{name: _held(sub, name) for name in sub.spec.secret_env},
            **_OURS,
            **_told(sub),
            **env,
        }.items()
    ]


def _held(sub: Submission, name: str) -> dict[str, Any]:
    """Return where a variable's value is that is in no manifest: in the job's first Secret."""
    return {"valueFrom": {"secretKeyRef": {"name": sub.secrets[0], "key": secrets.env_key(name)}}}


def _told(sub: Submission) -> dict[str, str]:
    storage = sub.spec.cluster.storage
    # A pod's patch is the last word, also where it takes ours away.
    asked = (sub.spec.cluster.patch.get("spec") or {}).get("terminationGracePeriodSeconds", sub.spec.grace)
    grace = _KUBERNETES_GRACE_S if asked is None else asked
    found = {
        "NBTORCHJOB_STORAGE": stores.folder(storage, sub.info) if storage else "",
        "NBTORCHJOB_CHECKPOINTS": stores.checkpoints(sub.spec, sub.info),
        injected.ATTEMPT: str(sub.attempt) if sub.ours else "",
        injected.GRACE: str(injected.of_grace(grace)) if isinstance(grace, int) and grace != GRACE_S else "",
        injected.JOB: sub.info.name,
        injected.RUN: sub.info.run,
        GIVEN: sub.info.variant,
    }
    return {key: value for key, value in found.items() if value}
