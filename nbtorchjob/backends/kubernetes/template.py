"""The pod template that all kinds share: one container, what it mounts, where it may run, what it may not do.

With ``--run-as`` a pod meets the standard "restricted" (Kubernetes 1.36), without it "baseline". Its
limits are as requested; its requests leave the host its reserve.

A user's patch is laid over the template, much as ``kubectl patch`` would: mappings are merged, and null
removes a key. Lists of mappings are merged by ``name`` (volume mounts by ``mountPath``); entries without one
are appended, and so are tolerations. Other lists are replaced. A container without a name is the job's own,
whatever the kind calls it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.payload import package, stores
from nbtorchjob.environment.images import JobImage
from nbtorchjob.errors import SpecError
from nbtorchjob.runtime.facts import injected
from nbtorchjob.runtime.store.payload import GIVEN
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.cluster.grammars import Mount, User, amount, toleration
from nbtorchjob.spec.config import CLAIMS, Elastic, Master, Worker, where
from nbtorchjob.spec.jobspec import GRACE_S, JobSpec

PAYLOAD = "/etc/nbtorchjob"
SWAPS = "/etc/nbtorchjob-swaps"
# Every volume's name begins with this, as a TrainJob's are merged with its runtime's by name.
_PREFIX = "nbtorchjob-"


class Volume(NamedTuple):
    """An entry of a pod's ``volumes`` and the container's entry of ``volumeMounts`` for it."""

    volume: dict[str, Any]
    mount: dict[str, Any]


def payload(secrets: Sequence[str]) -> Volume:
    """Return the volume that holds all of the payload's Secrets in one folder."""
    return _volume(
        "payload",
        {"projected": {"sources": [{"secret": {"name": name}} for name in secrets]}},
        PAYLOAD,
        readonly=True,
    )


def mounted(part: Any) -> list[str]:
    """Return the names of the payload's Secrets, in order, from a job object or a part of one.

    It is searched for the volume, as each kind has its pod templates in another place.
    """
    if isinstance(part, dict) and part.get("name") == f"{_PREFIX}payload" and "projected" in part:
        return [source["secret"]["name"] for source in part["projected"]["sources"]]
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return next(filter(None, map(mounted, parts)), [])


def shared_memory_mount(size: str) -> Volume:
    """Return the volume for ``/dev/shm``, of at most that size."""
    return _volume("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm")


def mount_volumes(mounts: Iterable[Mount]) -> list[Volume]:
    """Return the volumes that the spec requests, as TorchX makes them (0.7)."""
    volumes = []
    for i, mount in enumerate(mounts):
        if mount.type == "volume":
            source = {"persistentVolumeClaim": {"claimName": mount.src}}
        else:
            source = {"hostPath": {"path": mount.src}}
        volumes.append(_volume(f"mount-{i}", source, mount.dst, readonly=mount.readonly))
    return volumes


def privileged(mounts: Iterable[Mount]) -> bool:
    """Whether the container must be privileged: only then may it use a host's device."""
    return any(mount.type == "device" for mount in mounts)


def _volume(name: str, source: dict[str, Any], path: str, *, readonly: bool = False) -> Volume:
    mount: dict[str, Any] = {"name": _PREFIX + name, "mountPath": path}
    if readonly:
        mount["readOnly"] = True
    return Volume({"name": _PREFIX + name, **source}, mount)


PORT = 29400  # torch's default for c10d
_KUBERNETES_GRACE_S = 30  # Kubernetes' own default (1.36)
COMMAND = ("python", f"{PAYLOAD}/job.pyz")

