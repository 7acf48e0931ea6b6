"""A plain Indexed Job with a headless Service: it needs no operator."""

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.indexedjob.manifest import API, CONTAINER, SUCCESS_POLICY, manifests
from nbtorchjob.backends.kubernetes.kinds.indexedjob.status import facts, node

__all__ = ["KIND"]

KIND = Kind(
    name="indexedjob",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["elastic", "elastic backoff", "backoff", "deadline", "priority class"]),
    minor=24,  # Indexed Jobs became stable
    since={"elastic": SUCCESS_POLICY},
    suspend=("spec", "suspend"),
)
