"""The stream of facts about one job: its object, its pods, what the cluster says about them, and their logs.

Theory of operation: when a follow is over
==========================================

No single fact is a job's last. An operator's verdict may come before the pods' ends and logs (6 s before the
process is gone in ``ptj-evict-never``), or long after them (43 s in ``ptj-activedeadline-quiet``). A job may
be resumed (``vcjob-abort-resume``), and pods may be made after the verdict (``trainjob-activedeadline``). So
a follower stops once the known state hasn't changed for as long as it may still change. Nothing is concluded
before every resource was listed and the queue is empty: until then there seem to be no pods.

    what is known                            waited for            recorded in
    ---------------------------------------  --------------------  ----------------------------------------
    no end was reported, or none any longer  for ever              ptj-onfailure-exit1-backoffunset
      (it was resumed)                                             vcjob-abort-resume
    an attempt follows, or we have to act    for ever              (our own attempts)
    it was cancelled, its pods are ending    for ever              ptj-delete-running-background: 6 to 10 s
    a verdict, or the object is gone; a pod  ``_VERDICT_GRACE_S``  ptj-elastic-staggered: 12 s
      may still change the conclusion                              ptj-never-exit137-backoff1
    it failed, and why is known; logs go on  ``_FAILURE_GRACE_S``  ptj-cleanpodpolicy-none: a pod runs on
    otherwise conclusive; logs go on         ``_LOG_GRACE_S``      job-success
    a verdict; too few nodes are known       one more list of pods (two watches, or lists every 5 s)
    conclusive, and no log is being read     nothing more          ptj-cleanpodpolicy-all: gone in 20 ms

``state.conclusive`` says whether anything can still change how the job ended. The grace periods are measured
by our own clock, as the cluster's may differ: the first one from when an end was first reported, the others
from when the state became conclusive, or the log of an ended pod last grew. All of them start again whenever
one of the first two rows has applied meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from nbtorchjob.backends.kubernetes import lifecycle, podlog
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import delays
from nbtorchjob.backends.kubernetes.api.errors import OpenFilesError
from nbtorchjob.backends.kubernetes.api.reflector import DELETED, MODIFIED, SYNCED, Change
from nbtorchjob.backends.kubernetes.cache import JobCache, Pod, Reader, cached_logs, life
from nbtorchjob.backends.kubernetes.control.controller import JobController
from nbtorchjob.backends.kubernetes.control.selection import Hosts, Troubles, Workloads
from nbtorchjob.backends.kubernetes.jobs import JobRef, end, of_object, of_pod, queueing, vanished
from nbtorchjob.backends.kubernetes.objects import labelling, workloads
from nbtorchjob.backends.kubernetes.objects.reading import EVENTS, POD_GROUPS, PODS, WORKLOADS, Api
from nbtorchjob.backends.kubernetes.podlog import SeenLines
from nbtorchjob.backends.kubernetes.template import requested_images
from nbtorchjob.environment import images
from nbtorchjob.errors import ClusterError
from nbtorchjob.machine import loop
from nbtorchjob.state import JobInfo, JobState, apply, conclusive
from nbtorchjob.state.attempts import losses
from nbtorchjob.state.facts import events as ev

_QUEUE = 64  # batches of events that wait for the caller; when it is full, the log streams wait
# Seconds for the remaining facts after the operator's verdict. A pod's end may come after the verdict on its
# job (PyTorchJob: as much later as its process takes to end), or never (its host is gone).
_VERDICT_GRACE_S = 60.0
_LOG_GRACE_S = 30.0  # for the rest of the logs once the state is conclusive
# Other nodes of a failed job may hang in a collective until its time-out, or run on for ever.
_FAILURE_GRACE_S = 5.0
_MOST_STRAYS = 1024
_LONGEST_WAIT = 30.0  # between two tries to learn what the cluster serves
_FILES_LOOK_S = 2.0  # between two tries to open a log while too many files are open
_QUEUE_LOOK_S = 15.0  # between two looks at the job's queue while nothing happens there
# Events that say nothing about the end of a job.
_TEXT = (ev.LogChunk, ev.Reported, ev.TrainerStatus, ev.Used, ev.NodeOutput)


@dataclass
class _Log:
    """A pod's log while it is read: whether the pod has ``ended``, and the newest round reached."""

    ended: Callable[[], bool]
    round: int = -1


