"""How long a job may run and is kept, and how often it is tried: in the operators' own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from nbtorchjob.fields import member_or_none, option, whole_or_none


class CleanPodPolicy(Enum):
    """Which pods to remove once a job has ended; the values are Kubernetes' words."""

    NONE = "None"
    ALL = "All"
    RUNNING = "Running"


class RestartPolicy(Enum):
    """When an ended pod is started again; the values are Kubernetes' words."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    FAILURE = ON_FAILURE  # the plugin's name for it


@dataclass(frozen=True)
class RunPolicy:
    """How long a job may run and is kept, and how often it is tried. None leaves it to the backend.

    ``clean_pod_policy`` is a :class:`CleanPodPolicy` or its name as text, in any case. The text
    ``"None"`` keeps all pods; a plain None says nothing.
    """

    clean_pod_policy: CleanPodPolicy | None = field(
        default=None,
        metadata=option(
            "--clean-pod-policy",
            help="pods to remove once the job has ended",
            metavar="WHICH",
            choices=tuple(policy.value for policy in CleanPodPolicy),
        ),
    )
    ttl_seconds_after_finished: int | None = field(
        default=None,
        metadata=option(
            "--ttl-seconds-after-finished",
            help="how long an ended job is kept",
            kind="int",
            metavar="N",
            unit="seconds",
        ),
    )
    active_deadline_seconds: int | None = field(
        default=None,
        metadata=option(
            "--active-deadline-seconds",
            help="how long the job may run",
            kind="int",
            metavar="N",
            unit="seconds",
        ),
    )
    backoff_limit: int | None = field(
        default=None,
        metadata=option(
            "--backoff-limit", help="restarts of pods before the job fails", kind="int", metavar="N"
        ),
    )

    def __post_init__(self) -> None:
        clean = member_or_none("clean_pod_policy", self.clean_pod_policy, CleanPodPolicy)
        object.__setattr__(self, "clean_pod_policy", clean)
        whole_or_none("ttl_seconds_after_finished", self.ttl_seconds_after_finished, 0)
        # From 1, as TrainJob's API has it: a deadline of 0 would end every job.
        whole_or_none("active_deadline_seconds", self.active_deadline_seconds, 1)
        whole_or_none("backoff_limit", self.backoff_limit, 0)
