"""What Kueue says about a job and its queues: Workloads and queues as facts (Kueue 0.19; pure).

Kueue holds a job back by the job's own suspension field, which it resets while the job's Workload is
admitted, whoever set it. So for a job in a queue, only the Workload says what a suspension means.

A LocalQueue is a namespace's entry to a ClusterQueue, which has the quota; ClusterQueues of one cohort lend
each other what they don't use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.state.facts import events as ev

UID = "kueue.x-k8s.io/job-uid"  # label of a Workload: the uid of the job object that it is for


def owner(workload: Object) -> str:
    """Return the uid of the job object that a Workload is for; "" if it is for none."""
    label = (reading.meta(workload).get("labels") or {}).get(UID)
    owners = reading.meta(workload).get("ownerReferences") or ()
    return str(
        label or next((reference.get("uid") for reference in owners if reference.get("controller")), "")
    )


def queue(obj: Object) -> str:
    """Return the queue that a job object names; "" for none."""
    labels = reading.meta(obj).get("labels") or {}
    return str(labels.get(labelling.QUEUE) or "")


def facts(workload: Object) -> list[ev.Event]:
    """Return what a Workload says about its job."""
    spec, events = workload.get("spec") or {}, list[ev.Event]()
    evicted = reading.condition(workload, "Evicted")
    if evicted is not None:
        reason, text = _explanation(evicted)
        events.append(ev.Evicted(reading.since(evicted), reason, text))
        if reason.startswith(ev.GIVEN_UP) and not _active(spec):
            events.append(ev.Verdict(reading.since(evicted), False, reason, text))
    admitted = evicted is None and reading.condition(workload, "Admitted") is not None
    parked = spec.get("queueName") == labelling.HELD  # by us: that the queue doesn't exist is no trouble
    if not (admitted or parked):
        # Why a Workload isn't admitted, in Kueue's words, and since when
        evicted = reading.condition(workload, "Evicted")
        if evicted is not None and not _active(workload.get("spec") or {}):
            reason, text, since = (*_explanation(evicted), reading.since(evicted))
        else:
            waits = reading.condition(workload, "QuotaReserved", "False")
            # Just after an eviction this condition only repeats the message of the eviction.
            if waits is not None and (evicted is None or _explanation(waits)[1] != _explanation(evicted)[1]):
                reason, text, since = (*_explanation(waits), reading.since(waits))
            elif evicted is not None:
                reason, text, since = (*_explanation(evicted), reading.since(evicted))
            elif not _active(workload.get("spec") or {}):
                reason, text, since = (ev.DEACTIVATED, "", 0.0)  # Kueue hasn't noticed yet
            else:
                checks = reading.status(workload).get("admissionChecks") or ()
                open_ = [check for check in checks if check.get("state") != "Ready"]
                words = "; ".join(
                    f"{state.get('name')}: {state.get('message') or state.get('state')}" for state in open_
                )
                sentence = f"an admission check of its queue isn't through: {words}" if words else ""
                reason, text, since = ("AdmissionChecks" if words else "", sentence, 0.0)
    else:
        reason, text, since = ("", "", 0.0)
    if not _active(spec):
        reason = reason or ev.DEACTIVATED  # Kueue says nothing more once the job has ended
    return [
        *events,
        ev.Queued(
            since or reading.created(workload),
            str(spec.get("queueName") or ""),
            admitted,
            reason,
            text,
            held=not _active(spec) or parked,
            needs=needs(workload),
            order=str(reading.meta(workload).get("resourceVersion") or ""),
        ),
    ]


def unseen(obj: Object, suspended: bool) -> list[ev.Event]:
    """Return what a job object alone says about its queue, if its Workload can't be read, or not yet."""
    name = queue(obj)
    held = name == labelling.HELD
    return [ev.Queued(reading.created(obj), name, not suspended, held=held)] if name else []


class Wait(NamedTuple):
    """A Workload that waits for quota; sorts as its queue does, by priority, then by age."""

    priority: int
    since: str
    name: str
    queue: str
    job: str = ""  # the uid of its object


def wait(workload: Object) -> Wait | None:
    """Return how a Workload waits for quota; None if it is admitted, has ended, or is held."""
    spec, meta = workload.get("spec") or {}, reading.meta(workload)
    ended = reading.condition(workload, "Finished") or reading.condition(workload, "QuotaReserved")
    if ended is not None or not _active(spec):
        return None
    since, name = str(meta.get("creationTimestamp") or ""), str(meta.get("name") or "")
    queued = str(spec.get("queueName") or "")
    return Wait(-int(spec.get("priority") or 0), since, name, queued, owner(workload))


