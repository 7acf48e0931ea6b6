"""Labels, annotations and owners: a new kernel finds a job's objects by them, and tells them from others.

Data that may be big, or holds values of the notebook, isn't annotated: it is in the payload's Secret.

Anybody who may create objects in a namespace may give them any labels, so labels only find candidates.

    the first attempt   has the name in its label, and no number above 1
    a later attempt     is called ``<job>-a<number>``, has the first attempt's labels, and is owned by it, by
                        uid
    a pod               is controlled by an attempt, by uid; a TrainJob's pod by a Job that is named after it

An owner reference can be forged, too, by anybody who may create job objects there; the admission policy of
``tend --manifests`` refuses that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any, TypeAlias

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.errors import DamagedError, SubmitError
from nbtorchjob.spec import digits
from nbtorchjob.spec.cluster.grammars import DOMAIN, MANAGED_BY
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts import events, factlines
from nbtorchjob.state.facts.events import Annotated, AttemptPaid, CancelRequested, Verdict
from nbtorchjob.state.facts.factlines import sane
from nbtorchjob.state.info import read, write

MANAGER = "nbtorchjob"
JOB = f"{DOMAIN}/job"  # label: the job's name
USER = f"{DOMAIN}/user"  # label: who submitted it
RUN = f"{DOMAIN}/run"  # label: which job of that name, as a name may be used again after a deletion
INFO = f"{DOMAIN}/info"  # annotation: the job's record, written at submission
CANCELLED = f"{DOMAIN}/cancelled"  # annotation: when its end was requested (seconds since the epoch)
STOPPED = f"{DOMAIN}/stopped"  # annotation: when it failed for good, though its operator goes on
ATTEMPT = f"{DOMAIN}/attempt"  # label: which attempt, from 1, where we start them
PAID = f"{DOMAIN}/paid"  # annotation: when the attempt before it ended, which budget that drew on, and why
GROUP = f"{DOMAIN}/group"  # label: on what the runs of a group share, the group's name
SHARED = f"{DOMAIN}/shared"  # annotation: on a run's own Secret, those that hold its group's payload
TURN = f"{DOMAIN}/turn"  # annotation: on a run that was sent suspended, until it is started: AWAITED, or HELD
NUMBER = f"{DOMAIN}/number"  # annotation: on a pool, the number of the newest job that was sent there
NOTE = f"{DOMAIN}/note"  # annotation: a person's note and tags, as JSON
CALL = f"{DOMAIN}/call"  # annotation: a digest of what runs and how
_EARLY = "Early"  # after the time in CANCELLED, before the reason: what a run reported ended it
QUEUE = "kueue.x-k8s.io/queue-name"  # label: read by Kueue, where there is one
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"  # label: the WorkloadPriorityClass, read by Kueue, too
HELD = "nbtorchjob-suspended"  # a queue that doesn't exist: a job in it is never admitted
RETURNS_TO = f"{DOMAIN}/queue"  # annotation: the queue that such a job is to go back to
POKED = f"{DOMAIN}/looked-at"  # annotation: on a job that its operator is to look at once more
OURS = f"{MANAGED_BY}={MANAGER}"  # selects what nbtorchjob made

_SECRET = ("sources", "label", "ships", "captured")
# An object holds 256 KiB of annotations, and a list of 1,000 jobs carries theirs.
_INFO_BYTES = 64 * 1024
_DIGITS = 8  # of a run's digest, in a name
_MOST_TEXT = 2000  # characters of a cluster's message


def labels(info: JobInfo, user: str = "", more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the labels of every object of the job; ``more`` are those that the spec requests."""
    who = {USER: word(user)} if word(user) else {}
    return {**(more or {}), MANAGED_BY: MANAGER, JOB: info.name, RUN: info.run, **who}


