"""Which objects are a job's: by their names, their owners and the owners' uids together (pure).

Whoever may create objects in a namespace may give them any labels, so labels only find what may be a job's.

    the first attempt   has the name that its label says, and no number above 1
    a later attempt     is called ``<job>-a<number>``, has the first one's labels, and the first one owns it,
                        by uid
    a pod               is controlled by an attempt, by uid; one of a TrainJob by a Job that is named after it

A reference to an owner can be forged, too, by whoever may create job objects there; the admission policy of
``tend --manifests`` refuses that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from nbtorchjob.backends.kubernetes.objects import labelling

Object: TypeAlias = dict[str, Any]
# Whether a pod's controller, an owner reference, is a job object: ``Kind.controls``.
Controls: TypeAlias = Callable[[Mapping[str, Any], Object], bool]

_SAME = (labelling.JOB, labelling.RUN, labelling.USER)


def is_first(obj: Object) -> bool:
    """Whether an object is the first attempt of the job that its label names."""
    return labelling.attempt(obj) == 1 and _labels(obj).get(labelling.JOB) == obj["metadata"]["name"]


def is_later(obj: Object, first: Object) -> bool:
    """Whether an object is a later attempt of the job whose ``first`` one is given."""
    number, name = labelling.attempt(obj), first["metadata"]["name"]
    return (
        number > 1
        and obj["metadata"]["name"] == labelling.attempt_name(name, number)
        and all(_labels(obj).get(key) == _labels(first).get(key) for key in _SAME)
        and owned(obj, first)
    )


def owned(obj: Object, owner: Object) -> bool:
    """Whether an object goes when ``owner`` goes."""
    return any(each.get("uid") == owner["metadata"]["uid"] for each in _owners(obj))


def is_pod(controls: Controls, pod: Object, attempts: Iterable[Object]) -> bool:
    """Whether a pod is one of these attempts' of a job."""
    controllers = [each for each in _owners(pod) if each.get("controller")]
    return any(controls(each, obj) for each in controllers for obj in attempts)


def attempts(items: Iterable[Object]) -> list[tuple[Object, ...]]:
    """Return the objects of each job among those of one kind, in the order of its attempts."""
    items = [*items]
    jobs = [[item] for item in items if is_first(item)]
    by_uid = {job[0]["metadata"]["uid"]: job for job in jobs}
    for item in items:
        for each in _owners(item):
            job = by_uid.get(each.get("uid"))
            if job is not None and is_later(item, job[0]):
                job.append(item)
    return [tuple(sorted(job, key=labelling.attempt)) for job in jobs]


def _labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _owners(obj: Object) -> Iterator[Mapping[str, Any]]:
    yield from obj["metadata"].get("ownerReferences") or ()
