"""How a job is launched and run: frozen, validated when made, and pure.

The names and defaults are those of Flyte's PyTorch plugin (flytekitplugins-kfpytorch 1.16), and the order
is that of its ``Elastic``, so its configs work unchanged, with flytekit's ``Resources`` in them. Every
invalid value raises a ``SpecError`` that names the field.

``--data NAME=WHERE`` is here, too: the kinds of places that data may come from, and how each is written.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qs, urlsplit

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.runtime.facts.secret import has_password
from nbtorchjob.spec import (
    Frozen,
    address,
    brief,
    digits,
    instance,
    member_or_none,
    one_of,
    seconds,
    setting,
    whole,
    whole_or_none,
)
from nbtorchjob.spec.cluster import grammars
from nbtorchjob.spec.cluster.grammars import quantities
from nbtorchjob.spec.policies import RestartPolicy, RunPolicy

START_METHODS = ("spawn", "fork", "forkserver")


class Unsaid:
    """A default that the user didn't choose: in a pool it stands for the pool's value."""


class UnsaidNumber(Unsaid, int):
    """Such a number of nodes."""


class UnsaidRange(Unsaid, str):
    """Such an elastic range of nodes."""


@dataclass(frozen=True)
class Elastic:
    """Nodes as ``torchrun`` starts them.

    ``nnodes`` is a number, or ``"MIN:MAX"`` for a job that continues with fewer nodes; if both are equal,
    it becomes an int. For a job in a pool it is the number of the pool's nodes to use, by default all of
    them. ``monitor_interval`` is in seconds, and ``rdzv_configs`` corresponds to torchrun's
    ``--rdzv-conf``. ``increase_shared_mem`` is deprecated.
    """

    nnodes: int | str = setting("--nnodes N|MIN:MAX", "number of nodes, or an elastic range", UnsaidNumber(1))
    nproc_per_node: int = setting("--nproc-per-node N", "ranks per node", 1, takes="int")
    start_method: str = setting(
        "--start-method HOW", "start method of a node's ranks", "spawn", choices=START_METHODS
    )
    monitor_interval: float = setting(
        "--monitor-interval S", "interval between checks of a node's ranks", 5, takes="number", unit="seconds"
    )
    max_restarts: int = setting("--max-restarts N", "maximum restarts of all ranks", 0, takes="int")
    rdzv_configs: Mapping[str, Any] = field(
        default_factory=lambda: Frozen({"timeout": 900, "join_timeout": 900})
    )
    increase_shared_mem: bool | None = None
    run_policy: RunPolicy | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        fewest, most = _node_range(self.nnodes)
        if not isinstance(self.nnodes, Unsaid):
            object.__setattr__(self, "nnodes", fewest if fewest == most else f"{fewest}:{most}")
        ranks = digits(self.nproc_per_node) if isinstance(self.nproc_per_node, str) else self.nproc_per_node
        if ranks is None:
            allowed = "a whole number, 1 or more; 'auto', 'gpu' and 'cpu' are for magics and the command line"
            raise SpecError("nproc_per_node", self.nproc_per_node, allowed)
        object.__setattr__(self, "nproc_per_node", whole("nproc_per_node", ranks, 1))
        one_of("start_method", self.start_method, START_METHODS)
        seconds("monitor_interval", self.monitor_interval)
        whole("max_restarts", self.max_restarts, 0)
        if not isinstance(self.rdzv_configs, Mapping):
            raise SpecError("rdzv_configs", self.rdzv_configs, "a mapping of names to values")
        for name, item in self.rdzv_configs.items():
            # They travel as JSON.
            if not isinstance(name, str) or not isinstance(item, str | int | float):
                raise SpecError(
                    "rdzv_configs", {name: item}, "a mapping of names to texts, numbers, True or False"
                )
        object.__setattr__(self, "rdzv_configs", Frozen(self.rdzv_configs))
        _check_common(self.run_policy, self.increase_shared_mem)

    @property
    def min_nodes(self) -> int:
        """The fewest nodes that the job starts and continues with."""
        return _node_range(self.nnodes)[0]

    @property
    def max_nodes(self) -> int:
        """The most nodes that take part."""
        return _node_range(self.nnodes)[1]

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min_nodes != self.max_nodes


@dataclass(frozen=True)
class Master:
    """The master pod's own settings; None means the job's. ``restart_policy`` may be text."""

    image: str | None = None
    requests: Mapping[str, str] | None = None
    limits: Mapping[str, str] | None = None
    restart_policy: RestartPolicy | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        _check_replica(self)


@dataclass(frozen=True)
class Worker:
    """The number of workers besides the master, and their pods' own settings."""

    replicas: int | None = setting(
        "--worker-replicas N", "number of one-rank workers, instead of --nnodes", takes="int"
    )
    image: str | None = None
    requests: Mapping[str, str] | None = None
    limits: Mapping[str, str] | None = None
    restart_policy: RestartPolicy | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        whole_or_none("replicas", self.replicas, 0)
        _check_replica(self)