class _Rounds:
    """Passes on what ranks wrote ``in_order`` of the rounds, although all pods' logs are read at once.

    Later rounds wait for the logs of ended pods, whichever pod they ran in. Nothing waits for a running pod:
    it may be silent for hours.
    """

    def __init__(self, *, in_order: bool, listed: Callable[[], bool]) -> None:
        self._in_order = in_order
        self._listed = listed  # whether all pods are known
        self._logs: dict[str, _Log] = {}  # by the pod's uid
        self._moved = asyncio.Condition()

    def add(self, uid: str, ended: Callable[[], bool]) -> None:
        """Add a pod whose log is read from now on."""
        self._logs[uid] = _Log(ended)

    async def remove(self, uid: str) -> None:
        """Forget a pod whose log isn't read any more."""
        del self._logs[uid]
        await self.look()

    async def look(self) -> None:
        """Have the readers that wait check whether they may go on."""
        async with self._moved:
            self._moved.notify_all()

    def parts(self, uid: str, events: Iterable[ev.Event]) -> Iterator[tuple[int, list[ev.Event]]]:
        """Split a pod's next events by round; yield each part with its round."""
        round_, part = self._logs[uid].round, list[ev.Event]()
        for event in events:
            if isinstance(event, ev.LogChunk) and event.round > round_:
                yield round_, part
                round_, part = event.round, []
            part.append(event)
        yield round_, part

    async def reach(self, uid: str, round_: int) -> None:
        """Wait until what ranks wrote in a round in a pod may be passed on."""
        log = self._logs[uid]
        if log.round != round_:
            log.round = round_
            await self.look()
        if self._in_order:

            def caught_up() -> bool:
                behind = any(log.round < round_ and log.ended() for log in self._logs.values())
                return self._listed() and not behind

            async with self._moved:
                await self._moved.wait_for(caught_up)


