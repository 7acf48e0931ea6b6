"""``Submission``: all that a manifest is made of. Making one is pure, so a dry run shows what is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo


@dataclass(frozen=True)
class Runtime:
    """What a TrainJob refers to: a runtime and, within it, the pods that train.

    The defaults are those of Trainer's own manifests (2.3).
    """

    name: str = "torch-distributed"
    kind: str = "ClusterTrainingRuntime"
    job: str = "node"  # the replicated job that is labelled as the trainer


@dataclass(frozen=True)
class Submission:
    """A job on its way to a cluster.

    ``secrets`` hold the payload between them. ``labels`` are the job's and its pods',
    ``annotations`` the job's only. ``minor`` is the server's version, Kubernetes 1.x.
    """

    spec: JobSpec
    info: JobInfo
    namespace: str
    secrets: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    minor: int = 36
    runtime: Runtime = field(default_factory=Runtime)

    @property
    def name(self) -> str:
        """The name of the job, and of all that belongs to it alone."""
        return self.info.name

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the job object."""
        return {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
        }
