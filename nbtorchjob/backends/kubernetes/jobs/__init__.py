"""A job's objects and pods, and what they say without their logs."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, reduce

from nbtorchjob.backends.kubernetes import lifecycle
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.cache import JobCache
from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling, workloads
from nbtorchjob.backends.kubernetes.objects.reading import PODS, SECRETS, Target, created
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import ClusterError, DamagedError, NotFoundError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import US, JobInfo, JobState, apply, conclusive
from nbtorchjob.state.blame import ABANDONED
from nbtorchjob.state.facts import events as ev

_NUMBERED = (ev.Verdict, ev.TrainerStatus)
_PAYLOAD_GONE = "no other attempt can be started: the job's payload was deleted from the cluster"


class JobRef(FrozenDataclass):
    """The object of a job's newest attempt, and where it is; ``earlier`` are those of earlier attempts."""

    session: Session
    scope: Scope
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
        """The object that owns the rest of the job, and is deleted with it."""
        return self._target(self.root)

    def _target(self, obj: Object) -> Target:
        return Target(self.kind.api, self.scope.namespace, obj["metadata"]["name"])

    @cached_property
    def info(self) -> JobInfo:
        """The record that was written at submission, without the sources."""
        name: str = self.root["metadata"]["name"]
        info = labelling.info(self.root) or JobInfo(name)
        # An exported job may have been applied anywhere.
        where = {"context": self.scope.context, "namespace": self.scope.namespace, "kind": self.kind.name}
        return replace(info, backend="kubernetes", name=name, cluster=where)

    @property
    def mine(self) -> bool:
        """Whether this user submitted it."""
        label = (self.root["metadata"].get("labels") or {}).get(labelling.USER, "")
        return bool(label == labelling.word(user()))

    def owns(self, pod: Object) -> bool:
        """Whether a pod is the job's, rather than that of an earlier job of its name, or a stranger."""
        attempts = (*self.earlier, self.object)
        return labelling.belongs(pod, self.info) and labelling.is_pod(self.kind.controls, pod, attempts)

    @property
    def cache(self) -> JobCache:
        """What this machine has of the job."""
        return JobCache(self.scope.folder(self.info.name, self.root["metadata"]["uid"]))

    async def whole_info(self) -> JobInfo:
        """Return the record with the sources, from this machine, else from the cluster."""
        with suppress(DamagedError):  # the cluster has it, too
            record = self.cache.info()
            if record is not None and record.call == self.info.call:
                return record
        with suppress(ClusterError, DamagedError):
            return labelling.with_extra(self.info, package.value(await self.secret(), package.EXTRA))
        return self.info

    async def key(self) -> bytes:
        """Return the job's key. Raises ``ClusterError`` and ``DamagedError``."""
        with suppress(DamagedError):  # the cluster has it, too
            if key := self.cache.key():
                return key
        return package.value(await self.secret(), package.KEY)

    async def secret(self) -> Object:
        """Return the first Secret of its payload. Raises ``ClusterError``."""
        name = package.first_name(self.info)
        return await self.session.client.get(Target(SECRETS, self.scope.namespace, name))

    async def secrets(self) -> list[Object]:
        """Return all Secrets of its payload, one after the other: one answer would be too big.

        Raises ``ClusterError``.
        """
        client, secrets = self.session.client, list[Object]()
        for name in await payload_names(client, self.scope.namespace, self.info):
            with suppress(NotFoundError):  # its payload then lacks that part
                secrets.append(await client.get(Target(SECRETS, self.scope.namespace, name)))
        return secrets

    async def pods(self) -> list[tuple[int, Object]]:
        """Return the job's current pods, each with its node."""
        listing = await self.session.client.list(
            PODS, self.scope.namespace, labels=labelling.of(self.info.name)
        )
        return _numbered(self.kind, filter(self.owns, listing.items))


async def payload_names(client: Client, namespace: str, info: JobInfo) -> list[str]:
    """Return the names of the Secrets that hold a job's payload, in order. Raises ``ClusterError``."""
    listing = await client.list(SECRETS, namespace, labels=labelling.of(info.name), bare=True)
    own = {item["metadata"]["name"]: item for item in listing.items if labelling.belongs(item, info)}
    names = package.part_names(info, own)
    return [*names, *(name for first in names[:1] for name in package.shared_by(own[first]))]


def _numbered(kind: Kind, pods: Iterable[Object]) -> list[tuple[int, Object]]:
    numbered = ((kind.node(pod), pod) for pod in pods)
    return [(node, pod) for node, pod in numbered if node is not None]