@dataclass(frozen=True)
class PyTorch:
    """One master and ``worker.replicas`` workers, one rank each; 0 workers mean only a master.

    ``num_workers`` and ``increase_shared_mem`` are deprecated. Raises ``SpecError`` where neither
    or both of ``worker.replicas`` and ``num_workers`` are given, as the plugin does.
    """

    master: Master = field(default_factory=Master)
    worker: Worker = field(default_factory=Worker)
    run_policy: RunPolicy | None = None
    num_workers: InitVar[int | None] = None
    increase_shared_mem: bool | None = None

    __repr__ = brief

    def __post_init__(self, num_workers: int | None) -> None:
        instance(Master, "master", self.master)
        instance(Worker, "worker", self.worker)
        if num_workers is not None:
            whole("num_workers", num_workers, 0)
            note = "num_workers is deprecated: use PyTorch(worker=Worker(replicas=N))"
            warnings.warn(note, DeprecationWarning, stacklevel=3)  # the line that makes the config
            if self.worker.replicas is not None and (self.worker.replicas or num_workers):
                others = f"with worker.replicas={self.worker.replicas}"
                raise SpecError("num_workers", num_workers, others, Shape.CONFLICT)
            object.__setattr__(self, "worker", replace(self.worker, replicas=num_workers))
        if self.worker.replicas is None:
            raise SpecError("replicas", None, "PyTorch(worker=Worker(replicas=N))", Shape.MISSING)
        _check_common(self.run_policy, self.increase_shared_mem)

    @property
    def min_nodes(self) -> int:
        """The master and its workers: the job needs all of them."""
        return 1 + (self.worker.replicas or 0)

    @property
    def max_nodes(self) -> int:
        """The same as ``min_nodes``."""
        return self.min_nodes

    @property
    def nproc_per_node(self) -> int:
        """One rank per node."""
        return 1

    @property
    def max_restarts(self) -> int:
        """0: torch doesn't restart the ranks of such a job."""
        return 0

    @property
    def elastic(self) -> bool:
        """False: its size is fixed."""
        return False


Launch: TypeAlias = Elastic | PyTorch


def _node_range(value: object) -> tuple[int, int]:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    fewest, colon, most = text.partition(":")
    low, high = digits(fewest), digits(most if colon else fewest)
    if low is not None and high is not None and 1 <= low <= high:
        return low, high
    raise SpecError("nnodes", value, "a whole number, 1 or more, or 'MIN:MAX' with MIN no more than MAX")


def _check_replica(replica: Master | Worker) -> None:
    if replica.image is not None:
        grammars.image("image", replica.image)
    for name in ("requests", "limits"):
        amounts = getattr(replica, name)
        object.__setattr__(replica, name, None if amounts is None else quantities(name, amounts))
    policy = member_or_none("restart_policy", replica.restart_policy, RestartPolicy)
    object.__setattr__(replica, "restart_policy", policy)


