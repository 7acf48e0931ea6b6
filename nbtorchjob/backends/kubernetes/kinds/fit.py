"""Whether a kind can do what a spec asks for, and which one to take.

What a kind can't do is refused before anything is sent, with the kinds that can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.kinds.base import Ability, Kind
from nbtorchjob.backends.kubernetes.kinds.enforcement import enforced
from nbtorchjob.backends.kubernetes.kinds.keeping import keeper
from nbtorchjob.backends.kubernetes.pod.resources import replicas, resources
from nbtorchjob.backends.kubernetes.pod.template import RESERVED
from nbtorchjob.errors import SpecError, SubmitError
from nbtorchjob.policies import CleanPodPolicy, RestartPolicy, RunPolicy
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import US

Served: TypeAlias = AbstractSet[tuple[str, str, str]]  # group, version, plural
NEWEST = 36


@dataclass(frozen=True)
class _Ask:
    """Something that not every kind can do; ``value`` is None where a spec doesn't ask for it."""

    ability: Ability
    field: str
    value: Callable[[JobSpec], Any]
    otherwise: str = "left out"


def _range(spec: JobSpec) -> str | None:
    launch = spec.launch
    return f"{launch.min_nodes}:{launch.max_nodes}" if launch.elastic else None


def _policy(spec: JobSpec) -> RunPolicy:
    return spec.launch.run_policy or RunPolicy()


def _roles(spec: JobSpec) -> str | None:
    own = [replace(replica, restart_policy=None) for replica in replicas(spec)]
    found = [(replica.image, replica.requests, replica.limits) for replica in own]
    return "another image or other resources" if len(found) == 2 and found[0] != found[1] else None


def _restart(spec: JobSpec) -> str | None:
    return next((r.restart_policy.value for r in replicas(spec) if r.restart_policy), None)


_RETRIES = "left out (--retries takes its place)"
_ASKS = (
    _Ask("elastic", "nnodes", _range, "a fixed number"),
    _Ask("roles", "master", _roles, "the same as its workers'"),
    _Ask("restart policy", "restart_policy", _restart),
    _Ask("backoff", "backoff_limit", lambda s: _policy(s).backoff_limit, _RETRIES),
    _Ask(
        "elastic backoff",
        "backoff_limit",
        lambda s: _policy(s).backoff_limit if s.launch.elastic else None,
        f"{_RETRIES} for an elastic job",
    ),
    _Ask("priority class", "priority_class", lambda s: s.cluster.priority_class),
    _Ask("runtime", "runtime", lambda s: s.cluster.runtime),
)


def check(kind: Kind, spec: JobSpec, minor: int = NEWEST) -> None:
    """Raise ``SpecError`` for what ``kind`` can't do, naming the kinds that can.

    ``minor`` is the server's version, Kubernetes 1.x.
    """
    if minor < kind.minor:
        allowed = f"another one: it needs Kubernetes 1.{kind.minor}, and this is 1.{minor}"
        raise SpecError("kind", kind.name, allowed)
    for ask in _ASKS:
        value = ask.value(spec)
        if value is not None and not _able(kind, ask.ability, minor):
            raise SpecError(ask.field, value, _instead(kind, ask, minor))
    _check_pods(kind, spec)
    kind.check(spec)


def _able(kind: Kind, ability: Ability, minor: int) -> bool:
    return ability in kind.can and minor >= kind.since.get(ability, 0)


def _instead(kind: Kind, ask: _Ask, minor: int) -> str:
    able = " or ".join(other.name for other in KINDS.values() if _able(other, ask.ability, minor))
    needs = f" before Kubernetes 1.{kind.since[ask.ability]}" if ask.ability in kind.can else ""
    return f"{ask.otherwise} for {kind.name}{needs}; use --kind {able}"


def _check_pods(kind: Kind, spec: JobSpec) -> None:
    for replica in replicas(spec):
        if kind.needs_image and not (replica.image or spec.cluster.image):
            raise SpecError("image", None, "given: --image, with the Python of this kernel and torch")
        resources(spec.cluster, replica)
    for name in spec.env:
        if name in RESERVED:
            raise SpecError("env", name, "another name: on a cluster this one says where the nodes meet")


