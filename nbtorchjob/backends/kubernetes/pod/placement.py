"""Which hosts a pod may run on: those that the spec asks for, preemptible ones, or all but those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.spec.cluster.tolerations import toleration

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def selector(sub: Submission) -> dict[str, str]:
    """Return the labels that hosts must have."""
    cluster = sub.spec.cluster
    return {**cluster.node_selector, **(cluster.spot_selector if _spot(sub) else {})}


def tolerations(sub: Submission) -> list[dict[str, str]]:
    """Return the pods' tolerations."""
    cluster = sub.spec.cluster
    spot = cluster.spot_toleration if _spot(sub) else ()
    return [toleration(text) for text in dict.fromkeys((*cluster.toleration, *spot))]


def elsewhere(template: dict[str, Any], sub: Submission) -> dict[str, Any]:
    """Return a pod template, kept off preemptible hosts where ``on_demand`` requires it.

    Applied after the user's patch: the terms of an affinity are alternatives, so each must exclude them.
    """
    cluster = sub.spec.cluster
    if not (sub.on_demand and cluster.preemptible and cluster.spot_selector):
        return template
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    required = {"nodeSelectorTerms": list(_without(terms, cluster.spot_selector))}
    return {
        **template,
        "spec": {**spec, "affinity": {**affinity, "nodeAffinity": {**node, _REQUIRED: required}}},
    }


def _without(terms: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    # A host without the label is one of them.
    others = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in labels.items()]
    for term in terms:
        yield {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *others]}


def _spot(sub: Submission) -> bool:
    return sub.spec.cluster.preemptible and not sub.on_demand
