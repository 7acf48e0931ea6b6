"""A NetworkPolicy: the pods of one job reach each other, on any port, and nobody else reaches them (pure)."""

from __future__ import annotations

from typing import Any

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.paths import POLICIES
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.spec.cluster.names import MANAGED_BY


def asked(sub: Submission) -> list[dict[str, Any]]:
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
