"""Who sees to a job's policies on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from nbtorchjob.backends.enforced import Enforced

_ENDED = Enforced("a node's processes end with it, and there are no pods to keep")
_ATTEMPTS = Enforced("the job's supervisor starts all nodes again")
POLICIES: Mapping[str, Enforced] = {
    "clean_pod_policy=None": _ENDED,
    "clean_pod_policy=Running": _ENDED,
    "clean_pod_policy=All": Enforced(refused="there are no pods: `%torchjob delete` removes what a job left"),
    "ttl_seconds_after_finished": Enforced(by_us="as the next job is submitted, or the list is looked at"),
    "active_deadline_seconds": Enforced("from the job's creation on, all attempts together"),
    "backoff_limit": Enforced(refused="there are no pods to restart: --retries takes its place"),
    "suspend": Enforced(refused="what a process has done can't be kept without it"),
    "retries": _ATTEMPTS,
    "preemptions": _ATTEMPTS,
}
