"""``Submission``: all that a manifest is made of. Making one is pure, so a dry run shows what is sent.

An optional NetworkPolicy lets only the pods of one job reach each other, on any port.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import POLICIES
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.cluster.grammars import MANAGED_BY
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import RunPolicy
from nbtorchjob.state import US, JobInfo


class Runtime(FrozenDataclass):
    """The runtime that a job refers to, if its kind has runtimes, and which of the runtime's jobs trains."""

    name: str
    kind: str
    job: str


class Submission(FrozenDataclass):
    """A job, or a later attempt of one, on its way to a cluster.

    ``secrets`` together hold the payload. ``labels`` are the job's and its pods',
    ``annotations`` only the job's. ``minor`` is the server's version, Kubernetes 1.x.

    ``attempt`` counts from 1, where we start attempts (``JobInfo.retry_owner``). ``remaining_s`` is what is
    left of the deadline; None is all of it. With ``on_demand`` a preemptible job stays off preemptible
    hosts. ``runtime`` is for a kind that has runtimes, None for its default.
    ``owner`` refers to the first attempt's object, which owns the later ones.
    """

    spec: JobSpec
    info: JobInfo
    namespace: str
    secrets: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    minor: int = 36
    runtime: Runtime | None = None
    attempt: int = 1
    remaining_s: int | None = None
    on_demand: bool = False
    owner: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the job object, and of everything that belongs to it alone."""
        return labelling.attempt_name(self.info.name, self.attempt)

    @property
    def domain(self) -> str:
        """The name of the Service that we make, the domain of the job's pods."""
        return labelling.run_name(self.name, self.info)

    @property
    def retried_by_us(self) -> bool:
        """Whether we start attempts: any pod that ends badly then ends this attempt."""
        return self.info.retry_owner == US

    @property
    def policy(self) -> RunPolicy:
        """The spec's run policy."""
        return self.spec.launch.run_policy or RunPolicy()

    @property
    def retries(self) -> int:
        """How often the job's own controller tries again after a failure."""
        retry = self.spec.retry
        return retry.retries if retry and not self.retried_by_us else self.policy.backoff_limit or 0

    @property
    def deadline_s(self) -> int | None:
        """Seconds that this object may run."""
        deadline = self.policy.active_deadline_seconds
        return deadline if deadline is None or self.remaining_s is None else max(self.remaining_s, 1)

    @property
    def ttl_s(self) -> int | None:
        """Seconds after which the cluster may remove this object by itself."""
        # The first attempt's object owns the others: they would go with it.
        return None if self.retried_by_us else self.policy.ttl_seconds_after_finished

    @property
    def marks(self) -> dict[str, str]:
        """The labels of the job object, its pods and its Service."""
        return {**self.labels, **({labelling.ATTEMPT: str(self.attempt)} if self.retried_by_us else {})}

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the job object."""
        owned = {"ownerReferences": [dict(self.owner)]} if self.owner else {}
        return {
            "name": self.name,
            "namespace": self.namespace,
            "labels": self.marks,
            "annotations": dict(self.annotations),
            **owned,
        }

    @property
    def queued_metadata(self) -> dict[str, Any]:
        """``metadata`` with the labels that tell Kueue the job's queue, and its priority there."""
        cluster, metadata = self.spec.cluster, self.metadata
        labels = {labelling.QUEUE: cluster.queue, labelling.QUEUE_PRIORITY: cluster.workload_priority}
        metadata["labels"] |= {label: value for label, value in labels.items() if value}
        return metadata


def network_policies(sub: Submission) -> list[dict[str, Any]]:
    """Return the policy that ``--network-policy`` requests; the first attempt's holds for later ones, too."""
    return [policy(sub)] if sub.spec.cluster.network_policy else []


def policy(sub: Submission) -> dict[str, Any]:
    """Return the policy of the job's pods, of all attempts."""
    name, labels = labelling.run_name(sub.info.name, sub.info), dict(sub.labels)
    pods = {"podSelector": {"matchLabels": {key: labels[key] for key in _OF_JOB}}}
    return {
        "apiVersion": POLICIES.group_version,
        "kind": POLICIES.kind,
        "metadata": {"name": name, "namespace": sub.namespace, "labels": labels},
        # Outgoing traffic, to a store or a package index, is left as the namespace has it.
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }


_OF_JOB = (MANAGED_BY, labelling.JOB, labelling.RUN)