_OURS = {
    "NBTORCHJOB_STREAM": "1",
    "NBTORCHJOB_KEY_FILE": f"{PAYLOAD}/key",
    "NBTORCHJOB_TERMINATION_LOG": "/dev/termination-log",
    # A node's stores listen there, and nowhere else.
    "NBTORCHJOB_ADDRESS": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
}
# Variables that change which Python runs, and what it imports.
_FOR_IMPORTS = ("PYTHON", "PATH", "LD_", "VIRTUAL_ENV", "CONDA_")
# Variables that nbtorchjob and the operators set: a user's would be overridden, or refused (TrainJob).
RESERVED = frozenset(
    [
        *_OURS,
        *(f"NBTORCHJOB_{name}" for name in ("NODE", "DOMAIN", "STORAGE", "CHECKPOINTS", "JOB", "RUN")),
        *(
            GIVEN,
            injected.SWAPS,
            injected.GRACE,
            injected.ATTEMPT,
            injected.FAILURES,
            injected.IGNORED,
            injected.RESTARTS,
        ),
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

    ``container`` is the container's name, ``env`` has the kind's variables (texts, or ``{"valueFrom": …}``),
    ``port`` is the name of the rendezvous port, and ``spec`` has what the kind adds to the pod's spec.
    """
    cluster = sub.spec.cluster
    fields = {
        "serviceAccountName": cluster.service_account,
        "imagePullSecrets": [{"name": name} for name in cluster.image_pull_secret],
        "nodeSelector": selector(sub),
        "tolerations": tolerations(sub),
        "priorityClassName": cluster.priority_class,
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": sub.spec.grace,
        # A variable for each of the namespace's Services makes for slow starts and surprises.
        "enableServiceLinks": False,
        # The node itself calls no API, but a user who names a service account may want its token.
        "automountServiceAccountToken": cluster.service_account is not None,
        "securityContext": of_pod(cluster.user),
        **{key: value for key, value in fields.items() if value},
    }
    manifest = {
        "metadata": {
            "labels": sub.marks,
            # A sidecar would keep the pod running when the node has ended (kubeflow/trainer#1183).
            "annotations": {**cluster.annotation, "sidecar.istio.io/inject": "false"},
        },
        "spec": {**pod, **spec},
    }
    main, volumes = _container(sub, container, replica, env, port)
    manifest["spec"] |= {"containers": [main], "volumes": volumes}
    manifest = consistent(patched(manifest, cluster.patch, container), container)
    return elsewhere(manifest, sub)


def requested_images(spec: JobSpec) -> list[JobImage]:
    """Return the requested images: that of node 0, then that of the nodes from 1 on, if it is another one.

    A runtime's image is only known from its pods, so it is represented by the runtime's name.
    """
    cluster = spec.cluster
    env = {name: spec.env[name] for name in sorted(spec.env) if name.startswith(_FOR_IMPORTS)}
    beside = [env, list(cluster.mount), cluster.pod_patch, cluster.run_as]
    extra = json.dumps(beside) if any(beside) else ""
    runtime = f"of the runtime {cluster.runtime or 'by default'}"
    where = f"{extra}\n{cluster.namespace or ''}"  # a namespace may have a runtime of its own
    return [
        JobImage(cluster.context or "", image, extra)
        if image
        else JobImage(cluster.context or "", runtime, where)
        for image in spec.images
    ]


def _container(
    sub: Submission, name: str, replica: Replica, env: Mapping[str, Any], port: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    cluster = sub.spec.cluster
    amounts = resources(cluster, replica)
    shm = shared_memory(sub.spec, amounts.get("limits", {}))
    # The claims that data lies in; ranks may only read them
    places = sub.spec.data
    claims = {name: place for name, text in places.items() if (place := where(text)).scheme == "pvc"}
    data = [
        _volume(
            f"data-{i}",
            {"persistentVolumeClaim": {"claimName": place.claim, "readOnly": True}},
            f"{CLAIMS}/{name}",
            readonly=True,
        )
        for i, (name, place) in enumerate(claims.items())
    ]
    # The volume of the Secret that exists once the job's code was swapped
    swaps_name = package.swaps_name(sub.spec, sub.info)
    source = {"secret": {"secretName": swaps_name, "optional": True}}
    swaps = [_volume("swaps", source, SWAPS, readonly=True)] if swaps_name else []
    volumes = [
        payload(sub.secrets),
        *swaps,
        *([shared_memory_mount(shm)] if shm else []),
        *mount_volumes(cluster.mounts),
        *data,
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
        "securityContext": of_container(privileged=privileged(cluster.mounts)),
    }
    return {key: value for key, value in container.items() if value}, [volume.volume for volume in volumes]


def _env(sub: Submission, env: Mapping[str, Any]) -> list[dict[str, Any]]:
    storage = sub.spec.cluster.storage
    # A pod patch has the last word, also if it removes the job's own setting.
    period = (sub.spec.cluster.patch.get("spec") or {}).get("terminationGracePeriodSeconds", sub.spec.grace)
    grace = _KUBERNETES_GRACE_S if period is None else period
    variables = {
        "NBTORCHJOB_STORAGE": stores.folder(storage, sub.info) if storage else "",
        "NBTORCHJOB_CHECKPOINTS": stores.checkpoints(sub.spec, sub.info),
        injected.SWAPS: SWAPS if package.swaps_name(sub.spec, sub.info) else "",
        injected.UNSEEN: "1" if sub.spec.fresh and sub.runtime is not None else "",
        injected.ATTEMPT: str(sub.attempt) if sub.retried_by_us else "",
        injected.GRACE: str(injected.of_grace(grace)) if isinstance(grace, int) and grace != GRACE_S else "",
        injected.JOB: sub.info.name,
        injected.RUN: sub.info.run,
        GIVEN: sub.info.variant,
    }
    return [
        # Kubernetes replaces $(NAME), and $$ by $; a value is meant literally.
        {"name": name, **(value if isinstance(value, Mapping) else {"value": value.replace("$", "$$")})}
        for name, value in {
            **home(sub.spec.cluster.user),
            **sub.spec.env,
            **{
                name: {"valueFrom": {"secretKeyRef": {"name": sub.secrets[0], "key": package.env_key(name)}}}
                for name in sub.spec.secret_env
            },
            **_OURS,
            **{key: value for key, value in variables.items() if value},
            **env,
        }.items()
    ]


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def selector(sub: Submission) -> dict[str, str]:
    """Return the labels that hosts must have."""
    cluster = sub.spec.cluster
    return {**cluster.node_selector, **(cluster.spot_selector if _spot(sub) else {})}


def tolerations(sub: Submission) -> list[dict[str, str]]:
    """Return the pods' tolerations."""
    cluster = sub.spec.cluster
    spot = cluster.spot_toleration if _spot(sub) else ()
    return [toleration(text) for text in dict.fromkeys((*cluster.toleration, *spot))]


def elsewhere(template: dict[str, Any], sub: Submission) -> dict[str, Any]:
    """Return a pod template, kept off preemptible hosts where ``on_demand`` requires it.

    Applied after the user's patch: the terms of an affinity are alternatives, so each must exclude them.
    """
    cluster = sub.spec.cluster
    if not (sub.on_demand and cluster.preemptible and cluster.spot_selector):
        return template
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    without: list[dict[str, Any]] = []
    # NotIn also matches hosts without the label.
    others = [
        {"key": key, "operator": "NotIn", "values": [value]} for key, value in cluster.spot_selector.items()
    ]
    for term in terms:
        without.append({**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *others]})
    required = {"nodeSelectorTerms": without}
    return {
        **template,
        "spec": {**spec, "affinity": {**affinity, "nodeAffinity": {**node, _REQUIRED: required}}},
    }


def _spot(sub: Submission) -> bool:
    return sub.spec.cluster.preemptible and not sub.on_demand


_PROFILE = {"seccompProfile": {"type": "RuntimeDefault"}}
_CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def of_pod(user: User | None) -> dict[str, Any]:
    """Return the pod's ``securityContext``; its volumes are readable and writable for the user's group."""
    if user is None:
        return dict(_PROFILE)
    ids = {"runAsUser": user.uid, "runAsGroup": user.gid, "fsGroup": user.gid}
    return {"runAsNonRoot": True, **ids, **_PROFILE}


def of_container(*, privileged: bool) -> dict[str, Any]:
    """Return the container's ``securityContext``."""
    return {"privileged": True} if privileged else dict(_CONFINED)


def home(user: User | None) -> dict[str, str]:
    """Return the variables with a home and a name for a user id that the image doesn't know.

    Else its home is /, where it may not write, and ``getpass.getuser`` fails, which torch.compile calls.
    """
    return {"HOME": "/tmp", "USER": str(user.uid)} if user else {}


def consistent(template: dict[str, Any], container: str) -> dict[str, Any]:
    """Return a patched template without default settings that contradict its patch.

    The API server refuses a container that may not gain privileges but has them (1.36).
    """
    spec = template["spec"]
    containers = [_free(part) if part["name"] == container else part for part in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers}}


