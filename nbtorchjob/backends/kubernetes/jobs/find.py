"""Find jobs on clusters, by name or all of them, with the progress of each.

A list asks a cluster for no logs: it can't show the progress of a job that nothing follows here.
"""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path

from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.cache import JobCache, Pod
from nbtorchjob.backends.kubernetes.jobs import JobRef, briefly, concluded, queueing
from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target, seconds
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.backends.progress import REPORTED, USED, Telling
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import ClusterError, DamagedError, ForbiddenError, JobNotFoundError
from nbtorchjob.machine.folders import plain
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts.events import (
    LOOKED,
    LabEnds,
    TurnEnded,
    TurnPlaced,
    TurnTaken,
    WorkersStarted,
    Wrote,
)
from nbtorchjob.state.facts.factlines import read
from nbtorchjob.state.info import address

# A line of a cached log is its stamp and a frame (``runtime/store/frames.py``); a report fits into one, and
# so does the resource usage of a node with less than a hundred ranks.
_TOLD = b"|".join(map(re.escape, (REPORTED, USED)))
_reports = re.compile(rb"^\S+ fact\.0 ((?:%s).*)$" % _TOLD, re.MULTILINE).findall

# Matches what a node reports by itself, and the rest of a long fact: they don't show that a rank moves.
_looked = re.compile(rb'\S+ fact\.(?:0[ +]\{"event": "(?:%s)"|[1-9])' % "|".join(LOOKED).encode()).match

_OF_LABS = (WorkersStarted, TurnTaken, TurnPlaced, TurnEnded, LabEnds)

_BYTES = 1 << 18  # of a log, in one look: a list waits while they are read
_LOGS = 1024