def standing(own_wait: Wait | None, waits: Iterable[Wait], look: Look, now: float) -> list[ev.Standing]:
    """Return where a waiting Workload stands in its queue, which has only Workloads of its namespace.

    Their order is Kueue's own, if that is known for exactly these Workloads: an evicted one doesn't show its
    place. Else it is by priority and age.
    """
    if own_wait is None:
        return []
    queued = sorted(waiting for waiting in waits if waiting.queue == own_wait.queue)
    if own_wait not in queued:
        return []
    is_known = look.places.keys() == {waiting.job for waiting in queued}
    place = look.places[own_wait.job] if is_known else queued.index(own_wait) + 1
    return [ev.Standing(now, place, len(queued), _amount_texts(look.used), _amount_texts(look.quota))]


def _amount_texts(amounts: Mapping[str, float]) -> dict[str, str]:
    return {
        name: f"{int(number)}" if number == int(number) else f"{number:g}" for name, number in amounts.items()
    }


def needs(workload: Object) -> dict[str, str]:
    """Return what all pods of the job request, by resource, where the Workload says so."""
    status = reading.status(workload)
    parts = [item.get("resources") for item in status.get("resourceRequests") or ()]
    admission = status.get("admission") or {}
    parts += [item.get("resourceUsage") for item in admission.get("podSetAssignments") or ()]
    totals: dict[str, str] = {}
    for part in parts:
        for name, size in (part or {}).items():
            totals[name] = f"{totals[name]} + {size}" if name in totals else str(size)
    return totals


def _explanation(condition: Object) -> tuple[str, str]:
    return str(condition.get("reason") or ""), str(condition.get("message") or "")


def _active(spec: Object) -> bool:
    return spec.get("active") is not False


class Look(NamedTuple):
    """One look at a queue; what may not be read is empty.

    ``places`` are those of the waiting jobs, from 1, by the uid of the job object. ``used`` and ``quota`` are
    by resource: of the ClusterQueue or, if there is no ``quota``, of the LocalQueue's jobs alone.
    """

    places: Mapping[str, int] = {}
    used: Mapping[str, float] = {}
    quota: Mapping[str, float] = {}


def cluster_queue(local: Object) -> str:
    """Return the ClusterQueue that a LocalQueue belongs to."""
    return str((local.get("spec") or {}).get("clusterQueue") or "")


def places(summary: Object) -> dict[str, int]:
    """Return the places in a queue from its PendingWorkloadsSummary, by the uid of the job object."""
    positions: dict[str, int] = {}
    for item in summary.get("items") or ():
        for owner in reading.meta(item).get("ownerReferences") or ():
            positions[str(owner.get("uid"))] = int(item.get("positionInLocalQueue") or 0) + 1
    return positions


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
    """Return the most that a ClusterQueue could have, by resource, with what it may borrow from ``others``.

    It is infinite if those are unknown (None), and nothing limits what is borrowed.
    """
    lent: dict[tuple[str, str], float] | None = None
    if others is not None:
        # What may be borrowed from these queues, by flavor and resource: only of the same flavor
        lent = {}
        for lendable_queue in others:
            for flavor in _flavors(lendable_queue):
                for resource in flavor.get("resources") or ():
                    key = str(flavor.get("name")), str(resource.get("name"))
                    quota = _amount(resource, "nominalQuota", 0.0)
                    lent[key] = lent.get(key, 0.0) + min(quota, _amount(resource, "lendingLimit", quota))
    totals: dict[str, float] = {}
    for flavor in _flavors(queue):
        for resource in flavor.get("resources") or ():
            name = str(resource.get("name"))
            limit = _amount(resource, "borrowingLimit", math.inf)
            spare = math.inf if lent is None else lent.get((str(flavor.get("name")), name), 0.0)
            totals[name] = totals.get(name, 0.0) + _amount(resource, "nominalQuota", 0.0) + min(limit, spare)
    return totals


def _amount(limits: Object, field: str, default: float) -> float:
    text = limits.get(field)
    with suppress(ValueError):  # a number too big to limit anything
        return default if text is None else amount(str(text))
    return math.inf


def _flavors(queue: Object) -> list[Object]:
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    return [flavor for group in groups for flavor in group.get("flavors") or ()]


def _summed(flavors: Iterable[Object], field: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for flavor in flavors:
        for resource in flavor.get("resources") or ():
            with suppress(ValueError):  # a number too big to limit anything
                name = str(resource.get("name"))
                totals[name] = totals.get(name, 0.0) + amount(str(resource.get(field) or "0"))
    return totals