def _free(container: Mapping[str, Any]) -> dict[str, Any]:
    context = container.get("securityContext") or {}
    added = (context.get("capabilities") or {}).get("add") or ()
    if not context.get("privileged") and not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & {*added}:
        return dict(container)
    rest = {key: value for key, value in context.items() if key != "allowPrivilegeEscalation"}
    return {**container, "securityContext": rest}


_KEYS = {"volumeMounts": "mountPath"}


def patched(template: Mapping[str, Any], patch: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return the template with the patch laid over it; ``container`` is the job's own."""
    spec = patch.get("spec") or {}
    if not isinstance(spec.get("containers"), list):
        named = dict(patch)
    else:
        containers = [{"name": container, **entry} for entry in spec["containers"]]
        named = {**patch, "spec": {**spec, "containers": containers}}
    return _merged(template, named)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in old.items() if new.get(key, value) is not None}
    for key, value in new.items():
        if value is not None:
            merged[key] = _value(key, old.get(key), value)
    return merged


def _value(key: str, old: Any, new: Any) -> Any:
    if isinstance(new, Mapping):
        return _merged(old if isinstance(old, Mapping) else {}, new)
    lists = isinstance(old, list) and isinstance(new, list)
    if not lists or not all(isinstance(entry, Mapping) for entry in (*old, *new)):
        return new
    name = _KEYS.get(key, "name")
    merged = list(old)
    at = {entry[name]: i for i, entry in enumerate(old) if name in entry}
    for entry in new:
        index = at.get(entry.get(name))
        if index is None:
            merged.append(_merged({}, entry))
        else:
            merged[index] = _merged(merged[index], entry)
    return merged


