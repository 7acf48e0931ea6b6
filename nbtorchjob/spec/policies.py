"""How long a job may run and is kept, and how often it is tried: in the operators' own terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.validation import (
    digits,
    member_or_none,
    option,
    seconds_or_none,
    sequence,
    switch,
    whole,
    whole_or_none,
)


class CleanPodPolicy(Enum):
    """Which pods to remove once a job has ended; the values are Kubernetes' own."""

    NONE = "None"
    ALL = "All"
    RUNNING = "Running"


class RestartPolicy(Enum):
    """When an ended pod is started again; the values are Kubernetes' own."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    FAILURE = ON_FAILURE  # the plugin's name for it


@dataclass(frozen=True)
class RunPolicy:
    """How long a job may run and is kept, and how often it is tried. None leaves it to the backend.

    ``clean_pod_policy`` is a :class:`CleanPodPolicy` or its name as text, in any case. The text
    ``"None"`` keeps all pods; a plain None sets nothing. ``start_within`` is a number of seconds, or text
    such as ``"10m"``: for so long may problems that the cluster reports keep an attempt from starting. Time
    in a queue, or to pull an image, doesn't count. So many seconds as ``leave_before`` says before its
    deadline a job's ranks are told to save (``nbtorchjob.leaving``).
    """

    clean_pod_policy: CleanPodPolicy | None = field(
        default=None,
        metadata=option(
            "--clean-pod-policy",
            help="which pods to remove when the job ends",
            metavar="WHICH",
            choices=tuple(policy.value for policy in CleanPodPolicy),
        ),
    )
    ttl_seconds_after_finished: int | None = field(
        default=None,
        metadata=option(
            "--ttl-seconds-after-finished",
            help="how long to keep the job after it ends",
            takes="int",
            metavar="N",
            unit="seconds",
        ),
    )
    active_deadline_seconds: int | None = field(
        default=None,
        metadata=option(
            "--active-deadline-seconds",
            help="how long the job may run",
            takes="int",
            metavar="N",
            unit="seconds",
        ),
    )
    backoff_limit: int | None = field(
        default=None,
        metadata=option(
            "--backoff-limit",
            help="maximum restarts of pods before the job fails",
            takes="int",
            metavar="N",
        ),
    )
    start_within: float | str | None = field(
        default=None,
        metadata=option(
            "--start-within",
            help="how long problems may delay the job's start",
            metavar="DURATION",
            unit="90s, 10m, 2h",
        ),
    )
    leave_before: int | None = field(
        default=None,
        metadata=option(
            "--leave-before",
            help="how long before the deadline ranks are told to save",
            takes="int",
            metavar="S",
            unit="seconds",
        ),
    )

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
    """How often a job is tried again: one budget for failures, another for preemptions.

    ``retries`` is how often it is tried again after a ``RecoverableError``, an exception that is one
    of ``retry_on`` (names of types, subclasses count) or a crash; any other exception ends the job.
    ``preemptions`` is how often after a node was taken away or lost, a number or ``"unlimited"``.
    ``backoff`` is the pause before the second attempt in seconds; it doubles with each one, to 300 at
    most. With ``on_demand_last`` the last attempt of a preemptible job isn't preemptible.
    """

    retries: int = field(
        default=0,
        metadata=option("--retries", help="how many failures to retry", takes="int", metavar="N"),
    )
    preemptions: int | str = field(
        default=UNLIMITED,
        metadata=option("--preemptions", help="how many preemptions to retry", metavar="N|unlimited"),
    )
    backoff: float = field(
        default=10.0,
        metadata=option(
            "--retry-backoff",
            help="pause before the second attempt; doubles each time",
            takes="number",
            metavar="S",
            unit="seconds",
        ),
    )
    retry_on: Sequence[str] = field(
        default=(),
        metadata=option("--retry-on", help="an exception type to retry", takes="texts", metavar="TYPE"),
    )
    on_demand_last: bool = field(
        default=False,
        metadata=option(
            "--on-demand-last", help="run the last attempt on hosts that aren't preemptible", takes="switch"
        ),
    )

    def __post_init__(self) -> None:
        whole("retries", self.retries, 0)
        object.__setattr__(self, "preemptions", _preemptions(self.preemptions))
        number = isinstance(self.backoff, int | float) and not isinstance(self.backoff, bool)
        if not number or not 0 <= self.backoff < math.inf:
            raise SpecError("backoff", self.backoff, "a number of seconds, 0 or more")
        object.__setattr__(self, "retry_on", _types(self.retry_on))
        switch("on_demand_last", self.on_demand_last)

    @property
    def most_preemptions(self) -> float:
        """The preemption budget as a number; infinite where it is unlimited."""
        return self.preemptions if isinstance(self.preemptions, int) else math.inf

    def delay(self, attempts: int) -> float:
        """Return the seconds to wait after that many attempts."""
        return min(self.backoff * 2.0 ** min(attempts - 1, 32), max(self.backoff, _LONGEST_BACKOFF_S))


def _preemptions(value: object) -> int | str:
    if isinstance(value, str) and value.casefold() == UNLIMITED:
        return UNLIMITED
    number = digits(value) if isinstance(value, str) else value
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    raise SpecError("preemptions", value, f"a whole number, 0 or more, or '{UNLIMITED}'")


def _types(value: object) -> tuple[str, ...]:
    names = sequence("retry_on", value)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise SpecError("retry_on", name, "the name of an exception's type, such as OSError")
    return names