def _check_common(run_policy: object, increase_shared_mem: object) -> None:
    if run_policy is not None:
        instance(RunPolicy, "run_policy", run_policy)
    if increase_shared_mem is not None:
        instance(bool, "increase_shared_mem", increase_shared_mem)
        note = (
            "increase_shared_mem is deprecated: use shm on a cluster "
            "(on the local backend all nodes share this machine's memory)"
        )
        # Past this function, __post_init__ and __init__, to the line that makes the config.
        warnings.warn(note, DeprecationWarning, stacklevel=4)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_STORES = ("s3", "gs", "gcs", "az", "abfs")
_SCHEMES = ("hf", *_STORES, "https", "http", "pvc")
_FORMS = "hf://datasets/ORG/NAME, hf://ORG/MODEL, s3://…, gs://…, https://…, pvc://CLAIM/PATH or ./FOLDER"
_QUERIES = (
    "a place with no query but ?include=… and ?exclude=…, of the Hub or a store; a revision goes behind the "
    "name: hf://ORG/NAME@REVISION"
)
CLAIMS = "/nbtorchjob-data"  # in a pod, where claims with data are mounted


class Where(NamedTuple):
    """A place that data comes from: ``scheme`` is "" for a path on this machine."""

    scheme: str
    text: str

    @property
    def claim(self) -> str:
        """The claim of ``pvc://CLAIM/PATH``."""
        return urlsplit(self.text).netloc

    def mounted(self, name: str) -> str:
        """Return the path of its data in a pod."""
        return f"{CLAIMS}/{name}{urlsplit(self.text).path}".rstrip("/")


def where(text: str) -> Where:
    """Return the place that a valid text names."""
    scheme = urlsplit(text).scheme if "://" in text else ""
    return Where(scheme, text)


def _check_host(parts: SplitResult, text: str) -> None:
    """Raise ``SpecError`` if a web page's host, or its port, can't be one."""
    try:
        host = (parts.hostname or "").encode("idna") if parts.port != 0 else b""
    except ValueError:  # a port that is no number, or a label that is too long
        host = b""
    if not host or " " in parts.netloc or parts.username is not None:
        raise SpecError("data", text, "https://HOST/FILE or https://HOST:PORT/FILE, without a user's name")


def places(value: object) -> Frozen[str]:
    """Return places by the names of their data; raises ``SpecError``."""
    if not isinstance(value, Mapping):
        raise SpecError("data", value, "a mapping of names to places")
    for name, text in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError("data", name, "NAME=WHERE, with a name of letters, digits, '-', '_' and '.'")
        if not isinstance(text, str) or not text or not text.isprintable():
            raise SpecError("data", text, _FORMS)
        if "://" in text:
            parts = address("data", text, _FORMS)
            if parts.scheme not in _SCHEMES or not parts.netloc:
                raise SpecError("data", text, _FORMS)
            if has_password(text) or parts.password:
                raise SpecError(
                    "data", text.replace(parts.password or text, "…"), "a place without a password in it"
                )
            words = [*filter(None, (parts.netloc + parts.path).split("/"))]
            if ".." in words:
                raise SpecError("data", text, "a place without '..'")
            if parts.scheme == "pvc" and not _CLAIM.fullmatch(parts.netloc):
                raise SpecError("data", text, "pvc://CLAIM/PATH, with the name of a PersistentVolumeClaim")
            if parts.scheme in ("http", "https"):
                _check_host(parts, text)
            else:
                unknown = set(parse_qs(parts.query, keep_blank_values=True))
                if parts.scheme != "pvc":
                    unknown -= {"include", "exclude"}
                if unknown or (parts.fragment and parts.scheme in ("hf", "pvc")):
                    raise SpecError("data", text, _QUERIES)
            if parts.scheme == "hf" and words[0] in ("datasets", "models", "spaces") and len(words) < 2:
                raise SpecError("data", text, f"hf://{words[0]}/ORG/NAME")
    return Frozen({name: os.fspath(text) for name, text in value.items()})
