"""A job's objects, and what they say without their logs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from nbtorchjob import events as ev
from nbtorchjob.backends.kubernetes import objects, secrets
from nbtorchjob.backends.kubernetes.client import Object
from nbtorchjob.backends.kubernetes.kept import Kept
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.packing import user
from nbtorchjob.backends.kubernetes.paths import PODS, SECRETS, Target
from nbtorchjob.backends.kubernetes.places import Place
from nbtorchjob.backends.kubernetes.pod import status
from nbtorchjob.backends.kubernetes.reading import created
from nbtorchjob.backends.kubernetes.refusals import Refusal
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.state import US, JobInfo, JobState, apply, settled
from nbtorchjob.state.blame import ABANDONED

_PAYLOAD_GONE = "no other attempt can be started: the job's payload was deleted from the cluster"


@dataclass(frozen=True)
class Found:
    """A job's object, that of its newest attempt, and where it is; ``earlier`` are those before it."""

    session: Session
    place: Place
    kind: Kind
    object: Object
    earlier: tuple[Object, ...] = ()

    @property
    def root(self) -> Object:
        """The object of the first attempt: all others belong to it."""
        return (*self.earlier, self.object)[0]

    @property
    def target(self) -> Target:
        """The job object."""
        return self._target(self.object)

    @property
    def whole(self) -> Target:
        """The object that all else of the job goes with."""
        return self._target(self.root)

    def _target(self, obj: Object) -> Target:
        return Target(self.kind.api, self.place.namespace, obj["metadata"]["name"])

    @cached_property
    def info(self) -> JobInfo:
        """What was written down at submission, but for the sources."""
        name: str = self.root["metadata"]["name"]
        found = objects.info(self.root) or JobInfo(name, backend="kubernetes")
        # An exported job may have been applied anywhere.
        place = {"context": self.place.context, "namespace": self.place.namespace, "kind": self.kind.name}
        return replace(found, name=name, place=place)

    @property
    def mine(self) -> bool:
        """Whether this user submitted it."""
        found = (self.root["metadata"].get("labels") or {}).get(objects.USER, "")
        return bool(found == objects.word(user()))

    @property
    def kept(self) -> Kept:
        """What this machine keeps of it."""
        return Kept(self.place.folder(self.info.name, self.root["metadata"]["uid"]))

    async def whole_info(self) -> JobInfo:
        """Give what was written down, the sources too: from this machine, else from the cluster."""
        kept = self.kept.info()
        if kept is not None and kept.call == self.info.call:
            return kept
        with suppress(Refusal, *ev.UNREADABLE):
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

    async def secrets(self) -> list[Object]:
        """Give all Secrets of its payload, one after the other: one answer would be too big.

        Raises ``Refusal``.
        """
        client, namespace, info = self.session.client, self.place.namespace, self.info
        listing = await client.list(SECRETS, namespace, labels=objects.of(info.name), bare=True)
        # Those of an earlier job of its name may still be there.
        names = [item["metadata"]["name"] for item in listing.items if objects.belongs(item, info)]
        return [await client.get(Target(SECRETS, namespace, name)) for name in names]

    async def pods(self) -> list[tuple[int, Object]]:
        """Give its pods there are now, each with the node that it is."""
        listing = await self.session.client.list(
            PODS, self.place.namespace, labels=objects.of(self.info.name)
        )
        return _numbered(self.kind, [pod for pod in listing.items if objects.belongs(pod, self.info)])


def _numbered(kind: Kind, pods: Iterable[Object]) -> list[tuple[int, Object]]:
    numbered = ((kind.node(pod), pod) for pod in pods)
    return [(node, pod) for node, pod in numbered if node is not None]


def of_object(kind: Kind, obj: Object) -> list[ev.Event]:
    """Give what a job's object says, its operator's words and our own marks."""
    found, stopped, number = kind.facts(obj), objects.stopped(obj), objects.attempt(obj)
    if stopped:  # by suspending it, which is no suspension then
        found = [fact for fact in found if not isinstance(fact, ev.Suspended)]
    began = [ev.AttemptBegan(created(obj), number)] if number > 1 else []
    numbered = [
        replace(fact, attempt=number) if isinstance(fact, ev.Verdict) else fact for fact in (*found, *stopped)
    ]
    given_up = [ev.Notice(fact.time, _PAYLOAD_GONE) for fact in stopped if fact.reason == ABANDONED]
    return [*began, *numbered, *given_up, *objects.cancelled(obj)]


def abandoned(time: float, attempt: int) -> list[ev.Event]:
    """Give what is known once no attempt can follow, as the job's payload is gone."""
    return [ev.Verdict(time, False, ABANDONED, attempt=attempt), ev.Notice(time, _PAYLOAD_GONE)]


def of_pod(kind: Kind, pod: Object, node: int) -> list[ev.Event]:
    """Give what a pod says of node ``node``."""
    number, restarts = objects.attempt(pod), kind.restarts(pod)

    def whose(fact: ev.Event) -> ev.Event:
        if isinstance(fact, ev.Waiting):
            return replace(fact, attempt=number, restarts=restarts)
        return replace(fact, attempt=number) if isinstance(fact, ev.NodeStarted) else fact

    return [whose(fact) for fact in status.facts(pod, node, kind.container)]


def facts(job: Found, pods: Sequence[tuple[int, Object]]) -> list[ev.Event]:
    """Give what the objects of a job say."""
    found = [fact for obj in (*job.earlier, job.object) for fact in of_object(job.kind, obj)]
    return [*found, *(fact for node, pod in pods for fact in of_pod(job.kind, pod, node))]


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
    """Give what the job's objects alone say."""
    return reduce(apply, facts(job, ()), JobState(job.info))


async def over(job: Found) -> bool:
    """Whether the job has ended, or somebody asked for its end. Raises ``Refusal``."""
    said = concluded(job)
    if said.verdict is None or job.info.keeper != US:
        return said.verdict is not None or said.cancelled is not None
    # Whether another attempt follows is for the nodes to say.
    state = briefly(job, [pod for _, pod in await job.pods()])
    return state.next is None or state.cancelled is not None


def briefly(job: Found, pods: Iterable[Object]) -> JobState:
    """Give what the job's objects and pods say, for a list."""
    info = job.info
    found = facts(job, _numbered(job.kind, [pod for pod in pods if objects.belongs(pod, info)]))
    # Their logs, which say when ranks begin, aren't read for a list: a container that runs has begun.
    found += [
        ev.WorkersStarted(fact.time, fact.node, 0, fact.attempt - 1, (), 0, fact.pod)
        for fact in found
        if isinstance(fact, ev.NodeStarted)
    ]
    return closed(reduce(apply, found, JobState(info)))
