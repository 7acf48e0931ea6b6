"""How long a job may run and is kept, and how often it is tried: in the operators' own terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from nbtorchjob.errors import SpecError
from nbtorchjob.spec import (
    brief,
    digits,
    member_or_none,
    seconds,
    seconds_or_none,
    sequence,
    setting,
    switch,
    whole,
    whole_or_none,
)


class CleanPodPolicy(Enum):
    """Which pods to remove when a job ends; the values are those of Kubernetes."""

    NONE = "None"
    ALL = "All"
    RUNNING = "Running"


_CLEANING = tuple(policy.value for policy in CleanPodPolicy)


class RestartPolicy(Enum):
    """When to restart an ended pod; the values are those of Kubernetes."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    FAILURE = ON_FAILURE  # the plugin's name for it


@dataclass(frozen=True)
class RunPolicy:
    """Time limits, cleanup and restarts of a job. None leaves a field to the backend.

    ``clean_pod_policy`` is a :class:`CleanPodPolicy`, or its name in any case. The text ``"None"`` keeps all
    pods; a plain None sets nothing. ``start_within``, in seconds or as text such as ``"10m"``, limits how
    long problems that the cluster reports may delay an attempt's start; time in a queue or for pulling an
    image doesn't count. ``leave_before`` seconds before the deadline, the ranks are asked to save
    (``nbtorchjob.leaving``).
    """

    clean_pod_policy: CleanPodPolicy | None = setting(
        "--clean-pod-policy WHICH",
        "pods to remove when the job ends",
        choices=_CLEANING,
    )
    ttl_seconds_after_finished: int | None = setting(
        "--ttl-seconds-after-finished N", "time to keep the job after it ends", takes="int", unit="seconds"
    )
    active_deadline_seconds: int | None = setting(
        "--active-deadline-seconds N", "maximum running time of the job", takes="int", unit="seconds"
    )
    backoff_limit: int | None = setting(
        "--backoff-limit N", "maximum pod restarts before the job fails", takes="int"
    )
    start_within: float | str | None = setting(
        "--start-within DURATION", "time that problems may delay the start", unit="90s, 10m, 2h"
    )
    leave_before: int | None = setting(
        "--leave-before S", "time before the deadline to start saving", takes="int", unit="seconds"
    )

    __repr__ = brief

    def __post_init__(self) -> None:
        clean = member_or_none("clean_pod_policy", self.clean_pod_policy, CleanPodPolicy)
        object.__setattr__(self, "clean_pod_policy", clean)
        whole_or_none("ttl_seconds_after_finished", self.ttl_seconds_after_finished, 0)
        # From 1, as TrainJob's API has it: a deadline of 0 would end every job.
        whole_or_none("active_deadline_seconds", self.active_deadline_seconds, 1)
        whole_or_none("leave_before", self.leave_before, 0)
        whole_or_none("backoff_limit", self.backoff_limit, 0)
        object.__setattr__(self, "start_within", seconds_or_none("start_within", self.start_within))

    @property
    def patience_s(self) -> float | None:
        """``start_within`` as a number of seconds."""
        return self.start_within if isinstance(self.start_within, int | float) else None


UNLIMITED = "unlimited"
_LONGEST_BACKOFF_S = 300.0


@dataclass(frozen=True)
class Retry:
    """Budgets for retries: one for failures, one for preemptions.

    ``retries`` counts retries after a ``RecoverableError``, an exception listed in ``retry_on`` (type names,
    including subclasses) or a crash; any other exception ends the job. ``preemptions``, a number or
    ``"unlimited"``, counts retries after a lost or preempted node. ``backoff`` is the pause before the
    first retry in seconds; it doubles each time, up to 300. With ``on_demand_last`` the last attempt of a
    preemptible job isn't preemptible.
    """

    retries: int = setting("--retries N", "maximum retries after failures", 0, takes="int")
    preemptions: int | str = setting(
        "--preemptions N|unlimited", "maximum retries after preemptions", UNLIMITED
    )
    backoff: float = setting(
        "--retry-backoff S",
        "pause before the first retry; doubles each time",
        10.0,
        takes="number",
        unit="seconds",
    )
    retry_on: Sequence[str] = setting("--retry-on TYPE", "an exception type to retry", takes="texts")
    on_demand_last: bool = setting("--on-demand-last", "run the last attempt on non-preemptible hosts")

    __repr__ = brief

    def __post_init__(self) -> None:
        whole("retries", self.retries, 0)
        preemptions: int | str
        if isinstance(self.preemptions, str) and self.preemptions.casefold() == UNLIMITED:
            preemptions = UNLIMITED
        else:
            number = digits(self.preemptions) if isinstance(self.preemptions, str) else self.preemptions
            if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
                preemptions = number
            else:
                raise SpecError(
                    "preemptions", self.preemptions, f"a whole number, 0 or more, or '{UNLIMITED}'"
                )
        object.__setattr__(self, "preemptions", preemptions)
        seconds("backoff", self.backoff, zero=True)
        object.__setattr__(self, "retry_on", sequence("retry_on", self.retry_on))
        for name in self.retry_on:
            if not all(part.isidentifier() for part in name.split(".")):
                raise SpecError("retry_on", name, "the name of an exception type, such as OSError")
        switch("on_demand_last", self.on_demand_last)

    @property
    def most_preemptions(self) -> float:
        """The preemption budget as a number; infinite if unlimited."""
        return self.preemptions if isinstance(self.preemptions, int) else math.inf

    def delay(self, attempts: int) -> float:
        """Return the seconds to wait after that many attempts."""
        return min(self.backoff * 2.0 ** min(attempts - 1, 32), max(self.backoff, _LONGEST_BACKOFF_S))
