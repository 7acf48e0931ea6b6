"""``Cluster``: what a job requests of Kubernetes; its fields are the options of the group of that name."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec.cluster import names
from nbtorchjob.spec.cluster.grammars import User, patch, quantities, quantity, resource, tolerations, user
from nbtorchjob.spec.cluster.grammars import parse as parse_user
from nbtorchjob.spec.cluster.mounts import Mount, mounts, parse
from nbtorchjob.spec.validation import Frozen, Takes, one_of, option, sequence, switch, whole

# The folders of ``backends/kubernetes/kinds``, best first: those that can do more come earlier. The only list
# of them is here, as options are made from it and may import no backend; ``kinds`` follows it.
KINDS = ("pytorchjob", "trainjob", "volcano", "indexedjob")


def _kind(name: str, value: object) -> str:
    return one_of(name, value, KINDS)


def _text(name: str, value: object) -> str:
    if isinstance(value, str) and value and not re.search(r"\s", value):
        return value
    raise SpecError(name, value, "a text without spaces")


def _count(name: str, value: object) -> int:
    return whole(name, value, 0)


def _location(name: str, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"(/|[a-z][a-z0-9+.-]*://)[^\s]+", value):
        return value
    raise SpecError(name, value, "a URL such as s3://bucket/jobs, or an absolute path that pods have mounted")


def _shm(name: str, value: object) -> str:
    return "0" if str(value) == "0" else quantity(name, value)


_EMPTY: dict[Takes, Any] = {"pairs": Frozen[str], "texts": tuple, "switch": bool}


def _setting(
    flag: str,
    check: Callable[[str, Any], Any],
    help: str,
    metavar: str = "",
    /,
    takes: Takes = "text",
    **more: Any,
) -> Any:
    """Declare a field, its option and its check; without a ``default`` it is None, or empty."""
    default = more.pop("default", None)
    metadata = {**option(flag, help=help, metavar=metavar, takes=takes, **more), "check": check}
    if takes in _EMPTY:
        return field(default_factory=_EMPTY[takes], metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a job requests of Kubernetes. Raises ``SpecError``.

    Without ``kind`` the best kind is chosen that the cluster serves and that can do the job. Amounts are
    Kubernetes quantities (``500m``, ``8Gi``) or numbers. ``cpu``, ``memory``, ``gpu`` and ``device`` are
    limits of each node; requests are the same, except for cpu and memory, from which the host's reserve is
    deducted, as TorchX does, unless ``full_requests``. ``limit`` and ``request`` set any resource by name.
    ``mount`` is in TorchX's grammar, ``toleration`` in kubectl's for taints. ``spot_selector`` and
    ``spot_toleration`` define which hosts are ``preemptible``; they belong in a profile. ``checkpoints`` is
    a path in the pods or a URL; each job has a folder of its own there. ``run_as`` is a user other than
    root, and the group of the volumes, by default of the same number. ``pod_patch`` is laid over the pod's
    ``metadata`` and ``spec`` last of all.
    """

    kind: str | None = _setting("--kind", _kind, "the kind of cluster job", "KIND", choices=KINDS)
    context: str | None = _setting(
        "--context", _text, "the kubeconfig context; the current one by default", "NAME"
    )
    namespace: str | None = _setting(
        "--namespace", names.label, "the namespace; the context's by default", "NAME"
    )
    image: str | None = _setting(
        "--image", names.image, "the container image, with Python and torch", "IMAGE"
    )
    cpu: str | None = _setting("--cpu", quantity, "CPU cores per node", "N")
    memory: str | None = _setting("--memory", quantity, "memory per node", "BYTES")
    gpu: int | None = _setting("--gpu", _count, "GPUs per node", "N", takes="int")
    gpu_resource: str = _setting(
        "--gpu-resource", resource, "the resource name of a GPU", "NAME", default="nvidia.com/gpu"
    )
    device: Mapping[str, str] = _setting(
        "--device", quantities, "other devices per node, such as rdma/hca=1", "NAME=N", takes="pairs"
    )
    limit: Mapping[str, str] = _setting(
        "--limit", quantities, "a resource limit per node", "NAME=AMOUNT", takes="pairs"
    )
    request: Mapping[str, str] = _setting(
        "--request",
        quantities,
        "a resource request per node",
        "NAME=AMOUNT",
        takes="pairs",
    )
    full_requests: bool = _setting(
        "--full-requests", switch, "request all CPU and memory, with no reserve for the host", takes="switch"
    )
    shm: str | None = _setting(
        "--shm", _shm, "shared memory per node; 0 for the container's default", "BYTES"
    )
    queue: str | None = _setting("--queue", names.subdomain, "the Volcano or Kueue queue", "NAME")
    priority_class: str | None = _setting(
        "--priority-class", names.subdomain, "the pods' PriorityClass", "NAME"
    )
    workload_priority: str | None = _setting(
        "--workload-priority", names.subdomain, "the WorkloadPriorityClass in a Kueue queue", "NAME"
    )
    service_account: str | None = _setting(
        "--service-account", names.subdomain, "the pods' service account", "NAME"
    )
    run_as: str | None = _setting(
        "--run-as", user, "the user to run pods as; the image's user by default", "UID[:GID]"
    )
    image_pull_secret: Sequence[str] = _setting(
        "--image-pull-secret", names.subdomains, "a Secret for pulling the image", "NAME", takes="texts"
    )
    env_from: Sequence[str] = _setting(
        "--env-from",
        names.secrets,
        "a Secret whose keys become variables",
        "secret/NAME",
        takes="texts",
    )
    node_selector: Mapping[str, str] = _setting(
        "--node-selector", names.selector, "a label that hosts must have", "K=V", takes="pairs"
    )
    toleration: Sequence[str] = _setting(
        "--toleration", tolerations, "a taint to tolerate", "K[=V][:EFFECT]", takes="texts"
    )
    preemptible: bool = _setting(
        "--preemptible", switch, "run on hosts that may be taken away at any time", takes="switch"
    )
    spot_selector: Mapping[str, str] = _setting(
        "--spot-selector", names.selector, "a label that preemptible hosts have", "K=V", takes="pairs"
    )
    spot_toleration: Sequence[str] = _setting(
        "--spot-toleration",
        tolerations,
        "a taint that preemptible hosts have",
        "K[=V][:EFFECT]",
        takes="texts",
    )
    label: Mapping[str, str] = _setting(
        "--label", names.user_labels, "a label for the job and its pods", "K=V", takes="pairs"
    )
    annotation: Mapping[str, str] = _setting(
        "--annotation", names.user_annotations, "an annotation for the job and its pods", "K=V", takes="pairs"
    )
    mount: Sequence[str] = _setting(
        "--mount", mounts, "a mount: type=bind|volume|device,src=…,dst=…[,readonly]", "SPEC", takes="texts"
    )
    storage: str | None = _setting(
        "--storage", _location, "where to put payloads and values that are too big for the API", "URL"
    )
    checkpoints: str | None = _setting(
        "--checkpoints",
        _location,
        "where to save checkpoints: a path below a mount, or a store",
        "PATH|URL",
    )
    pod_patch: str | None = _setting(
        "--pod-patch", patch, "a patch for each pod's metadata and spec; YAML or a file of it", "YAML"
    )
    network_policy: bool = _setting(
        "--network-policy", switch, "allow traffic to the pods only from pods of the same job", takes="switch"
    )
    runtime: str | None = _setting(
        "--runtime", names.subdomain, "the TrainJob's runtime; torch-distributed by default", "NAME"
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata["option"].takes == "texts":
                value = sequence(f.name, value)
            if value is not None or f.default is not None:
                object.__setattr__(self, f.name, f.metadata["check"](f.name, value))
        self._check_spot()
        self._check_checkpoints()

    def _check_spot(self) -> None:
        if self.preemptible and not (self.spot_selector or self.spot_toleration):
            needed = (
                "without spot-selector or spot-toleration in the profile: they say which hosts that means"
            )
            raise SpecError("preemptible", True, needed, Shape.CONFLICT)
        both = sorted(self.spot_selector.keys() & self.node_selector.keys())
        if both:
            # An attempt that mustn't be preempted stays off hosts with that label.
            raise SpecError("spot_selector", both[0], "another label than those of node_selector")

    def _check_checkpoints(self) -> None:
        checkpoints = self.checkpoints or ""
        folders = [mount.dst for mount in self.mounts if mount.type != "device" and not mount.readonly]
        if checkpoints.startswith("/") and not f"{posixpath.normpath(checkpoints)}/".startswith(
            tuple(f"{folder}/" for folder in folders)
        ):
            allowed = (
                f"below the dst of a --mount that can be written to ({', '.join(folders) or 'none is given'})"
            )
            raise SpecError("checkpoints", checkpoints, allowed)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """``mount``, parsed."""
        return parse(self.mount)

    @property
    def variable_secrets(self) -> tuple[str, ...]:
        """The names of the Secrets of ``env_from``."""
        return tuple(each.partition("/")[2] for each in self.env_from)

    @property
    def user(self) -> User | None:
        """``run_as``, parsed."""
        return parse_user(self.run_as) if self.run_as else None

    @property
    def patch(self) -> dict[str, Any]:
        """``pod_patch``, parsed."""
        found: dict[str, Any] = json.loads(self.pod_patch or "{}")
        return found


def given(cluster: Cluster) -> list[str]:
    """Return the names of the fields that differ from their defaults."""
    default = Cluster()
    return [f.name for f in fields(cluster) if getattr(cluster, f.name) != getattr(default, f.name)]