Replica: TypeAlias = Master | Worker

# What a host reserves for itself (torchx 0.7: reserved_millicpu, reserved_memmb), with the unit of the rest:
# a request for all of a machine's resources would fit on no host.
_HOSTS_OWN = {"cpu": (0.1, 1e-3, "m"), "memory": (1024e6, 1e6, "M")}


def replicas(spec: JobSpec) -> tuple[Replica, ...]:
    """Return each role's own settings: all nodes alike, or a master and its workers."""
    launch = spec.launch
    if isinstance(launch, Elastic):
        return (Worker(),)
    return (launch.master, launch.worker) if launch.worker.replicas else (launch.master,)


def resources(cluster: Cluster, replica: Replica) -> dict[str, dict[str, str]]:
    """Return the container's ``resources``. Raises ``SpecError`` for a request above its limit."""
    if replica.limits is None:
        named = {
            "cpu": cluster.cpu,
            "memory": cluster.memory,
            cluster.gpu_resource: str(cluster.gpu) if cluster.gpu else None,
        }
        limits = {**{name: text for name, text in named.items() if text}, **cluster.device, **cluster.limit}
    else:
        limits = dict(replica.limits)
    if replica.requests is not None:
        requests = dict(replica.requests)
    else:
        requests = dict(limits)
        for name, (own, unit, suffix) in _HOSTS_OWN.items():
            if name in limits and not cluster.full_requests:
                limit = amount(limits[name])
                # Never below half: TorchX drops a request that isn't above 0, and the API takes the limit.
                requests[name] = f"{max(1, int(max(limit - own, limit / 2) / unit + 1e-6))}{suffix}"
        requests |= cluster.request
    for name in limits.keys() & requests.keys():
        if amount(requests[name]) > amount(limits[name]):
            raise SpecError("request", f"{name}={requests[name]}", f"at most its limit of {limits[name]}")
    return {kind: amounts for kind, amounts in (("limits", limits), ("requests", requests)) if amounts}


def shared_memory(spec: JobSpec, limits: Mapping[str, str]) -> str | None:
    """Return the size of ``/dev/shm``; None leaves the container runtime's 64 MB.

    NCCL and DataLoader's processes exchange data there, and die of a bus error when it is full. So a job
    of several ranks gets more by default: half of the pod's memory, as on any Linux machine, or 1 GiB per
    rank if memory has no limit. Its content counts as the pod's memory.
    """
    size, launch = spec.cluster.shm, spec.launch
    if size is not None or not spec.own_shared_memory:
        return size if spec.own_shared_memory else None
    if "memory" in limits:
        return f"{int(amount(limits['memory'])) // 2 // 2**20}Mi"
    return f"{launch.nproc_per_node}Gi"
