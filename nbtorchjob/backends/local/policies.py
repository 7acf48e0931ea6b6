"""A job's policies on this machine: who enforces them, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

from nbtorchjob.backends.base import Enforcement
from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec.policies import CleanPodPolicy, RunPolicy

_ENDED = Enforcement("a node's processes end with it, and there are no pods to keep")
_ATTEMPTS = Enforcement("the job's supervisor starts all nodes again")
POLICIES: Mapping[str, Enforcement] = {
    "clean_pod_policy=None": _ENDED,
    "clean_pod_policy=Running": _ENDED,
    "clean_pod_policy=All": Enforcement(
        refused="there are no pods: `%torchjob delete` removes what a job left"
    ),
    "ttl_seconds_after_finished": Enforcement(by_us="when the next job is submitted, or jobs are listed"),
    "active_deadline_seconds": Enforcement(
        "counted from the job's creation, or from its turn, over all attempts"
    ),
    "leave_before": Enforcement("the job's supervisor tells its nodes"),
    "backoff_limit": Enforcement(refused="there are no pods to restart: use --retries instead"),
    "start_within": Enforcement("a node's process starts at once"),
    "suspend": Enforcement(refused="its processes would lose their work"),
    "retries": _ATTEMPTS,
    "preemptions": _ATTEMPTS,
}


def check(policy: RunPolicy) -> None:
    """Raise ``SpecError`` for policies that only pods can have."""
    if policy.backoff_limit is not None:
        where = "on the local backend, which counts attempts, not pods: use --retries"
        raise SpecError("backoff_limit", policy.backoff_limit, where, Shape.CONFLICT)
    # On this machine no process of an ended job is left in any case, as with Running. None keeps all that
    # there is to keep: the job's folder.
    if policy.clean_pod_policy is CleanPodPolicy.ALL:
        allowed = (
            "None or Running on the local backend, which has no pods: "
            "--ttl-seconds-after-finished 0 removes all of an ended job"
        )
        raise SpecError("clean_pod_policy", policy.clean_pod_policy.value, allowed)
