"""Finding jobs on clusters: by name, or all of them; and what their objects say without their logs."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from nbtorchjob import events as ev
from nbtorchjob import profiles
from nbtorchjob.backends.kubernetes import objects, places, secrets
from nbtorchjob.backends.kubernetes.client import Object
from nbtorchjob.backends.kubernetes.kept import Kept
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.packing import user
from nbtorchjob.backends.kubernetes.paths import PODS, SECRETS, Target
from nbtorchjob.backends.kubernetes.places import Place
from nbtorchjob.backends.kubernetes.pod import status
from nbtorchjob.backends.kubernetes.refusals import Refusal
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.errors import JobNotFoundError, SpecError
from nbtorchjob.state import JobInfo, JobState, apply, settled
from nbtorchjob.state.info import address

_LABEL = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True)
class Found:
    """A job's object, and where it is."""

    session: Session
    place: Place
    kind: Kind
    object: Object

    @property
    def target(self) -> Target:
        """The job object."""
        return Target(self.kind.api, self.place.namespace, self.object["metadata"]["name"])

    @cached_property
    def info(self) -> JobInfo:
        """What was written down at submission, but for the sources."""
        name: str = self.object["metadata"]["name"]
        found = objects.info(self.object) or JobInfo(name, backend="kubernetes")
        # An exported job may have been applied anywhere.
        place = {"context": self.place.context, "namespace": self.place.namespace, "kind": self.kind.name}
        return replace(found, name=name, place=place)

    @property
    def kept(self) -> Kept:
        """What this machine keeps of it."""
        return Kept(self.place.folder(self.info.name, self.object["metadata"]["uid"]))

    async def whole_info(self) -> JobInfo:
        """Give what was written down, the sources too: from this machine, else from the cluster."""
        kept = self.kept.info()
        if kept is not None and kept.call == self.info.call:
            return kept
        with suppress(Refusal, KeyError, ValueError):
            return objects.with_extra(self.info, secrets.value(await self.secret(), secrets.EXTRA))
        return self.info

    async def key(self) -> bytes:
        """Give the job's key. Raises ``Refusal``."""
        kept = self.kept.key()
        return kept or secrets.value(await self.secret(), secrets.KEY)

    async def secret(self) -> Object:
        """Give the first Secret of its payload. Raises ``Refusal``."""
        name = secrets.first_name(self.info.name)
        return await self.session.client.get(Target(SECRETS, self.place.namespace, name))

    async def pods(self) -> list[tuple[int, Object]]:
        """Give its pods there are now, each with the node that it is."""
        listing = await self.session.client.list(
            PODS, self.place.namespace, labels=objects.of(self.info.name)
        )
        return _numbered(self.kind, [pod for pod in listing.items if objects.belongs(pod, self.info)])


def looked_at() -> list[Place]:
    """Give where to look for jobs: where this user has sent some, and where the profile sends them."""
    found = dict.fromkeys(places.known())
    with suppress(SpecError):
        spec = profiles.default()
        if spec.backend == "kubernetes" and spec.cluster.namespace is not None:
            found[Place(spec.cluster.context or "", spec.cluster.namespace)] = None
    return list(found)


@contextmanager
def asking(place: Place) -> Iterator[None]:
    """Make a warning of a refusal: a place of long ago must hide no other one."""
    try:
        yield
    except Refusal as exc:
        warnings.warn(f"jobs in {place.namespace} can't be listed: {exc}", stacklevel=3)


async def find(name: str) -> Found:
    """Give the job of that name, or address (``JobInfo.address``).

    Raises ``JobNotFoundError``, and where a place couldn't be asked, so that nobody knows, ``Refusal``.
    """
    seen, (only, name) = _known.get(name), parsed(name)
    if not all(_LABEL.fullmatch(word) for word in (name, only.namespace if only else name)):
        raise JobNotFoundError(f"there is no job named {name!r} on the cluster")
    if seen is not None:
        with suppress(Refusal):  # it may have been deleted, and made again elsewhere
            return await _at(name, *seen)
    unasked: Refusal | None = None
    for place in [only] if only else looked_at():
        try:
            found = await selected(await session(place.context), place, objects.of(name))
        except Refusal as exc:
            unasked = exc
            continue
        if found:
            know(name, place, found[0].kind)
            return found[0]
    raise unasked or JobNotFoundError(f"there is no job named {name!r} on the cluster")


def parsed(address: str) -> tuple[Place | None, str]:
    """Take apart ``CONTEXT/NAMESPACE/NAME``, ``NAMESPACE/NAME`` or ``NAME``; contexts may have slashes."""
    where, _, name = address.rpartition("/")
    context, _, namespace = where.rpartition("/")
    return Place(context, namespace) if namespace else None, name


