"""What a job requests of a cluster: ``Cluster``, whose fields are the options of the group of that name.

Some have small grammars of their own (``grammars``).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec import address, brief, one_of, sequence, setting, switch, whole
from nbtorchjob.spec.cluster import grammars
from nbtorchjob.spec.cluster.grammars import (
    Mount,
    User,
    mounts,
    parse_mounts,
    parse_user,
    patch,
    quantities,
    quantity,
    resource,
    tolerations,
    user,
)

# The folders of ``backends/kubernetes/kinds``, most capable first. This is the only list of them: options are
# made from it and may not import a backend; ``kinds`` follows it.
KINDS = ("pytorchjob", "trainjob", "volcano", "indexedjob")


def _matching(pattern: str, allowed: str) -> Callable[[str, object], str]:
    """Return the check that a value is text that matches ``pattern``."""

    def check(name: str, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise SpecError(name, value, allowed)

    return check


_word = _matching(r"\S+", "a text without spaces")
_path = _matching(r"/[^\s]+", "an absolute path below a mount")
_LOCATION = "a URL such as s3://bucket/jobs, or an absolute path of a mount"


def _location(name: str, value: object) -> str:
    text = _matching(r"(/|[a-z][a-z0-9+.-]*://)[^\s]+", _LOCATION)(name, value)
    address(name, text, _LOCATION)
    return text


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a job requests of Kubernetes. Invalid values raise ``SpecError``.

    Without ``kind`` nbtorchjob chooses the most capable kind that the cluster serves. Amounts are
    Kubernetes quantities (``500m``, ``8Gi``) or numbers. ``cpu``, ``memory``, ``gpu`` and ``device`` are
    limits of each node; requests are equal to them, except that cpu and memory leave a reserve for the
    host, as in TorchX, unless ``full_requests`` is set. ``limit`` and ``request`` set any resource by name.
    ``mount`` uses TorchX's grammar, and ``toleration`` kubectl's for taints. ``spot_selector`` and
    ``spot_toleration`` define which hosts are ``preemptible``; they belong in a profile. ``checkpoints`` is
    a path in the pods or a URL; each job has its own folder there. ``data_cache`` is a path in the pods below
    a mount, shared by the jobs that name it; without it data lies on the pod's own disk. ``run_as`` is a user
    other than root, and the group of the volumes, by default with the same number. ``pod_patch`` is merged
    into the pod's ``metadata`` and ``spec`` last.
    """

    kind: str | None = setting(
        "--kind KIND", "the kind of cluster job", choices=KINDS, check=partial(one_of, allowed=KINDS)
    )
    context: str | None = setting(
        "--context NAME", "the kubeconfig context; the current one by default", check=_word
    )
    namespace: str | None = setting(
        "--namespace NAME", "the namespace; the context's by default", check=grammars.label
    )
    image: str | None = setting(
        "--image IMAGE", "the container image, with Python and torch", check=grammars.image
    )
    cpu: str | None = setting("--cpu N", "CPU cores per node", check=quantity)
    memory: str | None = setting("--memory BYTES", "memory per node", check=quantity)
    gpu: int | None = setting("--gpu N", "GPUs per node", takes="int", check=partial(whole, at_least=0))
    gpu_resource: str = setting(
        "--gpu-resource NAME", "the resource name of a GPU", "nvidia.com/gpu", check=resource
    )
    device: Mapping[str, str] = setting(
        "--device NAME=N", "other devices per node, such as rdma/hca=1", takes="pairs", check=quantities
    )
    limit: Mapping[str, str] = setting(
        "--limit NAME=AMOUNT", "a resource limit per node", takes="pairs", check=quantities
    )
    request: Mapping[str, str] = setting(
        "--request NAME=AMOUNT", "a resource request per node", takes="pairs", check=quantities
    )
    full_requests: bool = setting(
        "--full-requests", "request all CPU and memory, without host reserve", check=switch
    )
    shm: str | None = setting(
        "--shm BYTES",
        "shared memory per node; 0: the container's default",
        check=lambda name, value: "0" if str(value) == "0" else quantity(name, value),
    )
    queue: str | None = setting("--queue NAME", "the Volcano or Kueue queue", check=grammars.subdomain)
    priority_class: str | None = setting(
        "--priority-class NAME", "the pods' PriorityClass", check=grammars.subdomain
    )
    workload_priority: str | None = setting(
        "--workload-priority NAME", "the WorkloadPriorityClass in a Kueue queue", check=grammars.subdomain
    )
    service_account: str | None = setting(
        "--service-account NAME", "the pods' service account", check=grammars.subdomain
    )
    run_as: str | None = setting("--run-as UID[:GID]", "the pods' user; the image's by default", check=user)
    image_pull_secret: Sequence[str] = setting(
        "--image-pull-secret NAME", "a Secret for pulling the image", takes="texts", check=grammars.subdomains
    )
    env_from: Sequence[str] = setting(
        "--env-from secret/NAME", "a Secret of environment variables", takes="texts", check=grammars.secrets
    )
    node_selector: Mapping[str, str] = setting(
        "--node-selector K=V", "a label that hosts must have", takes="pairs", check=grammars.selector
    )
    toleration: Sequence[str] = setting(
        "--toleration K[=V][:EFFECT]", "a taint to tolerate", takes="texts", check=tolerations
    )
    preemptible: bool = setting("--preemptible", "run on hosts that may be preempted", check=switch)
    spot_selector: Mapping[str, str] = setting(
        "--spot-selector K=V", "a label that preemptible hosts have", takes="pairs", check=grammars.selector
    )
    spot_toleration: Sequence[str] = setting(
        "--spot-toleration K[=V][:EFFECT]",
        "a taint that preemptible hosts have",
        takes="texts",
        check=tolerations,
    )
    label: Mapping[str, str] = setting(
        "--label K=V", "a label for the job and its pods", takes="pairs", check=grammars.user_labels
    )
    annotation: Mapping[str, str] = setting(
        "--annotation K=V",
        "an annotation for the job and its pods",
        takes="pairs",
        check=grammars.user_annotations,
    )
    mount: Sequence[str] = setting(
        "--mount SPEC", "a mount: type=bind|volume|device,src=…,dst=…[,readonly]", takes="texts", check=mounts
    )
    storage: str | None = setting(
        "--storage URL", "where to store large payloads and values", check=_location
    )
    checkpoints: str | None = setting(
        "--checkpoints PATH|URL", "where to save checkpoints: mounted path or URL", check=_location
    )
    data_cache: str | None = setting(
        "--data-cache PATH", "where nodes keep fetched data: a mounted path", check=_path
    )
    pod_patch: str | None = setting("--pod-patch YAML", "a patch for each pod: YAML or file", check=patch)
    network_policy: bool = setting(
        "--network-policy", "allow traffic only between pods of the job", check=switch
    )
    runtime: str | None = setting(
        "--runtime NAME", "the TrainJob's runtime; torch-distributed by default", check=grammars.subdomain
    )

    __repr__ = brief

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata["option"].takes == "texts":
                value = sequence(f.name, value)
            if value is not None or f.default is not None:
                object.__setattr__(self, f.name, f.metadata["check"](f.name, value))
        if self.preemptible and not (self.spot_selector or self.spot_toleration):
            needed = "without spot-selector or spot-toleration in the profile, which define those hosts"
            raise SpecError("preemptible", True, needed, Shape.CONFLICT)
        both = sorted(self.spot_selector.keys() & self.node_selector.keys())
        if both:
            # An attempt that mustn't be preempted stays off hosts with that label.
            raise SpecError("spot_selector", both[0], "a label that node_selector doesn't use")
        for name in ("checkpoints", "data_cache"):
            path = getattr(self, name) or ""
            if (path.startswith("/") or name == "data_cache") and path and self.mount_of(path) is None:
                folders = [mount.dst for mount in self._writable]
                allowed = f"below the dst of a writable --mount ({', '.join(folders) or 'there is none'})"
                raise SpecError(name, path, allowed)

    @property
    def _writable(self) -> list[Mount]:
        return [mount for mount in self.mounts if mount.type != "device" and not mount.readonly]

    def mount_of(self, path: str) -> Mount | None:
        """Return the writable mount that a path of the pods lies in."""
        inner = f"{posixpath.normpath(path)}/"
        return next((mount for mount in self._writable if inner.startswith(f"{mount.dst}/")), None)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """``mount``, parsed."""
        return parse_mounts(self.mount)

    @property
    def variable_secrets(self) -> tuple[str, ...]:
        """The names of the Secrets of ``env_from``."""
        return tuple(source.partition("/")[2] for source in self.env_from)

    @property
    def user(self) -> User | None:
        """``run_as``, parsed."""
        return parse_user(self.run_as) if self.run_as else None

    @property
    def patch(self) -> dict[str, Any]:
        """``pod_patch``, parsed."""
        parsed: dict[str, Any] = json.loads(self.pod_patch or "{}")
        return parsed


def changed_fields(cluster: Cluster) -> list[str]:
    """Return the names of the fields that differ from their defaults."""
    default = Cluster()
    return [f.name for f in fields(cluster) if getattr(cluster, f.name) != getattr(default, f.name)]
