"""What Kueue says of a job: its Workload as facts (Kueue 0.19, v1beta2 and v1beta1; pure).

Kueue holds a job of its queues by the job's own field for a suspension, which it takes back while the job's
Workload is admitted, whoever set it. So of a job in a queue only the Workload says what a suspension means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.queues import Look
from nbtorchjob.backends.kubernetes.objects.reading import Object
from nbtorchjob.state import events as ev

UID = "kueue.x-k8s.io/job-uid"  # label of a Workload: the uid of the job object that it is for


def owner(workload: Object) -> str:
    """Return the uid of the job object that a Workload is for; "" where it is for none."""
    found = (reading.meta(workload).get("labels") or {}).get(UID)
    owners = reading.meta(workload).get("ownerReferences") or ()
    return str(found or next((each.get("uid") for each in owners if each.get("controller")), ""))


def queue(obj: Object) -> str:
    """Return the queue that a job object names; "" for none."""
    labels = reading.meta(obj).get("labels") or {}
    return str(labels.get(labelling.QUEUE) or "")


def facts(workload: Object) -> list[ev.Event]:
    """Return what a Workload says of its job."""
    spec, found = workload.get("spec") or {}, list[ev.Event]()
    evicted = reading.condition(workload, "Evicted")
    if evicted is not None:
        reason, text = _said(evicted)
        found.append(ev.Evicted(reading.since(evicted), reason, text))
        if reason.startswith(ev.GIVEN_UP) and not _active(spec):
            found.append(ev.Verdict(reading.since(evicted), False, reason, text))
    admitted = evicted is None and reading.condition(workload, "Admitted") is not None
    parked = spec.get("queueName") == labelling.HELD  # by us, and that there is no such queue is no trouble
    reason, text, since = _why(workload) if not (admitted or parked) else ("", "", 0.0)
    if not _active(spec):
        reason = reason or ev.DEACTIVATED  # of one whose job has ended Kueue says nothing more
    return [
        *found,
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
    """Return what a job object alone says of its queue, where nobody can, or yet can, read its Workload."""
    name = queue(obj)
    held = name == labelling.HELD
    return [ev.Queued(reading.created(obj), name, not suspended, held=held)] if name else []


class Wait(NamedTuple):
    """A Workload that waits for quota, as its queue orders such: by priority, then by age."""

    priority: int
    since: str
    name: str
    queue: str
    job: str = ""  # the uid of its object


def wait(workload: Object) -> Wait | None:
    """Return what a Workload waits as; None for one that is admitted, has ended, or is held."""
    spec, meta = workload.get("spec") or {}, reading.meta(workload)
    ended = reading.condition(workload, "Finished") or reading.condition(workload, "QuotaReserved")
    if ended is not None or not _active(spec):
        return None
    since, name = str(meta.get("creationTimestamp") or ""), str(meta.get("name") or "")
    queued = str(spec.get("queueName") or "")
    return Wait(-int(spec.get("priority") or 0), since, name, queued, owner(workload))


def standing(mine: Wait | None, waits: Iterable[Wait], look: Look, now: float) -> list[ev.Standing]:
    """Return where one that waits stands in its queue, which has no others than those of its namespace.

    Their order is Kueue's own where that is known of just these, as one that was evicted keeps no place that
    could be read off it; else by priority and age.
    """
    if mine is None:
        return []
    queued = sorted(each for each in waits if each.queue == mine.queue)
    if mine not in queued:
        return []
    known = look.places.keys() == {each.job for each in queued}
    place = look.places[mine.job] if known else queued.index(mine) + 1
    return [ev.Standing(now, place, len(queued), _written(look.used), _written(look.quota))]


def _written(amounts: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{int(each)}" if each == int(each) else f"{each:g}" for name, each in amounts.items()}


def needs(workload: Object) -> dict[str, str]:
    """Return what all pods of the job request, by resource, where the Workload says so."""
    said = reading.status(workload)
    parts = [each.get("resources") for each in said.get("resourceRequests") or ()]
    admission = said.get("admission") or {}
    parts += [each.get("resourceUsage") for each in admission.get("podSetAssignments") or ()]
    found: dict[str, str] = {}
    for part in parts:
        for name, amount in (part or {}).items():
            found[name] = f"{found[name]} + {amount}" if name in found else str(amount)
    return found


def _why(workload: Object) -> tuple[str, str, float]:
    """Return why a Workload isn't admitted, in Kueue's words, and since when."""
    evicted = reading.condition(workload, "Evicted")
    if evicted is not None and not _active(workload.get("spec") or {}):
        return (*_said(evicted), reading.since(evicted))
    waits = reading.condition(workload, "QuotaReserved", "False")
    # Just after an eviction it only repeats what that says.
    if waits is not None and (evicted is None or _said(waits)[1] != _said(evicted)[1]):
        return (*_said(waits), reading.since(waits))
    if evicted is not None:
        return (*_said(evicted), reading.since(evicted))
    if not _active(workload.get("spec") or {}):
        return (ev.DEACTIVATED, "", 0.0)  # Kueue hasn't taken note yet
    checks = reading.status(workload).get("admissionChecks") or ()
    open_ = [each for each in checks if each.get("state") != "Ready"]
    words = "; ".join(f"{each.get('name')}: {each.get('message') or each.get('state')}" for each in open_)
    said = f"an admission check of its queue isn't through: {words}" if words else ""
    return ("AdmissionChecks" if words else "", said, 0.0)


def _said(condition: Object) -> tuple[str, str]:
    return str(condition.get("reason") or ""), str(condition.get("message") or "")


def _active(spec: Object) -> bool:
    return spec.get("active") is not False