# Where jobs were seen last, by name and by address: for them one request is enough.
_known: dict[str, tuple[Place, Kind]] = {}


def know(name: str, place: Place, kind: Kind) -> None:
    """Remember where the job of that name is."""
    _known[name] = _known[address(place.context, place.namespace, name)] = (place, kind)


async def _at(name: str, place: Place, kind: Kind) -> Found:
    here = await session(place.context)
    return Found(here, place, kind, await here.client.get(Target(kind.api, place.namespace, name)))


def gone(name: str) -> tuple[JobInfo, Kept]:
    """Give what this machine keeps of a job that no cluster has any more. Raises ``JobNotFoundError``."""
    only, name = parsed(name)
    for place in [only] if only else looked_at():
        for folder in place.folders(name):
            info = Kept(folder).info()
            if info is not None:
                return info, Kept(folder)
    raise JobNotFoundError(f"there is no job named {name!r} on the cluster")


async def states(place: Place, *, everyone: bool) -> list[tuple[Found, JobState]]:
    """Give all jobs of a place, with what their objects and pods say. Raises ``Refusal``."""
    here = await session(place.context)
    labels = objects.OURS if everyone else objects.of_user(user())
    pods = here.client.list(PODS, place.namespace, labels=labels)
    jobs, listing = await asyncio.gather(selected(here, place, labels), pods)
    by_job: dict[str, list[Object]] = {}
    for pod in listing.items:
        by_job.setdefault(pod["metadata"]["labels"].get(objects.JOB, ""), []).append(pod)
    return [(job, _briefly(job, by_job.get(job.info.name, ()))) for job in jobs]


async def selected(here: Session, place: Place, labels: str) -> list[Found]:
    """Give the jobs with such labels, of the kinds that may be listed. Raises ``Refusal`` where none may."""
    kinds = await here.kinds()
    answers = await asyncio.gather(*(_of_kind(here, place, kind, labels) for kind in kinds))
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    # Many may use one kind of job, and know nothing of the others.
    if refusals and len(refusals) == len(kinds):
        raise refusals[0]
    return [job for answer in answers if not isinstance(answer, Refusal) for job in answer]


async def _of_kind(here: Session, place: Place, kind: Kind, labels: str) -> list[Found] | Refusal:
    try:
        listing = await here.client.list(kind.api, place.namespace, labels=labels)
    except Refusal as exc:
        if exc.status != 403:
            raise
        return exc
    return [Found(here, place, kind, item) for item in listing.items]


def _numbered(kind: Kind, pods: Iterable[Object]) -> list[tuple[int, Object]]:
    numbered = ((kind.node(pod), pod) for pod in pods)
    return [(node, pod) for node, pod in numbered if node is not None]


def of_object(kind: Kind, obj: Object) -> list[ev.Event]:
    """Give what a job's object says, its operator's words and our own marks."""
    found, stopped = kind.facts(obj), objects.stopped(obj)
    if stopped:  # by suspending it, which is no suspension then
        found = [fact for fact in found if not isinstance(fact, ev.Suspended)]
    return [*found, *stopped, *objects.cancelled(obj)]


def facts(job: Found, pods: Sequence[tuple[int, Object]]) -> list[ev.Event]:
    """Give what the objects of a job say."""
    found = of_object(job.kind, job.object)
    for node, pod in pods:
        found += status.facts(pod, node, job.kind.container)
    return found


def closed(state: JobState) -> JobState:
    """Give the state with its end, if it has come."""
    return apply(state, ev.Closed(end(state))) if settled(state) else state


def end(state: JobState) -> float:
    """When the job ended, by the cluster's clock where it said so: the same for everybody who asks."""
    if state.verdict is not None:
        return state.verdict.time  # a pod that runs on, as its policy lets it, is no part of the job
    ends = [life.exit.time for node in state.nodes.values() for life in node.lives.values() if life.exit]
    return max([*ends, *([state.cancelled] if state.cancelled else [])], default=time.time())


def concluded(job: Found) -> JobState:
    """Give what the job's object alone says."""
    return reduce(apply, of_object(job.kind, job.object), JobState(job.info))


def _briefly(job: Found, pods: Iterable[Object]) -> JobState:
    info = job.info
    found = facts(job, _numbered(job.kind, [pod for pod in pods if objects.belongs(pod, info)]))
    # Their logs, which say when ranks begin, aren't read for a list: a container that runs has begun.
    found += [
        ev.WorkersStarted(fact.time, fact.node, 0, 0, (), 0)
        for fact in found
        if isinstance(fact, ev.NodeStarted)
    ]
    return closed(reduce(apply, found, JobState(info)))
