"""Volcano's Job (1.15)."""

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.volcano.manifest import API, CONTAINER, manifests
from nbtorchjob.backends.kubernetes.kinds.volcano.status import facts, node

__all__ = ["KIND"]

# It has no field that suspends: that takes a Command of bus.volcano.sh.
KIND = Kind(
    name="volcano",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["elastic", "backoff", "priority class"]),
)
