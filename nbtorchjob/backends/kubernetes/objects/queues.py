"""What Kueue's queues say of themselves: who waits, what is used, what there is (Kueue 0.19; pure).

A LocalQueue is a namespace's door to a ClusterQueue, which has the quota; ClusterQueues of one cohort lend
each other what they don't use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.spec.cluster.quantities import amount


class Look(NamedTuple):
    """One look at a queue; what may not be read is empty.

    ``places`` are of those that wait, from 1, by the uid of the job object. ``used`` and ``quota`` are by
    resource: of the ClusterQueue, or where there is no ``quota``, of the LocalQueue's jobs alone.
    """

    places: Mapping[str, int] = {}
    used: Mapping[str, float] = {}
    quota: Mapping[str, float] = {}


def cluster_queue(local: Object) -> str:
    """Return the ClusterQueue that a LocalQueue belongs to."""
    return str((local.get("spec") or {}).get("clusterQueue") or "")


def places(summary: Object) -> dict[str, int]:
    """Return who waits in a queue, as its PendingWorkloadsSummary has them, by the uid of the job object."""
    found: dict[str, int] = {}
    for item in summary.get("items") or ():
        for owner in reading.meta(item).get("ownerReferences") or ():
            found[str(owner.get("uid"))] = int(item.get("positionInLocalQueue") or 0) + 1
    return found


def used(queue: Object) -> dict[str, float]:
    """Return what is reserved in a queue, by resource, over all its flavors."""
    return _summed(reading.status(queue).get("flavorsReservation") or (), "total")


def quota(queue: Object) -> dict[str, float]:
    """Return what a ClusterQueue has of its own, by resource, over all its flavors."""
    return _summed(_flavors(queue), "nominalQuota")


def cohort(queue: Object) -> str:
    """Return the cohort that a ClusterQueue borrows in; "" for none."""
    spec = queue.get("spec") or {}
    return str(spec.get("cohortName") or spec.get("cohort") or "")  # the latter in v1beta1


def plain(cohort: Object) -> bool:
    """Whether a cohort has only what its ClusterQueues have: no quota of its own, and no cohort above it."""
    spec = cohort.get("spec") or {}
    return not any(spec.get(name) for name in ("parentName", "parent", "resourceGroups"))


def most(queue: Object, others: Iterable[Object] | None) -> dict[str, float]:
    """Return what a ClusterQueue could ever have by resource, with what it may borrow of ``others``.

    It is infinite where nobody knows them (None), and nothing limits what is borrowed.
    """
    lent = _lendable(others) if others is not None else None
    found: dict[str, float] = {}
    for flavor in _flavors(queue):
        for each in flavor.get("resources") or ():
            name = str(each.get("name"))
            limit = _amount(each, "borrowingLimit", math.inf)
            spare = math.inf if lent is None else lent.get((str(flavor.get("name")), name), 0.0)
            found[name] = found.get(name, 0.0) + _amount(each, "nominalQuota", 0.0) + min(limit, spare)
    return found


def _lendable(queues: Iterable[Object]) -> dict[tuple[str, str], float]:
    """Return what others may borrow of these queues, by flavor and resource: only of the same flavor."""
    found: dict[tuple[str, str], float] = {}
    for queue in queues:
        for flavor in _flavors(queue):
            for each in flavor.get("resources") or ():
                key = str(flavor.get("name")), str(each.get("name"))
                quota = _amount(each, "nominalQuota", 0.0)
                found[key] = found.get(key, 0.0) + min(quota, _amount(each, "lendingLimit", quota))
    return found


def _amount(limits: Object, field: str, default: float) -> float:
    text = limits.get(field)
    with suppress(ValueError):  # a number too big to limit anything
        return default if text is None else amount(str(text))
    return math.inf


def _flavors(queue: Object) -> list[Object]:
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    return [flavor for group in groups for flavor in group.get("flavors") or ()]


def _summed(flavors: Iterable[Object], field: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for flavor in flavors:
        for each in flavor.get("resources") or ():
            with suppress(ValueError):  # a number too big to limit anything
                name = str(each.get("name"))
                found[name] = found.get(name, 0.0) + amount(str(each.get(field) or "0"))
    return found
