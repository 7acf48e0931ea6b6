"""A NetworkPolicy: the pods of one job reach each other, on any port, and nobody else reaches them (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.paths import POLICIES
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.spec.cluster.names import MANAGED_BY


def asked(sub: Submission) -> list[dict[str, Any]]:
    """Return the policy that ``--network-policy`` requests; the first attempt's holds for later ones, too."""
    return [policy(sub.info.name, sub.namespace, sub.labels)] if sub.spec.cluster.network_policy else []


def policy(name: str, namespace: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the policy of the job whose pods, of all attempts, have these labels."""
    pods = {"podSelector": {"matchLabels": {key: labels[key] for key in _OF_JOB}}}
    return {
        "apiVersion": POLICIES.group_version,
        "kind": POLICIES.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        # Outgoing traffic, to a store or a package index, is left as the namespace has it.
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }


_OF_JOB = (MANAGED_BY, labelling.JOB, labelling.RUN)
