"""Volcano's Job (1.15)."""

from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.kinds.volcano.manifest import API, CONTAINER, keeps, manifests
from nbtorchjob.backends.kubernetes.kinds.volcano.status import facts, node, restarts

__all__ = ["KIND"]

# It has no field that suspends: that takes a Command of bus.volcano.sh.
KIND = Kind(
    name="volcano",
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["elastic", "elastic ttl", "backoff", "priority class", "ttl"]),
    keeps=keeps,
    notes={
        "deadline": "Volcano has none (1.15)",
        "clean pods": "Volcano keeps the ended pods of a job's last start",
        "backoff": "counts restarts of all pods",
        "keeps": "policies by exit code start all pods again, as often as maxRetry says",
        "suspend": "AbortJob and ResumeJob, as Commands",
    },
    children={"PodGroup": "{name}-{uid}"},
    restarts=restarts,
)