def shared(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a job object that all objects of the job have."""
    own = obj["metadata"].get("labels") or {}
    return {key: own[key] for key in (MANAGED_BY, JOB, RUN, USER) if key in own}


def of_group(info: JobInfo, user: str) -> dict[str, str]:
    """Return the labels of objects that the runs of ``info``'s group share."""
    of_one = labels(info, user)
    return {GROUP: info.group, **{key: of_one[key] for key in of_one.keys() - {JOB, RUN}}}


def of(name: str) -> str:
    """Return the selector of a job's objects."""
    return f"{OURS},{JOB}={name}"


def of_user(user: str) -> str:
    """Return the selector of all jobs that a user submitted; an account without a name has no label."""
    return f"{OURS},{USER}={word(user)}" if word(user) else f"{OURS},!{USER}"


def is_ours(obj: Mapping[str, Any]) -> bool:
    """Whether nbtorchjob made an object, or something that copied its labels."""
    return (obj["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER


def belongs(obj: Mapping[str, Any], info: JobInfo) -> bool:
    """Whether an object is that job's; pods of an earlier job of its name may still be ending."""
    own = obj["metadata"].get("labels") or {}
    return own.get(JOB) == info.name and own.get(RUN, info.run) == info.run


def run_name(name: str, info: JobInfo) -> str:
    """Return ``name`` with a suffix that tells the job from all others that have had its name.

    What a cluster caches by name (a kubelet Secrets, a resolver hosts) then never belongs to an earlier job.
    """
    return f"{name}-{sha256(info.run.encode()).hexdigest()[:_DIGITS]}"


def attempt_name(name: str, attempt: int) -> str:
    """Return the name of the job's attempt of that number; the first has the job's own."""
    return name if attempt == 1 else f"{name}-a{attempt}"


def attempt(obj: Mapping[str, Any]) -> int:
    """Return the attempt that a job object or a pod belongs to; 1 where they aren't numbered."""
    return digits((obj["metadata"].get("labels") or {}).get(ATTEMPT)) or 1


def info_annotations(info: JobInfo, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the annotations of the job object. Raises ``SubmitError`` if they'd be too big."""
    named = {field.name for field in fields(info)} - {"sources", "ships", "captured"}
    # The label is written without the call's arguments.
    name, call, _ = info.label.partition("(")
    text = write(replace(info, label=f"{name}(…)" if call else name), named)
    if len(text) > _INFO_BYTES:
        raise SubmitError(
            f"{info.name}: the job's record takes {len(text):,} bytes, but its annotation holds "
            f"{_INFO_BYTES:,}: shorten env or pod_patch, or pass big values as arguments"
        )
    return {**(more or {}), INFO: text, CALL: info.call}


def info(obj: Mapping[str, Any]) -> JobInfo | None:
    """Return the job's record, without its sources; None where it isn't one of ours."""
    text = (obj["metadata"].get("annotations") or {}).get(INFO)
    try:
        return read(text or "", "kubernetes", obj["metadata"].get("name", ""))
    except DamagedError:
        return None


def extra(info: JobInfo) -> bytes:
    """Return the part of ``info`` that goes into the payload's Secret."""
    return write(info, _SECRET).encode()


def with_extra(info: JobInfo, data: bytes) -> JobInfo:
    """Return ``info`` with what :func:`extra` returned; raises ``DamagedError`` for anything else."""
    more = read(data, "kubernetes", info.address, onto=info)
    return replace(info, **{name: getattr(more, name) for name in _SECRET})


def wish(time: float, early: str = "") -> str:
    """Return the text of ``CANCELLED``: when the end was requested, and why a run was stopped early."""
    return mark(time, _EARLY, early) if early else mark(time)


def cancelled(obj: Mapping[str, Any]) -> list[CancelRequested]:
    """Return whether, when and why we were asked to end the job."""
    time = _mark(obj, CANCELLED)
    reason, _, early = _words(obj, CANCELLED).partition(" ")
    return [] if time is None else [CancelRequested(time, early if reason == _EARLY else "")]


def note(fact: Annotated) -> str:
    """Return the text of ``NOTE``."""
    return json.dumps(factlines.to_json(fact), ensure_ascii=False)


def number(obj: Mapping[str, Any]) -> int:
    """Return the number of a pool's newest job; 0 before the first."""
    return max(0, digits((obj["metadata"].get("annotations") or {}).get(NUMBER)) or 0)


def noted(obj: Mapping[str, Any]) -> list[Annotated]:
    """Return the note and the tags that a person has put on the job."""
    text = (obj["metadata"].get("annotations") or {}).get(NOTE)
    with suppress(*factlines.UNREADABLE):  # anybody may have written it
        fact = factlines.believed(json.loads(text or "null"))
        return [fact] if isinstance(fact, Annotated) else []
    return []


def parked(queue: str) -> dict[str, Any]:
    """Return the metadata that keeps a job out of every queue until it is to go to ``queue``."""
    return {"labels": {QUEUE: HELD}, "annotations": {RETURNS_TO: queue}}


def returned(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that puts a :func:`parked` job into its queue; empty for any other."""
    meta = obj["metadata"]
    if (meta.get("labels") or {}).get(QUEUE) != HELD:
        return {}
    name = (meta.get("annotations") or {}).get(RETURNS_TO)
    return {"labels": {QUEUE: name}, "annotations": {RETURNS_TO: None}}


def turn(obj: Mapping[str, Any]) -> str:
    """Return why a run hasn't been started yet, AWAITED or HELD; "" for any other job."""
    annotation = (obj["metadata"].get("annotations") or {}).get(TURN)
    return str(annotation) if annotation in (events.AWAITED, events.HELD) else ""


def stopped(obj: Mapping[str, Any]) -> list[Verdict]:
    """Return whether, when and why we ended a job, or an attempt, that its operator would have continued."""
    time = _mark(obj, STOPPED)
    reason, _, text = _words(obj, STOPPED).partition(" ")
    return [] if time is None else [Verdict(time, False, reason or "Stopped", text)]


def paid(obj: Mapping[str, Any]) -> list[AttemptPaid]:
    """Return which budget the attempt before this one drew on, and why."""
    time, number = _mark(obj, PAID), attempt(obj) - 1
    budget, _, text = _words(obj, PAID).partition(" ")
    return [] if time is None or number < 1 else [AttemptPaid(time, number, budget, text)]


def mark(time: float, reason: str = "", text: str = "") -> str:
    """Return the text of an annotation: when something was requested, why in one word, and more text."""
    return f"{time:.3f} {reason} {text[:_MOST_TEXT]}".rstrip()


def _words(obj: Mapping[str, Any], name: str) -> str:
    """Return the part of a :func:`mark` after its time."""
    return str((obj["metadata"].get("annotations") or {}).get(name, "")).partition(" ")[2]


def _mark(obj: Mapping[str, Any], name: str) -> float | None:
    try:
        return sane("time", float((obj["metadata"].get("annotations") or {})[name].partition(" ")[0]))
    except (KeyError, ValueError):  # anybody may have written it
        return None


def word(text: str) -> str:
    """Return ``text`` as a label's value."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")


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
    """Whether an object is deleted along with ``owner``."""
    return any(reference.get("uid") == owner["metadata"]["uid"] for reference in _owners(obj))


def is_pod(controls: Controls, pod: Object, attempts: Iterable[Object]) -> bool:
    """Whether a pod belongs to one of these attempts of a job."""
    controllers = [reference for reference in _owners(pod) if reference.get("controller")]
    return any(controls(controller, obj) for controller in controllers for obj in attempts)


def attempts(items: Iterable[Object]) -> list[tuple[Object, ...]]:
    """Group objects of one kind by the job that they belong to, in the order of its attempts."""
    items = [*items]
    jobs = [[item] for item in items if is_first(item)]
    by_uid = {job[0]["metadata"]["uid"]: job for job in jobs}
    for item in items:
        for reference in _owners(item):
            job = by_uid.get(reference.get("uid"))
            if job is not None and is_later(item, job[0]):
                job.append(item)
    return [tuple(sorted(job, key=labelling.attempt)) for job in jobs]


def _labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _owners(obj: Object) -> Iterator[Mapping[str, Any]]:
    yield from obj["metadata"].get("ownerReferences") or ()
