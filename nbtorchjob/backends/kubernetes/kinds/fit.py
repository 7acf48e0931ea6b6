"""Whether a kind can do what a spec requests, which kind to use, and who enforces its policies.

What a kind can't do is refused before anything is sent, naming the kinds that can. A run policy is enforced
by the cluster, by us in its place, or not at all. "We" are the job's followers, or ``%torchjob gc``: what is
left to us waits while neither runs. Retries have one owner, the operator or the job's followers, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, TypeAlias

from nbtorchjob.backends.base import Enforcement
from nbtorchjob.backends.kubernetes.kinds import KINDS, Ability, Kind
from nbtorchjob.backends.kubernetes.template import RESERVED, replicas, resources
from nbtorchjob.errors import Shape, SpecError, SubmitError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RunPolicy
from nbtorchjob.state import OPERATOR, US
from nbtorchjob.text.hints import hint

Served: TypeAlias = AbstractSet[tuple[str, str, str]]  # group, version, plural
NEWEST = 36
_NEEDED_IMAGE = "an image with torch"


class _Ask(FrozenDataclass):
    """Something that not every kind can do; ``value`` is None where a spec doesn't request it.

    ``otherwise`` is what every kind can do; "" where it can only be left out, in favour of ``instead``.
    """

    ability: Ability
    field: str
    value: Callable[[JobSpec], Any]
    otherwise: str = ""
    instead: str = ""


def _policy(spec: JobSpec) -> RunPolicy:
    return spec.launch.run_policy or RunPolicy()


def _roles(spec: JobSpec) -> str | None:
    own = [replace(replica, restart_policy=None) for replica in replicas(spec)]
    roles = [(replica.image, replica.requests, replica.limits) for replica in own]
    return "another image or other resources" if len(roles) == 2 and roles[0] != roles[1] else None


_TOLD_AT_THE_END = "on a cluster, where a deadline ends pods, in their grace period: use --grace"
_RETRIES = " (use --retries instead)"
_ASKS = (
    _Ask(
        "elastic",
        "nnodes",
        lambda s: f"{s.launch.min_nodes}:{s.launch.max_nodes}" if s.launch.elastic else None,
        "a fixed number",
    ),
    _Ask("roles", "master", _roles, "the same as its workers'"),
    _Ask(
        "restart policy",
        "restart_policy",
        lambda s: next((r.restart_policy.value for r in replicas(s) if r.restart_policy), None),
    ),
    _Ask("backoff", "backoff_limit", lambda s: _policy(s).backoff_limit, instead=_RETRIES),
    _Ask(
        "elastic backoff",
        "backoff_limit",
        lambda s: _policy(s).backoff_limit if s.launch.elastic else None,
        instead=f" with a range of nodes{_RETRIES}",
    ),
    _Ask("priority class", "priority_class", lambda s: s.cluster.priority_class),
    _Ask("workload priority", "workload_priority", lambda s: s.cluster.workload_priority),
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
            shape = Shape.VALUE if ask.otherwise else Shape.CONFLICT
            able = " or ".join(other.name for other in KINDS.values() if _able(other, ask.ability, minor))
            needs = f" before Kubernetes 1.{kind.since[ask.ability]}" if ask.ability in kind.can else ""
            raise SpecError(
                ask.field,
                value,
                f"{ask.otherwise} for {kind.name}{needs}{ask.instead}; use --kind {able}".lstrip(),
                shape,
            )
    if _policy(spec).leave_before:
        raise SpecError("leave_before", _policy(spec).leave_before, _TOLD_AT_THE_END, Shape.CONFLICT)
    for replica in replicas(spec):
        if kind.needs_image and not (replica.image or spec.cluster.image):
            raise SpecError("--image", None, _NEEDED_IMAGE, Shape.MISSING)
        resources(spec.cluster, replica)
    for name in (*spec.env, *spec.secret_env):
        if name in RESERVED:
            raise SpecError(
                "env", name, "another name: on a cluster this one is reserved for the nodes' rendezvous"
            )
    kind.check(spec)


def _able(kind: Kind, ability: Ability, minor: int) -> bool:
    return ability in kind.can and minor >= kind.since.get(ability, 0)


def choose(served: Served, spec: JobSpec, minor: int = NEWEST) -> Kind:
    """Return the kind that the spec names, or the best that the cluster serves and that can do it.

    Raises ``SpecError`` if the named kind can't do it, ``SubmitError`` if the cluster has none that can.
    """
    if spec.cluster.kind is not None:
        kind = KINDS[spec.cluster.kind]
        check(kind, spec, minor)
        if kind.api[:3] not in served:
            names = ", ".join(candidate.name for candidate in KINDS.values() if candidate.api[:3] in served)
            others = other_versions(kind, served)
            only = f", only {others}: its operator must be of another release" if others else ""
            absent = f"{kind.api} {kind.api.version} isn't installed{only}"
            raise SubmitError(
                f"kind: this cluster has no {kind.name}: {absent}; it has {names or 'none of the others'}"
            )
        return kind
    why = []
    for kind in KINDS.values():
        try:
            if kind.api[:3] in served:
                check(kind, spec, minor)
                return kind
            others = other_versions(kind, served)
            why.append(f"{kind.name}: {f'only {others} installed' if others else 'not installed'}")
        except SpecError as exc:
            why.append(f"{kind.name}: {exc}")
    raise SubmitError(f"no kind of job that this cluster has can do it ({'; '.join(why)})")


def other_versions(kind: Kind, served: Served) -> str:
    """Return the versions of a kind that the cluster serves other than the one we support; "" for none."""
    api = kind.api
    return ", ".join(
        sorted(resource[1] for resource in served if (resource[0], resource[2]) == (api.group, api.plural))
    )


def cautions(kind: Kind, spec: JobSpec, minor: int = NEWEST) -> list[str]:
    """Return cautions about what works otherwise than a user might expect, whoever looks after the job."""
    policy, cluster, texts = _policy(spec), spec.cluster, list[str]()
    if kind.queues is None and cluster.queue:
        texts.append(
            f"queue {cluster.queue} takes effect only with Kueue or an operator that schedules gangs"
        )
    if cluster.workload_priority and not cluster.queue:
        only = "takes effect only in a queue of Kueue's: add --queue"
        texts.append(f"workload_priority {cluster.workload_priority} {only}")
    if spec.retry is not None and spec.retry.on_demand_last and not cluster.preemptible:
        texts.append("on_demand_last does nothing for a job that isn't preemptible")
    if policy.clean_pod_policy is CleanPodPolicy.ALL and not cluster.storage:
        texts.append(
            "clean_pod_policy=All removes the pods as the job ends: without --storage, a value that "
            "hasn't been fetched by then is lost"
        )
    return [*texts, *kind.cautions(spec, minor)]


def left_to_us(kind: Kind, spec: JobSpec, minor: int = NEWEST) -> list[str]:
    """Return cautions about policies that wait until something looks after the job."""
    done_by_us: list[str] = []
    who, policy = retry_owner(kind, spec, minor), _policy(spec)
    policies = enforced(kind, spec, who)
    for name in ("ttl_seconds_after_finished", "clean_pod_policy"):
        if getattr(policy, name) is not None and policies[name].by_us:
            ways = f"a session that follows the job, `nbtorchjob tend` or `{hint('gc', '--yes')}`"
            done_by_us.append(f"{name} needs {ways}: {policies[name].by_us}")
    if who == US:
        done_by_us.append(
            "nbtorchjob itself starts the next attempt: keep a session attached, or run `nbtorchjob tend`"
        )
    return done_by_us


def retry_owner(kind: Kind, spec: JobSpec, minor: int) -> str:
    """Return who starts attempts again (``JobInfo.retry_owner``): US, the OPERATOR, or "" without budgets.

    ``minor`` is the server's version, Kubernetes 1.x.
    """
    if spec.retry is None:
        return ""
    return OPERATOR if kind.owns_retries(spec, minor) and not moves(spec) else US


def moves(spec: JobSpec) -> bool:
    """Whether the last attempt runs on other hosts than those before: no operator does that."""
    return spec.retry is not None and spec.retry.on_demand_last and spec.cluster.preemptible


_OWNER = "the first attempt's object owns the later ones, which would be deleted with it"


def enforced(kind: Kind, spec: JobSpec, retry_owner: str) -> Mapping[str, Enforcement]:
    """Return who enforces each policy of such a job, requested or not, by the name of its field.

    ``retry_owner`` is who starts attempts again (``JobInfo``). Without budgets, ``retries`` and
    ``preemptions`` are left out.
    """
    clean_policy = (spec.launch.run_policy or RunPolicy()).clean_pod_policy
    if clean_policy is CleanPodPolicy.ALL:
        note = kind.notes["clean pods"]
        clean_pods = Enforcement(natively=note) if "clean pods" in kind.can else Enforcement(by_us=note)
    elif "clean pods" not in kind.can or (retry_owner == US and clean_policy is not CleanPodPolicy.RUNNING):
        clean_pods = Enforcement(natively="ended pods stay; running pods are ended with the job")
    else:
        clean_pods = Enforcement(
            natively="pods that still run are ended" if clean_policy is CleanPodPolicy.RUNNING else "all stay"
        )
    if retry_owner == US:
        ttl = Enforcement(by_us=_OWNER)
    elif "ttl" not in kind.can:
        ttl = Enforcement(by_us=kind.notes["ttl"])
    else:
        failed = "" if "elastic ttl" in kind.can or not spec.launch.elastic else kind.notes["elastic ttl"]
        ttl = Enforcement("once it has succeeded" if failed else "counted from the job's end", failed)
    if "deadline" not in kind.can:
        deadline = Enforcement("each pod, counted from its own start", f"the job: {kind.notes['deadline']}")
    elif retry_owner == US:
        deadline = Enforcement("each attempt gets the remaining time", "no attempt is started after it")
    else:
        deadline = Enforcement("counted from the job's start or its last resume")
    if "backoff" not in kind.can:
        backoff = Enforcement(refused=f"{kind.notes['backoff']}: use --retries instead")
    elif spec.launch.elastic and "elastic backoff" not in kind.can:
        backoff = Enforcement(
            refused="lost pods of an elastic job aren't started again: use --retries instead"
        )
    else:
        backoff = Enforcement(kind.notes["backoff"])
    policies = {
        "clean_pod_policy": clean_pods,
        "ttl_seconds_after_finished": ttl,
        "active_deadline_seconds": deadline,
        "leave_before": Enforcement(
            refused="ranks are told at the deadline, and have their pods' grace period"
        ),
        "backoff_limit": backoff,
        "start_within": Enforcement(by_us="counted while the cluster reports why the attempt can't start"),
        "suspend": Enforcement(kind.notes["suspend"]),
    }
    if spec.retry is None:
        return policies
    if retry_owner == OPERATOR:
        budgets = Enforcement(kind.notes["retries"])
    else:
        budgets = Enforcement(
            by_us="a session that follows the job, or a tender, creates a job object for each attempt"
        )
    return {**policies, "retries": budgets, "preemptions": budgets}


def own_policies(kind: Kind, spec: JobSpec, retry_owner: str, *, halted: bool = False) -> frozenset[str]:
    """Return which of the requested policies are left to us, at least in part, by field.

    ``halted``: we ended the job. It is then suspended, so no controller sees its end.
    """
    requested = {
        name for name, value in vars(spec.launch.run_policy or RunPolicy()).items() if value is not None
    }
    left = {name for name, policy in enforced(kind, spec, retry_owner).items() if policy.by_us}
    left |= {"ttl_seconds_after_finished"} if halted else set()
    return frozenset(left & {*requested, "retries", "preemptions"})