class _Log:
    """A pod's cached log; each look reads what was added since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._telling = Telling()
        self.wrote = 0.0  # when there was last a sign of life

    def reports(self) -> list[bytes]:
        with suppress(FileNotFoundError), open(self._path, "rb", opener=plain) as file:
            file.seek(max(self._offset, file.seek(0, os.SEEK_END) - _BYTES))
            start, data = file.tell(), file.read()
            whole = data.rfind(b"\n") + 1
            self._offset = start + whole
            self._telling.sift(_reports(data[:whole]))
            lines = reversed(data[:whole].rstrip(b"\n").split(b"\n"))
            last_sign = next((line for line in lines if not _looked(line)), b"")
            self.wrote = max(self.wrote, seconds(last_sign.partition(b" ")[0].decode("ascii", "replace")))
        return self._telling.lines


_logs: dict[Path, _Log] = {}


def reported(state: JobState, cache: JobCache) -> JobState:
    """Return the state with what the job's ranks said, if the job goes on and is cached here.

    That is their reports and resource usage and, for a lab, its turns.
    """
    if state.ended is not None:
        return state
    if state.info.lab is not None:
        state = reduce(apply, (fact for fact in cache.facts() if isinstance(fact, _OF_LABS)), state)
    pods = [Pod(index, uid) for index, node in state.nodes.items() for uid in node.lives]
    logs = []
    for pod in pods:
        path = cache.log(pod)
        log = _logs.pop(path, None) or _Log(path)
        _logs[path] = log
        if len(_logs) > _LOGS:
            del _logs[next(iter(_logs))]  # the least recently used one
        logs.append(log)
    lines = [line for log in logs for line in log.reports()]
    wrote = max((log.wrote for log in logs), default=0.0)
    return reduce(apply, [*read(lines), *([Wrote(wrote)] if wrote else [])], state)


_LABEL = re.compile(r"[a-z0-9][a-z0-9-]*")


@contextmanager
def asking(scope: Scope) -> Iterator[None]:
    """Turn a refusal into a warning: a namespace of long ago must not hide any other."""
    try:
        yield
    except ClusterError as exc:
        warnings.warn(f"jobs in {scope.namespace} can't be listed: {exc}", stacklevel=3)


async def find(name: str) -> JobRef:
    """Return the job of that name, or address (``JobInfo.address``).

    Raises ``JobNotFoundError``, or ``ClusterError`` if it is unknown because a scope couldn't be asked.
    """
    place, (only, name) = _places.get(name), parsed(name)
    if not all(_LABEL.fullmatch(word) for word in (name, only.namespace if only else name)):
        raise JobNotFoundError(f"there is no job named {name!r} on the cluster")
    scopes = [only] if only else namespaces.named_in()
    if place is not None and (place[0] in scopes or only):
        with suppress(ClusterError):  # it may have been deleted, and made again elsewhere
            return await _at(name, *place)

    async def look_in(scope: Scope) -> list[JobRef]:
        cluster_session = await session(scope.context)
        return await cluster_session.client.unless_away(selected(cluster_session, scope, labelling.of(name)))

    unasked: ClusterError | None = None
    # Concurrently: clusters that are away are waited for once, and don't delay the scopes after them.
    looks = [asyncio.ensure_future(look_in(scope)) for scope in scopes]
    try:
        for scope, look in zip(scopes, looks, strict=True):
            try:
                jobs = await look
            except ClusterError as exc:
                unasked = exc
                continue
            if jobs:
                know(name, scope, jobs[0].kind)
                return jobs[0]
    finally:
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
    raise unasked or JobNotFoundError(f"there is no job named {name!r} on the cluster")


def parsed(address: str) -> tuple[Scope | None, str]:
    """Take apart ``CONTEXT/NAMESPACE/NAME``, ``NAMESPACE/NAME`` or ``NAME``."""
    where, _, name = address.rpartition("/")
    return Scope.parse(where) if where else None, name


# Where jobs were last seen, by name and by address: to find them again, one request is enough.
_places: dict[str, tuple[Scope, Kind]] = {}


def know(name: str, scope: Scope, kind: Kind) -> None:
    """Remember where the job of that name is."""
    _places[name] = _places[address(scope.context, scope.namespace, name)] = (scope, kind)


def forget() -> None:
    """Forget where all jobs are, as in a new process."""
    _places.clear()


async def _at(name: str, scope: Scope, kind: Kind) -> JobRef:
    cluster_session = await session(scope.context)
    get = cluster_session.client.get(Target(kind.api, scope.namespace, name))
    first = await cluster_session.client.unless_away(get, patient=True)
    if labelling.ATTEMPT not in (first["metadata"].get("labels") or {}):
        return JobRef(cluster_session, scope, kind, first)
    jobs = await _of_kind(cluster_session, scope, kind, labelling.of(name))
    if isinstance(jobs, ForbiddenError):
        raise jobs
    uid = first["metadata"]["uid"]
    return next(
        (job for job in jobs if job.root["metadata"]["uid"] == uid),
        JobRef(cluster_session, scope, kind, first),
    )


def cached_job(name: str) -> tuple[JobInfo, JobCache]:
    """Return what this machine has of a job that no cluster has any more.

    Raises ``JobNotFoundError``, or ``DamagedError`` if none of it can be read.
    """
    only, name = parsed(name)
    damaged: DamagedError | None = None
    for scope in [only] if only else namespaces.named_in():
        for folder in scope.folders(name):
            try:
                info = JobCache(folder).info()
            except DamagedError as exc:
                damaged = exc
                continue
            if info is not None:
                return info, JobCache(folder)
    raise damaged or JobNotFoundError(f"there is no job named {name!r} on the cluster")


async def states(scope: Scope, *, everyone: bool) -> list[tuple[JobRef, JobState]]:
    """Return all jobs of a scope, with their states from objects and pods. Raises ``ClusterError``."""
    cluster_session = await session(scope.context)
    labels = labelling.OURS if everyone else labelling.of_user(user())
    pods = cluster_session.client.list(PODS, scope.namespace, labels=labels)
    jobs, listing = await asyncio.gather(selected(cluster_session, scope, labels), pods)
    by_job: dict[str, list[Object]] = {}
    for pod in listing.items:
        by_job.setdefault((pod["metadata"].get("labels") or {}).get(labelling.JOB, ""), []).append(pod)
    unended = [job for job in jobs if concluded(job).verdict is None]
    queued = await queueing.of_jobs(cluster_session, scope.namespace, unended)

    def brief(job: JobRef) -> JobState:
        events = queued.get(job.object["metadata"]["uid"], ())
        return reported(briefly(job, by_job.get(job.info.name, ()), events), job.cache)

    return [(job, brief(job)) for job in jobs]


async def selected(cluster_session: Session, scope: Scope, labels: str) -> list[JobRef]:
    """Return the jobs with these labels, of kinds that may be listed; ``ClusterError`` if none may be."""
    kinds = await cluster_session.kinds()
    answers = await asyncio.gather(*(_of_kind(cluster_session, scope, kind, labels) for kind in kinds))
    refusals = [answer for answer in answers if isinstance(answer, ForbiddenError)]
    # Many users may list one kind of job, and no other.
    if refusals and len(refusals) == len(kinds):
        raise refusals[0]
    return [job for answer in answers if not isinstance(answer, ForbiddenError) for job in answer]


async def _of_kind(
    cluster_session: Session, scope: Scope, kind: Kind, labels: str
) -> list[JobRef] | ForbiddenError:
    try:
        listing = await cluster_session.client.list(kind.api, scope.namespace, labels=labels)
    except ForbiddenError as exc:
        return exc
    return [
        JobRef(cluster_session, scope, kind, items[-1], items[:-1])
        for items in labelling.attempts(listing.items)
    ]
