"""Look after all jobs of a namespace as a follower of each would, with nobody there to watch them.

A job with nothing wrong costs only its place in the watches: no task, no request and no log. A job that needs
attention gets a :class:`Follower`, as in a kernel: a node ended, somebody asked for the job's end, it must
start within some time, a deadline has come. The follower leaves when the job goes on by itself, or is over.
So tenders and kernels all come to the same conclusions, and doing things twice changes nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeAlias

from nbtorchjob.backends.kubernetes import lifecycle
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.reflector import DELETED, SYNCED, Change
from nbtorchjob.backends.kubernetes.cache import JobCache
from nbtorchjob.backends.kubernetes.control import actions, cleanup, controller
from nbtorchjob.backends.kubernetes.control.actions import LOG
from nbtorchjob.backends.kubernetes.control.follow import Follower
from nbtorchjob.backends.kubernetes.jobs import JobRef, briefly
from nbtorchjob.backends.kubernetes.kinds import Kind, fit
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Api
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import DamagedError, ForbiddenError, NBTorchJobError
from nbtorchjob.state import JobState, apply, runs
from nbtorchjob.state.facts.factlines import UNREADABLE

AGAIN_S = 30.0  # between two tries of what the cluster refuses, or what changes nothing
_Name: TypeAlias = tuple[str, str]  # a job's name, and which job of that name
_Key: TypeAlias = tuple[str, str, str]  # the same after its kind's name: anybody may have written the labels
_MOST_GONE = 64  # pods of a job that are gone, and weren't looked into


@dataclass
class _Group:
    """The runs of a group that limits how many of them are under way at a time."""

    at_once: int = 0
    left: dict[_Key, tuple[int, bool]] = field(default_factory=dict)  # a run's number, and whether it waits

    @property
    def due(self) -> list[_Key]:
        """The runs to start now."""
        ordered = sorted(self.left, key=lambda key: self.left[key][0])
        return runs.due({key: self.left[key][1] for key in ordered}, self.at_once)


@dataclass
class _Pods:
    """The pods whose labels name a job, by uid."""

    present: dict[str, Object] = field(default_factory=dict)
    lost: dict[str, Object] = field(default_factory=dict)  # pods that disappeared; why wasn't looked into


@dataclass
class _WatchedJob:
    """A job in the watches: all objects whose labels name it, by uid, and all such pods."""

    kind: Kind
    pods: _Pods
    objects: dict[str, Object] = field(default_factory=dict)
    ends: frozenset[tuple[str, int]] = frozenset()  # bad ends of its pods that were looked into
    closed: JobState | None = None  # how it ended, as its follower found, until its object changes
    group: tuple[str, str] | None = None  # for a run that may have to wait for others
    begun: bool = False  # it waited, and was started
    due: float | None = None  # when there may be something to do though nothing changes
    idle: bool = False  # nothing has changed since its visit began, which isn't over or ended just now
    visit: asyncio.Task[None] | None = None

    @property
    def attempts(self) -> tuple[Object, ...]:
        """The job's objects in the order of its attempts; none if the first one is missing."""
        return next(iter(labelling.attempts(self.objects.values())), ())


