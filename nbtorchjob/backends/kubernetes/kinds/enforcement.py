"""Who enforces a job's run policy and owns its retries: the cluster, we in its place, or nobody.

"We" are whoever follows the job, or ``%torchjob gc``: what is left to us waits while neither runs.

Retries have one owner, the operator or whoever follows the job, never both.
"""

from __future__ import annotations

from collections.abc import Mapping

from nbtorchjob.backends.base import Enforced
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RunPolicy
from nbtorchjob.state import OPERATOR, US


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


_OWNER = "later attempts belong to the first one's object, and would go with it"


def enforced(kind: Kind, spec: JobSpec, retry_owner: str) -> Mapping[str, Enforced]:
    """Return who enforces each policy of such a job, requested or not, by the name of its field.

    ``retry_owner`` is who starts attempts again (``JobInfo``); without budgets they are left out.
    """
    policies = {
        "clean_pod_policy": _clean_pods(kind, spec, retry_owner),
        "ttl_seconds_after_finished": _ttl(kind, spec, retry_owner),
        "active_deadline_seconds": _deadline(kind, retry_owner),
        "leave_before": Enforced(refused="ranks are told at the deadline, and have their pods' grace period"),
        "backoff_limit": _backoff(kind, spec),
        "start_within": Enforced(by_us="counted while the cluster reports why the attempt can't start"),
        "suspend": Enforced(kind.notes["suspend"]),
    }
    if spec.retry is None:
        return policies
    if retry_owner == OPERATOR:
        budgets = Enforced(kind.notes["retries"])
    else:
        budgets = Enforced(by_us="whoever follows the job creates a job object for each attempt")
    return {**policies, "retries": budgets, "preemptions": budgets}


def ours(kind: Kind, spec: JobSpec, retry_owner: str, *, cancelled: bool = False) -> frozenset[str]:
    """Return which of the requested policies are left to us, at least in part, by field.

    ``cancelled``: the job was cancelled. It is then suspended, so no controller sees its end.
    """
    asked = {name for name, value in vars(spec.launch.run_policy or RunPolicy()).items() if value is not None}
    left = {name for name, policy in enforced(kind, spec, retry_owner).items() if policy.by_us}
    left |= {"ttl_seconds_after_finished"} if cancelled else set()
    return frozenset(left & {*asked, "retries", "preemptions"})


def _clean_pods(kind: Kind, spec: JobSpec, retry_owner: str) -> Enforced:
    asked = (spec.launch.run_policy or RunPolicy()).clean_pod_policy
    if asked is CleanPodPolicy.ALL:
        note = kind.notes["clean pods"]
        return Enforced(natively=note) if "clean pods" in kind.can else Enforced(by_us=note)
    if "clean pods" not in kind.can or (retry_owner == US and asked is not CleanPodPolicy.RUNNING):
        return Enforced(natively="ended pods stay; running pods are ended with the job")
    return Enforced(
        natively="pods that still run are ended" if asked is CleanPodPolicy.RUNNING else "all stay"
    )


def _ttl(kind: Kind, spec: JobSpec, retry_owner: str) -> Enforced:
    if retry_owner == US:
        return Enforced(by_us=_OWNER)
    if "ttl" not in kind.can:
        return Enforced(by_us=kind.notes["ttl"])
    failed = "" if "elastic ttl" in kind.can or not spec.launch.elastic else kind.notes["elastic ttl"]
    return Enforced("once it has succeeded" if failed else "counted from the job's end", failed)


def _deadline(kind: Kind, retry_owner: str) -> Enforced:
    if "deadline" not in kind.can:
        return Enforced("each pod, counted from its own start", f"the job: {kind.notes['deadline']}")
    if retry_owner == US:
        return Enforced("each attempt gets the remaining time", "no attempt is started after it")
    return Enforced("counted from the job's start or its last resume")


def _backoff(kind: Kind, spec: JobSpec) -> Enforced:
    if "backoff" not in kind.can:
        return Enforced(refused=f"{kind.notes['backoff']}: use --retries instead")
    if spec.launch.elastic and "elastic backoff" not in kind.can:
        return Enforced(refused="lost pods of an elastic job aren't started again: use --retries instead")
    return Enforced(kind.notes["backoff"])