def choose(served: Served, spec: JobSpec, minor: int = NEWEST) -> Kind:
    """Give the kind that the spec names, or the best that the cluster serves and that can do it.

    Raises ``SpecError`` where the named kind can't do it, ``SubmitError`` where none is there.
    """
    if spec.cluster.kind is not None:
        kind = KINDS[spec.cluster.kind]
        check(kind, spec, minor)
        if not _served(kind, served):
            raise SubmitError(
                f"kind: this cluster has no {kind.name}: {_absent(kind, served)}; it has {_names(served)}"
            )
        return kind
    why = []
    for kind in KINDS.values():
        try:
            if _served(kind, served):
                check(kind, spec, minor)
                return kind
            others = other_versions(kind, served)
            why.append(f"{kind.name}: {f'only {others} installed' if others else 'not installed'}")
        except SpecError as exc:
            why.append(f"{kind.name}: {exc}")
    raise SubmitError(f"no kind of job that this cluster has can do it ({'; '.join(why)})")


def _served(kind: Kind, served: Served) -> bool:
    return (kind.api.group, kind.api.version, kind.api.plural) in served


def other_versions(kind: Kind, served: Served) -> str:
    """Give the versions of a kind that the cluster serves in place of the one we speak; "" for none."""
    api = kind.api
    return ", ".join(sorted(found[1] for found in served if (found[0], found[2]) == (api.group, api.plural)))


def _absent(kind: Kind, served: Served) -> str:
    others = other_versions(kind, served)
    only = f", only {others}: its operator must be of another release" if others else ""
    return f"{kind.api} {kind.api.version} isn't installed{only}"


def _names(served: Served) -> str:
    return ", ".join(kind.name for kind in KINDS.values() if _served(kind, served)) or "none of the others"


def cautions(kind: Kind, spec: JobSpec, minor: int = NEWEST) -> list[str]:
    """Say what will work, but not as one might expect."""
    return [*_kept_by_us(kind, spec, minor), *_cautions(kind.name, spec)]


def _kept_by_us(kind: Kind, spec: JobSpec, minor: int) -> Iterator[str]:
    who, policy = keeper(kind, spec, minor), _policy(spec)
    found = enforced(kind, spec, who)
    for name in ("ttl_seconds_after_finished", "clean_pod_policy"):
        if getattr(policy, name) is not None and found[name].by_us:
            yield f"{name} is for whoever follows the job, or `%torchjob gc --yes`: {found[name].by_us}"
    if who == US:
        yield "retries and preemptions wait while nobody follows the job: who does starts the next attempt"


def _cautions(kind: str, spec: JobSpec) -> Iterator[str]:
    policy, cluster = _policy(spec), spec.cluster
    if kind != "volcano" and cluster.queue:
        yield f"queue {cluster.queue} counts only where Kueue runs, or an operator that schedules gangs"
    if spec.retry is not None and spec.retry.on_demand_last and not cluster.preemptible:
        yield "on_demand_last does nothing for a job that isn't preemptible"
    if policy.clean_pod_policy is CleanPodPolicy.ALL and not cluster.storage:
        yield (
            "clean_pod_policy=All removes the pods as the job ends: without --storage a value that nobody "
            "has read by then is lost"
        )
    if kind == "volcano" and policy.backoff_limit and policy.active_deadline_seconds:
        yield (
            "active_deadline_seconds begins anew with each restart of a Volcano job while nobody follows it; "
            "--retries instead of backoff_limit ends it there"
        )
    if kind == "pytorchjob":
        yield from _restart_cautions(spec)


def _restart_cautions(spec: JobSpec) -> Iterator[str]:
    policy = _policy(spec)
    restarts = [replica.restart_policy for replica in replicas(spec)]
    if policy.backoff_limit is None and {RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS} & set(restarts):
        yield "restart_policy without a backoff_limit restarts a failing pod for ever"
    if policy.backoff_limit:
        yield (
            f"backoff_limit={policy.backoff_limit}: a PyTorchJob fails at that restart, not behind it, and "
            "its pods are removed with their logs (training-operator 1.9)"
        )
    if policy.backoff_limit and set(restarts) == {RestartPolicy.NEVER}:
        yield f"backoff_limit={policy.backoff_limit} has nothing to count: restart_policy is Never"