class Follower:
    """Follows one job. Watches are shared with all other jobs of its namespace (``reflector.py``).

    A job that is ``mine`` is also looked after (``controller.py``); somebody else's is only watched. A
    ``visit`` ends as soon as the job can go on by itself. ``lost_pods`` are pods that disappeared recently.
    With ``in_order``, what ranks wrote comes in the order of the rounds: facts of a later attempt then wait
    until the logs of the earlier ones were read.
    """

    def __init__(
        self,
        job: JobRef,
        info: JobInfo,
        cache: JobCache,
        *,
        mine: bool = True,
        visit: bool = False,
        lost_pods: Iterable[Object] = (),
        in_order: bool = False,
    ) -> None:
        session, scope, kind, first = job.session, job.scope, job.kind, job.root
        self._session = session
        self._scope = scope
        self._kind = kind
        self._info = info
        self._first = first
        # The job's objects seen so far, by uid.
        self._attempts = {obj["metadata"]["uid"]: obj for obj in (*job.earlier, job.object)}
        self._strays: dict[str, Change] = {}  # pods whose attempt wasn't seen yet, by uid
        self._state = JobState(info)
        self._queue: asyncio.Queue[list[ev.Event]] = asyncio.Queue(_QUEUE)
        self._cache = cache
        self._controller: JobController | None = None
        if mine:
            self._controller = JobController(session, scope, kind, info, first, removes=cache.ours)
        self._troubles = Troubles(kind, info.name)
        self._logs: dict[str, asyncio.Task[None]] = {}  # by the pod's uid
        self._read = -math.inf  # when the log of an ended pod last grew
        self._unlisted = {kind.api.plural, PODS.plural}
        pods = (kind.api.plural, PODS.plural)
        self._rounds = _Rounds(in_order=in_order, listed=lambda: self._unlisted.isdisjoint(pods))
        self._seen: set[str] | None = set()  # uids of pods; None once the missing ones were reported
        self._workloads = Workloads(info.name)
        self._queued = False  # whether Kueue's Workloads are watched
        self._groups: set[str] = set()  # names of the PodGroups that its pods are in
        self._waits: list[asyncio.Task[None]] = []  # tasks that follow queues and PodGroups
        self._stirred = asyncio.Event()  # something has changed among the Workloads
        self._said_files = False  # whether a notice said that too many files are open
        self._visit = visit
        self._lost_pods = lost_pods
        self._failed: Exception | None = None
        self._looked = False  # whether pods were listed once more, as the operator knew of more
        self._decided: float | None = None  # when, by our own clock, an end was first reported
        self._concluded: float | None = None  # and when nothing could change the outcome any more

    @property
    def state(self) -> JobState:
        """The state after all events so far, except logs and reports."""
        return self._state

    async def stream(self) -> AsyncGenerator[ev.Event, None]:
        """Yield all events from the job's beginning until it has ended. Raises ``ClusterError``."""
        with suppress(OSError):  # a full disk only means that nothing is cached
            self._cache.claim(self._info)
        # They begin in their tasks: a caller that needs only cached events may leave before any of them runs.
        watches = [self._follow_object, self._follow_pods]
        watches += [partial(self._follow_events, fields) for fields in lifecycle.TELLING]
        if self._controller is not None:
            watches.append(Hosts(self._session, self._info.address, lambda: self._state).heed)
        tasks = [asyncio.ensure_future(self._guarded(watch)) for watch in watches]
        try:
            for event in chain(self._cache.facts(), cached_logs(self._cache)):
                # Only the cluster can say that the job has ended: it may have been resumed.
                if not isinstance(event, ev.Closed | ev.Removed):
                    yield self._record(event)
            for pod in self._lost_pods:
                if (node := self._kind.node(pod)) is not None:
                    for event in self._pod_facts(Change(DELETED, pod), node):
                        yield self._record(event)
            while not self._over():
                for turn in (self._vanished, self._missed):
                    for event in await turn():
                        yield self._record(event)
                up_to_date = not self._unlisted and self._queue.empty()
                for event in await self._tend():
                    yield self._record(event)
                # Only now, when what is due was done: even a sound job may be late.
                if self._visit and up_to_date and self._queue.empty() and sound(self._state):
                    return
                for event in await self._next():
                    yield self._record(event)
            if self._controller is not None:
                await self._controller.clean(self._is_pod)
            yield self._record(ev.Closed(end(self._state)))
        finally:
            running = [*tasks, *self._logs.values(), *self._waits]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._cache.release()

    def _record(self, event: ev.Event) -> ev.Event:
        if not isinstance(event, _TEXT):
            self._state = apply(self._state, event)
            self._cache.note(event)
        if isinstance(event, ev.EnvironmentTold):
            job_images = requested_images(self._info.jobspec)
            if event.node < len(job_images) and self._cache.ours:  # others may misreport what images have
                images.learn(job_images[event.node], self._state.image_of(event), event)
        return event

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as exc:  # else the caller would wait for ever
            self._failed = exc
            await self._queue.put([])

    async def _follow_object(self) -> None:
        seen = False
        async with aclosing(self._changes(self._kind.api, self._is_attempt, every=True)) as changes:
            async for change in changes:
                if change.type == SYNCED:
                    removals = [] if seen else [ev.Removed(self._session.client.now())]
                    await self._listed(self._kind.api, removals)
                    continue
                seen = True
                new = change.object["metadata"]["uid"] not in self._attempts
                self._attempts[change.object["metadata"]["uid"]] = change.object
                facts = of_object(self._kind, change.object) + self._troubles.know(change.object)
                facts += self._workloads.know(change.object)
                if not self._queued and self._kind.suspend and workloads.queue(change.object):
                    self._queued = True
                    self._unlisted.add(WORKLOADS.plural)
                    self._waits.append(asyncio.ensure_future(self._guarded(self._follow_workloads)))
                newest = labelling.attempt(change.object) == self._state.tries
                if change.type == DELETED and (newest or labelling.attempt(change.object) == 1):
                    facts.append(ev.Removed(self._session.client.now()))
                await self._queue.put(facts)
                if new:
                    strays, self._strays = self._strays, {}
                    for stray in strays.values():
                        await self._hear_pod(stray)

    async def _follow_workloads(self) -> None:
        looks = False
        # Without permission to read Workloads it isn't known what the job waits for in its queue.
        with suppress(ClusterError):
            api = await self._served(WORKLOADS)
            if api is not None:
                async with aclosing(self._changes(api, lambda _: True, every=True)) as changes:
                    async for change in changes:
                        if change.type == SYNCED:
                            await self._listed(WORKLOADS)
                            continue
                        hear = self._workloads.forget if change.type == DELETED else self._workloads.read
                        if facts := hear(change.object):
                            await self._queue.put(facts)
                        self._stirred.set()
                        if self._workloads.queue and not (looks or self._visit):
                            looks = True
                            self._waits.append(asyncio.ensure_future(self._look_at_queue()))
        await self._listed(WORKLOADS)

    async def _listed(self, api: Api, facts: Sequence[ev.Event] = ()) -> None:
        """Record that all objects of an API are known, or can't be: nothing is concluded before that."""
        self._unlisted.discard(api.plural)
        await self._rounds.look()
        await self._queue.put([*facts])

    async def _look_at_queue(self) -> None:
        """Read the state of the job's queue from time to time while the job waits there."""
        while True:
            self._stirred.clear()
            if name := self._workloads.queue:
                look = await queueing.queue(self._session, self._scope.namespace, name)
                if facts := self._workloads.seen(look):
                    await self._queue.put(facts)
            await asyncio.sleep(queueing.LATELY_S)
            with suppress(asyncio.TimeoutError):  # the watch doesn't show what other namespaces use
                async with loop.timeout(_QUEUE_LOOK_S):
                    await self._stirred.wait()

    async def _follow_pods(self) -> None:
        async with aclosing(self._changes(PODS, self._may_be_pod)) as changes:
            async for change in changes:
                if change.type == SYNCED:
                    await self._listed(PODS)
                    continue
                await self._hear_pod(change)

    async def _hear_pod(self, change: Change) -> None:
        pod = change.object
        if not self._is_pod(pod):
            self._strays[pod["metadata"]["uid"]] = change
            while len(self._strays) > _MOST_STRAYS:
                del self._strays[next(iter(self._strays))]
            return
        node = self._kind.node(pod)
        if node is not None:
            await self._queue.put(self._pod_facts(change, node))
            if group := lifecycle.name(pod):
                if not self._groups:
                    self._waits.append(asyncio.ensure_future(self._guarded(self._follow_groups)))
                self._groups.add(group)

    async def _follow_groups(self) -> None:
        # Even without permission to read PodGroups it is known what each pod waits for.
        with suppress(ClusterError):
            api = await self._served(POD_GROUPS)
            if api is not None:
                async with aclosing(
                    self._changes(api, lambda group: group["metadata"]["name"] in self._groups)
                ) as changes:
                    async for change in changes:
                        if change.object and change.type != DELETED:
                            await self._queue.put(lifecycle.group_facts(change.object))

    async def _served(self, api: Api) -> Api | None:
        """Return the version of ``api`` that the cluster serves, None if none; ask until it answers."""
        pauses = delays(self._session.client.pause, _LONGEST_WAIT)
        while True:
            with suppress(ClusterError):  # anybody may ask: even a refusal means that the server just started
                return await self._session.newest(api)
            await self._listed(api)  # the job may end meanwhile
            await asyncio.sleep(next(pauses))

    async def _vanished(self) -> list[ev.Event]:
        """Report, once, which pods of a cancelled job disappeared while nothing here followed it."""
        unready = bool(self._unlisted) or not self._queue.empty()
        if unready or self._state.cancelled is None or self._seen is None:
            return []
        uids, self._seen = self._seen, None
        return vanished(self._state, uids, self._session.client.now())

    async def _missed(self) -> list[ev.Event]:
        """List the pods once more if the operator has seen more of them end than are known here."""
        if not self._misses:
            return []
        self._looked = True
        labels, facts = labelling.of(self._info.name), list[ev.Event]()
        with suppress(ClusterError):
            listing = await self._session.client.list(PODS, self._scope.namespace, labels=labels)
            for pod in filter(self._is_pod, listing.items):
                if (node := self._kind.node(pod)) is not None:
                    facts += self._pod_facts(Change(MODIFIED, pod), node)
        await self._queue.put([])  # to check whether the job is over
        return facts

    @property
    def _misses(self) -> bool:
        """Whether the job has ended, but fewer nodes are known to have started than it began with."""
        if self._looked or self._unlisted or not self._queue.empty() or self._state.verdict is None:
            return False
        started = sum(node.life.start is not None for node in self._state.nodes.values())
        return started < self._info.nodes[0]

    def _pod_facts(self, change: Change, node: int) -> list[ev.Event]:
        pod = change.object
        uid: str = pod["metadata"]["uid"]
        if self._seen is not None:
            self._seen.add(uid)
        facts = of_pod(self._kind, pod, node)
        if change.type == DELETED:
            self._troubles.forget_pod(pod)
            return [*facts, lifecycle.gone_fact(pod, node, self._session.client.now())]
        facts += self._troubles.know_pod(pod)
        if uid not in self._logs and any(isinstance(fact, ev.NodeStarted) for fact in facts):
            self._rounds.add(uid, partial(self._has_ended, pod))
            self._logs[uid] = asyncio.ensure_future(self._guarded(partial(self._follow_log, pod, node)))
        return facts

    async def _follow_events(self, fields: str) -> None:
        # Without permission to read events, only some of the reasons why something waits are missing.
        with suppress(ClusterError):
            async with aclosing(self._changes(EVENTS, self._troubles.may_be_ours, fields=fields)) as changes:
                async for change in changes:
                    if change.object and change.type != DELETED:
                        await self._queue.put(self._troubles.read(change.object))

    def _changes(
        self, api: Api, wants: Callable[[Object], bool], *, every: bool = False, fields: str = ""
    ) -> AsyncGenerator[Change, None]:
        reflector = self._session.reflector(self._scope.namespace)
        return reflector.subscribe(api, wants, every=every, fields=fields)

    def _is_attempt(self, obj: Object) -> bool:
        if obj["metadata"]["uid"] == self._first["metadata"]["uid"]:
            return True
        return labelling.belongs(obj, self._info) and labelling.is_later(obj, self._first)

    def _may_be_pod(self, pod: Object) -> bool:
        return labelling.belongs(pod, self._info)

    def _is_pod(self, pod: Object) -> bool:
        return self._may_be_pod(pod) and labelling.is_pod(self._kind.controls, pod, self._attempts.values())

    async def _follow_log(self, pod: Object, node: int) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        container, log = self._kind.container, Pod(node, uid)
        reader = Reader(log, self._cache)

        async def current_life() -> podlog.Life:
            return self._life(pod)

        client, namespace, seen = self._session.client, self._scope.namespace, SeenLines()
        try:
            while True:
                batches = podlog.follow(client, namespace, name, container, ended=current_life, seen=seen)
                try:
                    async with aclosing(batches):
                        async for lines in batches:
                            for round_, events in self._rounds.parts(uid, reader.events(lines)):
                                await self._rounds.reach(uid, round_)
                                await self._queue.put(events)
                            if self._has_ended(pod):  # a running pod may write for ever
                                self._read = time.monotonic()
                            self._cache.add(log, lines)  # in order, too: the next follow replays the cache
                    break
                except OpenFilesError as exc:
                    # Report, once, that some logs wait for others to end, and let this one wait
                    if not self._said_files:
                        self._said_files = True
                        files = f"the logs of node {node} and others are read once other logs have ended"
                        text = f"{files}: {exc}"
                        await self._queue.put([ev.Notice(self._session.client.now(), text)])
                    await self._rounds.remove(uid)  # the file it needs may be held by a later round's log
                    await asyncio.sleep(_FILES_LOOK_S)
                    self._rounds.add(uid, partial(self._has_ended, pod))
        except ClusterError as exc:
            text = f"the rest of node {node}'s log can't be read: {exc}"
            await self._queue.put([ev.Notice(self._session.client.now(), text)])
        await self._rounds.remove(uid)
        await self._queue.put([])  # to check whether the job is over

    def _has_ended(self, pod: Object) -> bool:
        return self._life(pod).ended

    def _life(self, pod: Object) -> podlog.Life:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        return life(self._troubles.pod(name, uid), self._kind.container)

    async def _tend(self) -> list[ev.Event]:
        # Before everything is listed, the state doesn't show what the job needs.
        if self._controller is None or self._unlisted or not self._queue.empty():
            return []
        return await self._controller.tend(self._state, reading=self._reading)

    @property
    def _reading(self) -> bool:
        return any(not task.done() for task in self._logs.values())

    async def _next(self) -> list[ev.Event]:
        """Return the next events; none when it is time to check whether the job is over."""
        if self._failed is not None and self._queue.empty():
            raise self._failed
        waits = self._controller.wake(self._state) if self._controller else None
        if self._decided is not None:
            waits = 1.0
        with suppress(asyncio.TimeoutError):
            async with loop.timeout(waits):
                return await self._queue.get()
        return []

    def _over(self) -> bool:
        """Whether there is nothing left to wait for, by the rules in the module's docstring."""
        if self._unlisted or not self._queue.empty() or self._misses:
            return False
        now = time.monotonic()
        # Whether an end was reported, and still stands
        state = self._state
        if state.verdict is None and state.removed is None and state.cancelled is None:
            decides = False  # or no longer: the job was suspended, and goes on
        elif state.next is not None:
            decides = False
        else:
            decides = self._controller is None or not self._controller.owes(state)
        if not decides:
            self._decided = self._concluded = None
            self._looked = self._looked and self._state.verdict is not None
            return False
        self._decided = self._decided or now
        if not conclusive(self._state):
            # Wait this many seconds for the facts that are still missing.
            ended = self._state.verdict is not None or self._state.removed is not None
            return now - self._decided > (_VERDICT_GRACE_S if ended else math.inf)
        self._concluded = self._concluded or now
        # Wait this many seconds for the rest of the logs, from the conclusion or the last lines on.
        verdict = self._state.verdict
        grace = _FAILURE_GRACE_S if verdict is not None and not verdict.succeeded else _LOG_GRACE_S
        return not self._reading or now - max(self._concluded, self._read) > grace


def sound(state: JobState) -> bool:
    """Whether a job can be left to its operator: nothing of its newest attempt has ended."""
    outcomes = (state.verdict, state.cancelled, state.removed, state.next)
    if any(outcome is not None for outcome in outcomes):
        return False
    return state.all_over if state.suspended else state.working and not losses(state)