class Tender:
    """Looks after the jobs of a namespace: this user's, or ``everyone``'s."""

    def __init__(self, session: Session, scope: Scope, *, everyone: bool) -> None:
        self._session = session
        self._scope = scope
        self._user = None if everyone else labelling.word(user())
        self._jobs: dict[_Key, _WatchedJob] = {}
        self._pods: dict[_Name, _Pods] = {}
        self._groups: dict[tuple[str, str], _Group] = {}  # by their users and names
        self._moved: set[tuple[str, str]] = set()  # groups in which a run may have begun or ceased to wait
        self._changed: set[_Key] = set()
        self._woken = asyncio.Event()
        self._unlisted: set[Api] = {PODS}
        self._kinds: Sequence[Kind] | None = None

    @property
    def jobs(self) -> int:
        """How many jobs are in the watches."""
        return sum(bool(kept.attempts) for kept in self._jobs.values())

    @property
    def visits(self) -> int:
        """How many jobs are being visited just now."""
        return sum(kept.visit is not None for kept in self._jobs.values())

    @property
    def listed(self) -> bool:
        """Whether all jobs are known."""
        return not self._unlisted

    async def outdated(self) -> bool:
        """Whether the cluster serves other kinds of job by now. Raises ``ClusterError``."""
        return self._kinds is not None and self._kinds != await self._session.kinds()

    async def run(self) -> None:
        """Look after the jobs until cancelled. Raises ``ClusterError``."""
        kinds = self._kinds = await self._session.kinds()
        self._unlisted = {PODS, *(kind.api for kind in kinds)}

        async def watch(kind: Kind) -> None:
            try:
                await self._watch(kind.api, partial(self._object, kind))
            except ForbiddenError as exc:  # many users may list one kind of job, and no other
                LOG.warning("%s: jobs of kind %s aren't looked after: %s", self._scope, kind.api.kind, exc)
                self._mark_listed(kind.api)

        watches = [self._watch(PODS, partial(self._pod, kinds)), *map(watch, kinds)]
        tasks = [asyncio.ensure_future(work) for work in (*watches, self._look_after())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            running = [*tasks, *(kept.visit for kept in self._jobs.values() if kept.visit is not None)]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _watch(self, api: Api, take: Callable[[_Name, Change], None]) -> None:
        def is_tended(obj: Object) -> bool:
            labels = obj["metadata"].get("labels") or {}
            return labelling.JOB in labels and self._user in (None, labels.get(labelling.USER, ""))

        reflector = self._session.reflector(self._scope.namespace)
        async with aclosing(reflector.subscribe(api, is_tended)) as changes:
            async for change in changes:
                if change.type == SYNCED:
                    self._mark_listed(api)
                    continue
                labels = change.object["metadata"].get("labels") or {}
                take((labels.get(labelling.JOB, ""), labels.get(labelling.RUN, "")), change)
                self._woken.set()

    def _mark_listed(self, api: Api) -> None:
        self._unlisted.discard(api)
        self._woken.set()

    def _object(self, kind: Kind, name: _Name, change: Change) -> None:
        key = (kind.name, *name)
        pods = self._pods.setdefault(name, _Pods())
        kept = self._jobs.setdefault(key, _WatchedJob(kind, pods))
        kept.closed, kept.idle = None, False
        if change.type == DELETED:
            kept.objects.pop(change.object["metadata"]["uid"], None)
        else:
            kept.objects[change.object["metadata"]["uid"]] = change.object
        self._changed.add(key)

    def _pod(self, kinds: Sequence[Kind], name: _Name, change: Change) -> None:
        uid, pods = change.object["metadata"]["uid"], self._pods.setdefault(name, _Pods())
        keys = [key for kind in kinds if (key := (kind.name, *name)) in self._jobs]
        if change.type != DELETED:
            pods.present[uid] = change.object
        elif pods.present.pop(uid, None) is not None and not any(self._jobs[key].visit for key in keys):
            pods.lost[uid] = change.object
            if len(pods.lost) > _MOST_GONE:
                del pods.lost[next(iter(pods.lost))]
        self._changed.update(keys)
        for key in keys:
            self._jobs[key].idle = False
        if not keys and not pods.present:
            del self._pods[name]

    async def _look_after(self) -> None:
        while True:
            self._woken.clear()
            now, jobs = self._session.client.now(), {} if self._unlisted else self._jobs
            for key in [
                key
                for key, kept in jobs.items()
                if key in self._changed or (kept.due is not None and kept.due <= now)
            ]:
                self._changed.discard(key)
                self._look(key, self._jobs[key])
                await asyncio.sleep(0)  # there may be thousands, and each takes a moment
            self._begin_due()
            soon = min((kept.due for kept in self._jobs.values() if kept.due is not None), default=None)
            # Wait until something changes, or a job is due.
            when = soon if not self._unlisted else None
            waits = None if when is None else max(0.0, when - self._session.client.now())
            alarm = None if waits is None else asyncio.get_running_loop().call_later(waits, self._woken.set)
            await self._woken.wait()
            if alarm is not None:
                alarm.cancel()

    def _look(self, key: _Key, kept: _WatchedJob) -> None:
        """Check whether there is anything to do for a job, and start doing it."""
        if kept.visit is not None:
            return  # it is checked again when the visit is over
        attempts = kept.attempts
        if not attempts:
            self._update_group(key, kept, None)
            if not kept.objects:
                del self._jobs[key]
                if not kept.pods.present and not any(
                    tended.pods is kept.pods for tended in self._jobs.values()
                ):
                    self._pods.pop(key[1:], None)
            return
        job = JobRef(self._session, self._scope, kept.kind, attempts[-1], attempts[:-1])
        try:
            state = kept.closed or _state(job, kept)
            self._update_group(key, kept, state)
            kept.due = _attention(job, state, kept)
        except (DamagedError, *UNREADABLE) as exc:  # anybody who may edit the object can write anything
            kept.due = None
            LOG.warning("%s isn't looked after: %s", job.info.address, exc)
            return
        idle, kept.idle = kept.idle, False
        now = self._session.client.now()
        if kept.due is not None and kept.due <= now:
            if idle:  # the visit couldn't do what is due
                kept.due = now + AGAIN_S
                return
            kept.due, kept.idle = None, True
            visits = state.ended is None or _untidy(job, state, kept)
            work = partial(self._visit, job, kept) if visits else partial(cleanup.expire, job)
            kept.visit = asyncio.ensure_future(self._guarded(key, kept, work))

    def _update_group(self, key: _Key, kept: _WatchedJob, state: JobState | None) -> None:
        """Record where a run stands in its group; ``state`` is None if the run is gone."""
        if kept.group is None and state is not None and state.info.group and state.info.at_once is not None:
            owner = (kept.attempts[0]["metadata"].get("labels") or {}).get(labelling.USER, "")
            kept.group = owner, state.info.group
        if kept.group is None:
            return
        group = self._groups.setdefault(kept.group, _Group())
        waits = runs.waits(state) if state is not None else None
        if state is None or waits is None:
            group.left.pop(key, None)
        else:
            group.at_once = state.info.at_once or 0
            group.left[key] = state.info.number, waits and not kept.begun
        self._moved.add(kept.group)

    def _begin_due(self) -> None:
        """Start the runs whose turn has come, once it is known where all runs stand."""

        async def begin(job: JobRef, kept: _WatchedJob) -> None:
            if await actions.begin(job):
                why = f"at most {job.info.at_once} of {job.info.group} are under way"
                actions.log_deed(job.info, "started a run", why)
            kept.begun = True

        while self._moved and not self._unlisted:
            group = self._groups[name := self._moved.pop()]
            for key in group.due:
                kept = self._jobs[key]
                if kept.visit is None and (attempts := kept.attempts):
                    job = JobRef(self._session, self._scope, kept.kind, attempts[-1], ())
                    kept.visit = asyncio.ensure_future(self._guarded(key, kept, partial(begin, job, kept)))
            if not group.left:
                del self._groups[name]

    async def _guarded(
        self, key: _Key, kept: _WatchedJob, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        again = None
        try:
            await work()
        except NBTorchJobError as exc:
            LOG.warning("%s/%s: %s", self._scope, key[1], exc)
            again = self._session.client.now() + AGAIN_S
        except Exception:
            LOG.exception("%s/%s", self._scope, key[1])
            again = self._session.client.now() + AGAIN_S
        kept.visit, kept.due = None, again
        if again is None:
            self._changed.add(key)
        else:
            kept.idle = False
        self._woken.set()

    async def _visit(self, job: JobRef, kept: _WatchedJob) -> None:
        lost_pods = [kept.pods.lost.pop(uid) for uid, pod in [*kept.pods.lost.items()] if job.owns(pod)]
        with ExitStack() as stack:
            cache = job.cache
            if not job.mine:  # nobody here needs its logs
                cache = JobCache(Path(stack.enter_context(tempfile.TemporaryDirectory())) / job.info.name)
            follower = Follower(job, job.info, cache, visit=True, lost_pods=lost_pods)
            version = job.object["metadata"].get("resourceVersion")
            async with aclosing(follower.stream()) as events:
                async for _ in events:
                    pass
        kept.ends |= _ends(follower.state)
        if follower.state.closed is not None and kept.objects:
            newest = kept.attempts[-1:] or (job.object,)
            same = newest[0]["metadata"].get("resourceVersion") == version
            kept.closed = follower.state if same or follower.state.verdict is not None else None


def _state(job: JobRef, kept: _WatchedJob) -> JobState:
    """Return a job's state from its objects and pods; their logs aren't read."""
    pods, now = kept.pods, job.session.client.now()
    state = briefly(job, [*pods.present.values(), *pods.lost.values()])
    numbered = [(job.kind.node(pod), pod) for pod in filter(job.owns, pods.lost.values())]
    went = [lifecycle.gone_fact(pod, node, now) for node, pod in numbered if node is not None]
    return reduce(apply, went, state)


def _ends(state: JobState) -> frozenset[tuple[str, int]]:
    """Return which runs of its pods have ended badly: a pod's status shows its last two."""
    return frozenset(
        (life.pod, run.again)
        for node in state.nodes.values()
        for life in node.lives.values()
        for run in life.runs()
        if run.ended_badly
    )


def _untidy(job: JobRef, state: JobState, kept: _WatchedJob) -> bool:
    """Whether an ended job has pods that we must end or delete, and haven't tried to."""
    if kept.closed is not None or not any(map(job.owns, kept.pods.present.values())):
        return False
    if controller.marked_only(job.kind, state):
        return True
    return "clean_pod_policy" in fit.own_policies(job.kind, job.info.jobspec, job.info.retry_owner)


def _attention(job: JobRef, state: JobState, kept: _WatchedJob) -> float | None:
    """Return when a job needs attention; None means not before something about it changes."""
    info = job.info
    if state.ended is not None:
        return 0.0 if _untidy(job, state, kept) else cleanup.expires(job, state)
    wishes = (state.verdict, state.cancelled, state.next)
    if any(wish is not None for wish in wishes) or _ends(state) - kept.ends:
        return 0.0
    if info.start_within_s is not None and not state.suspended:
        lives = (node.life for node in state.nodes.values())
        if sum(life.running and life.attempt == state.tries for life in lives) < info.nodes[0]:
            return 0.0
    own_policies = fit.own_policies(job.kind, info.jobspec, info.retry_owner)
    return state.deadline_at if "active_deadline_seconds" in own_policies else None