def of_object(kind: Kind, obj: Object) -> list[ev.Event]:
    """Return the facts in a job's object, from its operator's status and our own marks."""
    events, stopped, number = kind.facts(obj), labelling.stopped(obj), labelling.attempt(obj)
    if stopped:  # by suspending it, which then is no suspension
        events = [fact for fact in events if not isinstance(fact, ev.Suspended)]
    if turn := labelling.turn(obj):
        events = [
            replace(fact, turn=turn) if isinstance(fact, ev.Suspended) and fact.suspended else fact
            for fact in events
        ]
    began = [ev.AttemptBegan(created(obj), number)] if number > 1 else []
    numbered = [
        replace(fact, attempt=number) if isinstance(fact, _NUMBERED) else fact for fact in (*events, *stopped)
    ]
    given_up = [ev.Notice(fact.time, _PAYLOAD_GONE) for fact in stopped if fact.reason == ABANDONED]
    queued = workloads.unseen(obj, kind.suspends(obj)) if kind.suspend else []
    marks: list[ev.Event] = [*labelling.cancelled(obj), *labelling.noted(obj)]
    return [*began, *labelling.paid(obj), *numbered, *given_up, *marks, *queued]


def abandoned(time: float, attempt: int) -> list[ev.Event]:
    """Return the facts that end a job when no attempt can follow, as its payload is gone."""
    return [ev.Verdict(time, False, ABANDONED, attempt=attempt), ev.Notice(time, _PAYLOAD_GONE)]


def of_pod(kind: Kind, pod: Object, node: int) -> list[ev.Event]:
    """Return what a pod says about node ``node``."""
    number, restarts = labelling.attempt(pod), kind.restarts(pod)

    def with_attempt(fact: ev.Event) -> ev.Event:
        if isinstance(fact, ev.Waiting):
            return replace(fact, attempt=number, restarts=restarts)
        return replace(fact, attempt=number) if isinstance(fact, ev.NodeStarted) else fact

    return [with_attempt(fact) for fact in lifecycle.facts(pod, node, kind.container)]


def facts(job: JobRef, pods: Sequence[tuple[int, Object]]) -> list[ev.Event]:
    """Return the facts in a job's objects and pods."""
    events = [fact for obj in (*job.earlier, job.object) for fact in of_object(job.kind, obj)]
    return [*events, *(fact for node, pod in pods for fact in of_pod(job.kind, pod, node))]


def vanished(state: JobState, present: Container[str], now: float) -> list[ev.Event]:
    """Report which pods of a cancelled job disappeared while nothing here followed it: any not ``present``.

    Such a job ends with its last pod. Other jobs end with a verdict, and their lost pods explain nothing.
    """
    if state.cancelled is None:
        return []
    pods = {
        (node.index, life.pod): life.over for node in state.nodes.values() for life in node.lives.values()
    }
    # There may be a log of a pod that was never seen here: cancelling a job caches its logs.
    pods = {(node.index, word.pod): False for node in state.nodes.values() for word in node.workers} | pods
    lost = [(node, pod) for (node, pod), over in pods.items() if pod and not over and pod not in present]
    return [ev.NodeGone(now, node, pod) for node, pod in lost]


def closed(state: JobState) -> JobState:
    """Return the state with its end, if it has come."""
    return apply(state, ev.Closed(end(state))) if conclusive(state) else state


def end(state: JobState) -> float:
    """When the job ended, by the cluster's clock if that says so: the same for all callers."""
    if state.verdict is not None:
        return state.verdict.time  # a pod that its policy lets run on is no part of the job
    ends = [life.exit.time for node in state.nodes.values() for life in node.lives.values() if life.exit]
    return max([*ends, *([state.cancelled] if state.cancelled else [])], default=time.time())


def concluded(job: JobRef) -> JobState:
    """Return the job's state from its objects alone."""
    return reduce(apply, facts(job, ()), JobState(job.info))


async def over(job: JobRef) -> bool:
    """Whether the job has ended, or its end was requested. Raises ``ClusterError``."""
    state = concluded(job)
    if state.verdict is None or job.info.retry_owner != US:
        return state.verdict is not None or state.cancelled is not None
    # Only the nodes show whether another attempt follows.
    state = briefly(job, [pod for _, pod in await job.pods()])
    return state.next is None or state.cancelled is not None


def briefly(job: JobRef, pods: Iterable[Object], queued: Iterable[ev.Event] = ()) -> JobState:
    """Return the job's state for a list, from its objects and pods, and from events of its queue."""
    events = facts(job, _numbered(job.kind, filter(job.owns, pods)))
    events += queued
    # A list reads no logs, which say when ranks begin: ranks count as begun if their container runs.
    events += [
        ev.WorkersStarted(fact.time, fact.node, 0, fact.attempt - 1, (), 0, fact.pod)
        for fact in events
        if isinstance(fact, ev.NodeStarted)
    ]
    return closed(reduce(apply, events, JobState(job.info)))
