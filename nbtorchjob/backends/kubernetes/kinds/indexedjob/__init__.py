"""A plain Indexed Job with a headless Service: it needs no operator."""

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.indexedjob.manifest import (
    API,
    CONTAINER,
    SUCCESS_POLICY,
    keeps,
    manifests,
)
from nbtorchjob.backends.kubernetes.kinds.indexedjob.status import facts, node

__all__ = ["KIND"]

KIND = Kind(
    name="indexedjob",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(
        [
            "elastic",
            "elastic backoff",
            "backoff",
            "deadline",
            "ttl",
            "elastic ttl",
            "priority class",
        ]
    ),
    keeps=keeps,
    notes={
        "clean pods": "a Job keeps its ended pods",
        "backoff": "counts the failures of each node",
        "keeps": "backoffLimitPerIndex bounds failures, and podFailurePolicy tells them from preemptions",
        "suspend": "spec.suspend",
    },
    minor=24,  # Indexed Jobs became stable
    since={"elastic": SUCCESS_POLICY},
    suspend=("spec", "suspend"),
)
