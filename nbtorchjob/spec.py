"""``JobSpec``: how a job is launched, and where and as what it runs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from nbtorchjob.cluster import Cluster
from nbtorchjob.config import Elastic, Launch, Master, PyTorch, RunPolicy, Worker
from nbtorchjob.errors import SpecError
from nbtorchjob.fields import Frozen, instance, one_of, option, texts
from nbtorchjob.policies import Retry

T = TypeVar("T")

BACKENDS = ("local", "kubernetes")

# A DNS-1035 label. Of the 63 characters a label may have, the pods of every kind of cluster job
# leave 40 for the job's own name.
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class JobSpec:
    """All that is asked for when a job is submitted, but for what it runs. Raises ``SpecError``.

    ``env`` is laid over the environment that ranks have anyway. With ``all_ranks`` every rank's
    value comes back, else rank 0's; with ``carry_settings`` ranks are told what this process told torch.
    ``cluster`` is for the backend ``kubernetes`` only. Without ``retry`` a job is tried once, but for what
    its operator does by itself.
    """

    launch: Launch = field(default_factory=Elastic)
    backend: str = field(
        default="local",
        metadata=option("--backend", help="where the job runs", metavar="WHERE", choices=BACKENDS),
    )
    name: str | None = field(
        default=None,
        metadata=option("--name", help="the job's name; made up where it isn't given", metavar="NAME"),
    )
    env: Mapping[str, str] = field(
        default_factory=Frozen[str],
        metadata=option("--env", help="an environment variable of the ranks", kind="pairs", metavar="K=V"),
    )
    cluster: Cluster = field(default_factory=Cluster)
    retry: Retry | None = field(default=None, kw_only=True)
    all_ranks: bool = field(
        default=False,
        kw_only=True,
        metadata=option("--all-ranks", help="bring every rank's value back, as a list", kind="switch"),
    )

    carry_settings: bool = field(
        default=False,
        kw_only=True,
        metadata=option(
            "--carry-settings",
            help="have ranks' torch set up as the notebook's: dtype, device, determinism",
            kind="switch",
        ),
    )

    def __post_init__(self) -> None:
        if not isinstance(self.launch, Elastic | PyTorch):
            raise SpecError("launch", self.launch, "an Elastic or a PyTorch")
        one_of("backend", self.backend, BACKENDS)
        if self.name is not None and not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            allowed = "at most 40 of a-z, 0-9 and '-', with a letter first and no '-' last"
            raise SpecError("name", self.name, allowed)
        object.__setattr__(self, "env", _env(self.env))
        instance(Cluster, "cluster", self.cluster)
        instance(bool, "all_ranks", self.all_ranks)
        instance(bool, "carry_settings", self.carry_settings)
        if self.retry is not None:
            _check_retry(self.retry, self.launch)

    @classmethod
    def of(cls, spec: JobSpec | Launch | None) -> JobSpec:
        """Give the spec that ``spec`` stands for: a launch config alone will do, and None is the default."""
        if isinstance(spec, JobSpec):
            return spec
        return cls() if spec is None else cls(launch=spec)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data, for the job's record."""
        record: dict[str, Any] = _plain(self)
        record["launch"]["kind"] = type(self.launch).__name__
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> JobSpec:
        """Rebuild what :meth:`to_json` gave; fields it doesn't know or have are left out or default."""
        kind = {"Elastic": Elastic, "PyTorch": PyTorch}[record["launch"]["kind"]]
        with warnings.catch_warnings():
            # Who wrote the deprecated field was told then.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _build(cls, {**record, "launch": _build(kind, record["launch"])})


_NESTED: dict[str, type] = {
    "cluster": Cluster,
    "master": Master,
    "retry": Retry,
    "run_policy": RunPolicy,
    "worker": Worker,
}


def _build(kind: type[T], record: Mapping[str, Any]) -> T:
    given = {f.name: record[f.name] for f in fields(kind) if f.name in record}  # type: ignore[arg-type]
    for name in _NESTED.keys() & given.keys():
        if given[name] is not None:
            given[name] = _build(_NESTED[name], given[name])
    return kind(**given)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _check_retry(retry: object, launch: Launch) -> None:
    instance(Retry, "retry", retry)
    if launch.run_policy is not None and launch.run_policy.backoff_limit is not None:
        allowed = "left out beside retries and preemptions, which say it more exactly"
        raise SpecError("backoff_limit", launch.run_policy.backoff_limit, allowed)


def _env(value: object) -> Frozen[str]:
    env = texts("env", value)
    for name, text in env.items():
        if "=" in name or "\0" in name + text:
            raise SpecError("env", {name: text}, "names without '=', and no NUL characters")
    return env
