"""Whether a host could hold a pod if it were empty: by its resources, labels and taints (pure).

This follows the scheduler's filters (Kubernetes 1.36: NodeResourcesFit, NodeAffinity, TaintToleration),
except for what other pods use and for what only the scheduler knows, such as the topology of volumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nbtorchjob.spec.cluster.quantities import amount

Object = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_HARD = ("NoSchedule", "NoExecute")
_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda has, values: has in values,
    "NotIn": lambda has, values: has not in values,
    "Exists": lambda has, values: has is not None,
    "DoesNotExist": lambda has, values: has is None,
    "Gt": lambda has, values: _whole(has) > _whole(*values[:1]),
    "Lt": lambda has, values: has is not None and _whole(has) < _whole(*values[:1]),
}


def requested(pod: Object) -> dict[str, float]:
    """Return what a pod's containers request together, by resource; a limit alone is a request, too."""
    found: dict[str, float] = defaultdict(float)
    for container in pod.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, number in _amounts(asked):
            found[name] += number
    return dict(found)


def room(host: Object) -> dict[str, float]:
    """Return what a host has for pods, by resource."""
    status = host.get("status") or {}
    return dict(_amounts(status.get("allocatable") or {}))


def _amounts(found: Object) -> Iterator[tuple[str, float]]:
    """Yield what can be read; what can't, as in a faulty patch, is left for the server to refuse."""
    for name, text in found.items():
        with suppress(ValueError):
            yield name, amount(str(text))


def matches(pod: Object, host: Object) -> bool:
    """Whether a host has the labels that the pod's node selector and affinity require."""
    labels = host["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    fields = {"metadata.name": host["metadata"]["name"]}
    return terms is None or any(_term(term, labels, fields) for term in terms)


def _term(term: Object, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    wanted = [(each, labels) for each in term.get("matchExpressions") or ()]
    wanted += [(each, fields) for each in term.get("matchFields") or ()]
    return bool(wanted) and all(
        # What the server will refuse anyway rules out no host.
        each.get("operator") not in _OPERATORS
        or _OPERATORS[each["operator"]](has.get(each.get("key")), each.get("values") or ())
        for each, has in wanted
    )


def _whole(text: str | None = None) -> float:
    try:
        return int(text or "")
    except ValueError:
        return float("-inf")


def untolerated(pod: Object, host: Object) -> list[Object]:
    """Return the taints of a host that keep the pod away."""
    taints = [taint for taint in (host.get("spec") or {}).get("taints") or () if taint.get("effect") in _HARD]
    return [
        taint for taint in taints if not any(_tolerates(each, taint) for each in pod.get("tolerations") or ())
    ]


def _tolerates(toleration: Object, taint: Object) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if (key and key != taint["key"]) or (effect and effect != taint["effect"]):
        return False
    exists = toleration.get("operator") == "Exists"
    return exists or (bool(key) and (toleration.get("value") or "") == (taint.get("value") or ""))
