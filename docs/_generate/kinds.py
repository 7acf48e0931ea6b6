"""What each kind of cluster job can do, found by asking it (``docs/kinds.md``)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap

from docs._generate.markdown import code, table
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.enforcement import ours, retry_owner
from nbtorchjob.backends.kubernetes.kinds.fit import NEWEST, check
from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Master, PyTorch, RestartPolicy, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import parse

_INTRO = """# Kinds of cluster jobs

Made by asking each kind for what it can do. Without `--kind` a job takes the first of these, from left to
right, that the cluster serves and that can do what is asked.
"""
_CAN = """
## What each can do

- **yes**: by the cluster, with the notebook closed.
- **by us**: in part or as a whole by whoever follows the job, or `%torchjob gc`; until then it waits:
  [run-policy.md](run-policy.md).
- **no**: refused before anything is sent, see below.
"""
_REFUSED = """
## What is refused

In these words, as a `SpecError`; `--kind` as they say is the way out.
"""


_SPOT = "--spot-toleration spot --preemptible --retries 2 --preemptions 2 --on-demand-last"
# As they are typed behind --image.
_LINES: Mapping[str, str] = {
    "several nodes": "--nnodes 2",
    "continues with fewer nodes": "--nnodes 1:2",
    "a master and workers": "--worker-replicas 1",
    "attempts after failures and preemptions": "--retries 2",
    "the same, of an elastic job": "--nnodes 1:2 --retries 2",
    "the last attempt on hosts that stay": _SPOT,
    "the last attempt of an elastic job on hosts that stay": f"--nnodes 1:2 {_SPOT}",
    "restarts of pods": "--backoff-limit 2",
    "restarts of an elastic job's pods": "--nnodes 1:2 --backoff-limit 2",
    "a deadline": "--active-deadline-seconds 60",
    "removed some time after its end": "--ttl-seconds-after-finished 60",
    "its pods removed with its end": "--clean-pod-policy All",
    "a priority class": "--priority-class high",
    "a priority in a queue of Kueue's": "--queue team --workload-priority high",
    "an administrator's runtime": "--runtime torch",
    "any field of a pod": "--pod-patch '{spec: {hostNetwork: true}}'",
}
_IMAGE = Cluster(image="torch")
# What no line says.
_SPECS: Mapping[str, tuple[str, JobSpec]] = {
    "the image of a runtime": ("no --image", JobSpec()),
    "a master with another image or other resources": (
        "Master(limits=…)",
        JobSpec(PyTorch(Master(limits={"cpu": "8"}), Worker(1)), cluster=_IMAGE),
    ),
    "a role with a restart policy of its own": (
        "Worker(restart_policy=…)",
        JobSpec(PyTorch(worker=Worker(1, restart_policy=RestartPolicy.ON_FAILURE)), cluster=_IMAGE),
    ),
}


def page() -> str:
    """Return the page, as Markdown."""
    heads = ("", *map(code, KINDS))
    can = table(("asked for", "as", *map(code, KINDS)), starmap(_abilities, _wishes()))
    refused = table(("asked for as", "kind", "what is said"), _refusals())
    return "\n".join([_INTRO, table(heads, _facts()), _CAN, can, _REFUSED, refused, ""])


def _facts() -> Iterator[Sequence[str]]:
    kinds = KINDS.values()
    yield "what it is", *(kind.about.rstrip(".") for kind in kinds)
    yield "API", *(code(f"{kind.api.group_version} {kind.api.kind}") for kind in kinds)
    yield "Kubernetes", *(f"1.{kind.minor} or later" if kind.minor else "any" for kind in kinds)
    yield "suspended by", *(kind.notes["suspend"] for kind in kinds)
    yield "all nodes placed at once, or none", *(kind.notes["at once"] for kind in kinds)


def _wishes() -> Iterator[tuple[str, str, JobSpec]]:
    """Yield what may be requested: in words, as it is typed, and as a spec."""
    for what, line in _LINES.items():
        yield what, line, parse(line, JobSpec(cluster=_IMAGE))[0]
    for what, (typed, spec) in _SPECS.items():
        yield what, typed, spec


def _abilities(what: str, typed: str, spec: JobSpec) -> Sequence[str]:
    return what, code(typed), *(_able(kind, spec) for kind in KINDS.values())


def _able(kind: Kind, spec: JobSpec) -> str:
    minors = [minor for minor in range(kind.minor, NEWEST + 1) if not _refusal(kind, spec, minor)]
    if not minors:
        return "no"
    since = f", from Kubernetes 1.{minors[0]}" if minors[0] > kind.minor else ""
    return ("by us" if ours(kind, spec, retry_owner(kind, spec, NEWEST)) else "yes") + since


def _refusal(kind: Kind, spec: JobSpec, minor: int = NEWEST) -> str:
    try:
        check(kind, spec, minor)
    except SpecError as exc:
        return str(exc).replace("({}.{})".format(*sys.version_info), "(3.…)")
    return ""


def _refusals() -> Iterator[Sequence[str]]:
    told = set()
    for _, typed, spec in _wishes():
        for kind in KINDS.values():
            said = _refusal(kind, spec)
            if said and said not in told:
                told.add(said)
                yield code(typed), code(kind.name), said
