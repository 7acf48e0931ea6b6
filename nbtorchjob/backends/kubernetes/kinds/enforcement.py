"""Who sees to a job's run policy: the cluster by itself, we in its place, or nobody.

We are whoever follows the job, or ``%torchjob gc``: what is left to us waits while nobody does.
"""

from __future__ import annotations

from collections.abc import Mapping

from nbtorchjob.backends.enforced import Enforced
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.policies import CleanPodPolicy, RunPolicy
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import OPERATOR, US

_OWNER = "later attempts belong to the first one's object, and would go with it"


def enforced(kind: Kind, spec: JobSpec, keeper: str) -> Mapping[str, Enforced]:
    """Give who sees to each policy of such a job, asked for or not, by the name of its field.

    ``keeper`` is who starts attempts again (``JobInfo.keeper``); without budgets nothing is said of them.
    """
    found = {
        "clean_pod_policy": _clean_pods(kind, spec, keeper),
        "ttl_seconds_after_finished": _ttl(kind, spec, keeper),
        "active_deadline_seconds": _deadline(kind, keeper),
        "backoff_limit": _backoff(kind, spec),
        "start_within": Enforced(by_us="counted while its cluster says what holds the attempt back"),
        "suspend": Enforced(kind.notes["suspend"]),
    }
    if spec.retry is None:
        return found
    return {**found, **dict.fromkeys(("retries", "preemptions"), _budgets(kind, keeper))}


def ours(kind: Kind, spec: JobSpec, keeper: str, *, cancelled: bool = False) -> frozenset[str]:
    """Give which of the policies that a job asks for are left to us, at least in part, by field.

    ``cancelled``: for a job that was. Such a one is suspended, so no controller sees its end.
    """
    asked = {name for name, value in vars(spec.launch.run_policy or RunPolicy()).items() if value is not None}
    left = {name for name, found in enforced(kind, spec, keeper).items() if found.by_us}
    left |= {"ttl_seconds_after_finished"} if cancelled else set()
    return frozenset(left & {*asked, "retries", "preemptions"})


def _clean_pods(kind: Kind, spec: JobSpec, keeper: str) -> Enforced:
    asked = (spec.launch.run_policy or RunPolicy()).clean_pod_policy
    if asked is CleanPodPolicy.ALL:
        note = kind.notes["clean pods"]
        return Enforced(natively=note) if "clean pods" in kind.can else Enforced(by_us=note)
    if "clean pods" not in kind.can or (keeper == US and asked is not CleanPodPolicy.RUNNING):
        return Enforced(natively="pods that ended stay; those that still run are ended with the job")
    return Enforced(
        natively="pods that still run are ended" if asked is CleanPodPolicy.RUNNING else "all stay"
    )


def _ttl(kind: Kind, spec: JobSpec, keeper: str) -> Enforced:
    if keeper == US:
        return Enforced(by_us=_OWNER)
    if "ttl" not in kind.can:
        return Enforced(by_us=kind.notes["ttl"])
    failed = "" if "elastic ttl" in kind.can or not spec.launch.elastic else kind.notes["elastic ttl"]
    return Enforced("once it has succeeded" if failed else "from the job's end on", failed)


def _deadline(kind: Kind, keeper: str) -> Enforced:
    if "deadline" not in kind.can:
        return Enforced("each pod from its own start on", f"the job: {kind.notes['deadline']}")
    if keeper == US:
        return Enforced("each attempt has what is left", "no attempt is started behind it")
    return Enforced("from the job's start, or its last resume, on")


def _backoff(kind: Kind, spec: JobSpec) -> Enforced:
    if "backoff" not in kind.can:
        return Enforced(refused=f"{kind.notes['backoff']}: --retries takes its place")
    if spec.launch.elastic and "elastic backoff" not in kind.can:
        return Enforced(refused="lost pods of an elastic job aren't started again: --retries takes its place")
    return Enforced(kind.notes["backoff"])


def _budgets(kind: Kind, keeper: str) -> Enforced:
    if keeper != OPERATOR:
        return Enforced(by_us="each attempt is a job object of its own, made by whoever follows the job")
    return Enforced(kind.notes["keeps"])
