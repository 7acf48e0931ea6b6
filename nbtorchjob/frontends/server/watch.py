"""All jobs of this machine and of the clusters: polled while pages ask for them, with what has changed.

Each scope is polled on its own, so that one that hangs or refuses delays no other. Known jobs are returned at
once; when no page has asked for a while, nothing is polled.

Only callers with this extension's permission get an answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from nbtorchjob.backends import backend
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.handlers import JobId, Lanes, installed
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import loop
from nbtorchjob.spec.jobspec import PLACES
from nbtorchjob.ui.record import Record, as_of, below, record


class Poller:
    """Does ``work`` at an interval while it is ``is_wanted``, never twice at a time."""

    def __init__(
        self, work: Callable[[], Awaitable[None]], every: float, is_wanted: Callable[[], bool]
    ) -> None:
        self._work, self._every, self._is_wanted = work, every, is_wanted
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._ended = asyncio.Event()  # a new event each time
        self._stopped = False
        self.fresh = False  # whether work that began after the last ``again`` has ended

    def begin(self) -> None:
        """Start polling, unless that is running."""
        if not self._going:
            self._ended, self._stopped = asyncio.Event(), False
            self._task = asyncio.get_running_loop().create_task(self._run())

    def again(self) -> None:
        """Do the work at once, or if it is under way, once more as soon as it is done."""
        self.fresh = False
        self._again.set()

    async def caught_up(self) -> None:
        """Wait until work that began after the last :meth:`again` has ended."""
        while self._going and not self.fresh:
            await self._ended.wait()

    async def stop(self) -> None:
        """Stop, even in the middle of the work."""
        if self._task is not None:
            # Before Python 3.12, ``wait_for`` loses a cancellation that comes when its awaitable has ended.
            self._stopped = True
            self._again.set()
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def _going(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        try:
            while self._is_wanted() and not self._stopped:
                self._again.clear()
                await self._work()
                self.fresh = not self._again.is_set()
                self._ended.set()
                self._ended = asyncio.Event()
                alarm = asyncio.get_running_loop().call_later(self._every, self._again.set)
                await self._again.wait()
                alarm.cancel()
        finally:
            self.fresh = False
            self._ended.set()


_log = logging.getLogger(__name__)


class BackendScope(FrozenDataclass):
    """A backend, and one of its ``scopes``: where jobs are listed together."""

    backend: str
    name: str

    @property
    def lane(self) -> str:
        """The lane of looks at it, which take no room from what is done to single jobs."""
        return f"{self.backend}:{self.name} (all jobs)"

    @property
    def ids(self) -> str:
        """The beginning of its jobs' ids."""
        return f"{self.backend}:{self.name}/" if self.name else f"{self.backend}:"

    def __str__(self) -> str:
        return self.name or "this machine"


class Note(FrozenDataclass):
    """A line on why jobs whose ids begin with ``ids`` may be missing or outdated."""

    ids: str
    text: str


class Changes(FrozenDataclass):
    """What changed since the last look: records, and ids of jobs that are gone."""

    changed: Sequence[Record] = ()
    removed: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


class Look(FrozenDataclass):
    """What a look saw: records by id, ``originals`` as the backend made them, and as pages get them."""

    originals: Mapping[str, Record] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)

    def again(self, scope: BackendScope, roots: Sequence[str]) -> tuple[Look, Changes]:
        """Look once more; raises what the backend raises."""
        jobs = {job["id"]: job for job in backend(scope.backend).summaries(record, scope=scope.name)}
        # This machine returns the same record of an ended job each time, and there may be thousands.
        records = {
            id_: self.records[id_] if self.originals.get(id_) is job else below(job, roots)
            for id_, job in jobs.items()
        }
        changed = []
        for id_, job in records.items():
            before = self.records.get(id_)
            # Pages advance what depends on the clock themselves.
            if before is not job and (before is None or _lasting(before) != _lasting(job)):
                changed.append(job)
        removed_ids = [id_ for id_ in self.records if id_ not in records]
        return Look(jobs, records), Changes(changed, removed_ids)


def _lasting(job: Record) -> Record:
    progress = job["progress"]
    return {**job, "elapsed": None, "progress": progress and {**progress, "left": None}}


_MOST_REMOVED = 4096


class News(FrozenDataclass):
    """Records, ids of removed jobs, the ``mark`` for the next request; ``whole``: there are no other jobs."""

    jobs: Sequence[Record]
    removed: Sequence[str]
    whole: bool
    mark: str


class History:
    """Numbers changes, and remembers each job's newest."""

    def __init__(self) -> None:
        self._born = secrets.token_hex(4)  # another server's marks mean nothing here
        self._number = 0
        self._changed: dict[str, int] = {}
        self._removed: dict[str, int] = {}  # the oldest first
        self._forgotten = 0  # up to this number, it isn't known what was removed

    def add(self, changes: Changes) -> None:
        """Record what a look found."""
        self._number += 1
        for job in changes.changed:
            self._removed.pop(job["id"], None)
            self._changed[job["id"]] = self._number
        for id_ in changes.removed:
            self._changed.pop(id_, None)
            self._removed.pop(id_, None)
            self._removed[id_] = self._number
        while len(self._removed) > _MOST_REMOVED:
            self._forgotten = self._removed.pop(next(iter(self._removed)))

    def since(self, page_mark: str, records: Sequence[Record]) -> News:
        """Return which of ``records``, all present jobs, are new to a page with the mark ``page_mark``."""
        mark = f"{self._born}.{self._number}"
        born, _, number = page_mark.partition(".")
        newest = int(number) if born == self._born and number.isdecimal() and len(number) < 16 else -1
        if not self._forgotten <= newest <= self._number:
            return News(records, (), whole=True, mark=mark)
        jobs = [job for job in records if self._changed.get(job["id"], self._number) > newest]
        return News(jobs, [id_ for id_, at in self._removed.items() if at > newest], whole=False, mark=mark)


T = TypeVar("T")

_INTEREST_S = 150.0  # a page asks every minute, and may miss one answer
_FIND_S = 10.0  # between two searches for new scopes that kernels have sent jobs to
PATIENCE_S = 2.0  # with scopes that aren't on this machine


def _finds(name: str) -> str:
    """Return the lane of searches for a backend's scopes."""
    return f"{name} (scopes)"


@dataclass
class _WatchedScope:
    """A watched scope, and what was last seen there."""

    scope: BackendScope
    poller: Poller
    look: Look
    seen: float = float("-inf")


class Watch:
    """Knows all jobs. ``tell`` is called on changes; ``roots`` are the folders of the served notebooks.

    In seconds: ``every``, by backend, is the interval between two looks at a scope, ``patience`` is how long
    an answer waits for a scope that isn't on this machine.
    """

    def __init__(
        self,
        lanes: Lanes,
        every: Mapping[str, float],
        tell: Callable[[Changes], None],
        roots: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE_S,
    ) -> None:
        self._lanes, self._every, self._tell = lanes, every, tell
        self._roots, self._clock, self._patience = roots, clock, patience
        self.history = History()
        self._last_request = float("-inf")
        self._answered = False  # whether any page has had an answer
        self._watched: dict[BackendScope, _WatchedScope] = {}
        # By lane. Jobs may be there that this server has never seen.
        self._notes = {_finds(name): Note(f"{name}:", f"jobs ({name}) aren't listed yet") for name in every}
        self._logged: dict[str, str] = {}  # by lane: what went wrong at the last look
        # The scopes of a new kernel's jobs are unknown until it sends one.
        self._finding = {name: Poller(partial(self._find, name), _FIND_S, self._is_wanted) for name in every}

    async def jobs(self) -> tuple[list[Record], list[Note]]:
        """Return the records of all jobs, oldest first, and why some may be missing or outdated.

        It reflects whatever was done through this server. A cluster has ``patience`` seconds to answer.
        """
        self._last_request = self._clock()
        for poller in (*self._finding.values(), *(watched.poller for watched in self._watched.values())):
            poller.begin()
        await asyncio.gather(*map(self._caught_up, self._finding))
        self._answered = True
        now = time.time()
        records = [
            as_of(job, now) for watched in self._watched.values() for job in watched.look.records.values()
        ]
        late = [note for watched in self._watched.values() if (note := self._late(watched))]
        return sorted(records, key=lambda job: job["created"]), [*self._notes.values(), *late]

    def job(self, job: JobId) -> Record | None:
        """Return the record of a job that was seen lately; else None."""
        watched = self._watched.get(BackendScope(job.backend, job.scope))
        if watched is None or not watched.poller.fresh or watched.scope.lane in self._notes:
            return None
        job_record = watched.look.records.get(str(job))
        return job_record and as_of(job_record, time.time())

    def again(self, job: JobId) -> None:
        """Look again at a job's scope, after something was done to the job."""
        watched = self._watched.get(BackendScope(job.backend, job.scope))
        if watched is not None:
            watched.poller.again()

    async def stop(self) -> None:
        """Stop looking. Looks that hang are left alone: their threads delay nobody."""
        every = (*self._finding.values(), *(watched.poller for watched in self._watched.values()))
        await asyncio.gather(*(poller.stop() for poller in every))

    def _is_wanted(self) -> bool:
        return self._clock() - self._last_request < _INTEREST_S

    def _late(self, watched: _WatchedScope) -> Note | None:
        """Return a note on a scope that hasn't answered since pages ask again, unless it has refused."""
        scope = watched.scope
        if scope.lane in self._notes or self._clock() - watched.seen < _INTEREST_S:
            return None
        status = "may have changed" if watched.seen >= 0 else "aren't listed yet"
        return Note(scope.ids, f"jobs in {scope} {status}: it hasn't answered")

    async def _caught_up(self, name: str) -> None:
        with suppress(asyncio.TimeoutError):  # the builtin TimeoutError only from Python 3.11 on
            async with loop.timeout(self._patience if PLACES[name].remote else None):
                await self._finding[name].caught_up()
                watched_scopes = [
                    watched for scope, watched in self._watched.items() if scope.backend == name
                ]
                await asyncio.gather(*(watched.poller.caught_up() for watched in watched_scopes))

    async def _find(self, name: str) -> None:
        """Start watching new scopes, and stop watching those where this user has no jobs any more."""
        names = await self._ask(_finds(name), f"{name}:", name, lambda: backend(name).scopes())
        if names is None:
            return
        scopes = {BackendScope(name, scope_name) for scope_name in names}
        for scope in scopes - self._watched.keys():
            self._begin(scope)
        for scope in [scope for scope in self._watched if scope.backend == name and scope not in scopes]:
            watched = self._watched.pop(scope)
            await watched.poller.stop()
            self._notes.pop(watched.scope.lane, None)
            self._announce(Changes(removed=[*watched.look.records]))

    def _begin(self, scope: BackendScope) -> None:
        poller = Poller(lambda: self._look(watched), self._every[scope.backend], self._is_wanted)
        watched = self._watched[scope] = _WatchedScope(scope, poller, Look())
        poller.begin()

    async def _look(self, watched: _WatchedScope) -> None:
        scope, before = watched.scope, watched.look
        result = await self._ask(scope.lane, scope.ids, f"{scope}", lambda: before.again(scope, self._roots))
        if result is not None:
            watched.look, changes = result
            watched.seen = self._clock()
            self._announce(changes)

    def _announce(self, changes: Changes) -> None:
        if changes:
            self.history.add(changes)
        # Before the first answer, this is news to no page.
        if changes and self._answered:
            self._tell(changes)

    async def _ask(self, lane: str, ids: str, where: str, work: Callable[[], T]) -> T | None:
        """Do ``work`` in its lane; if that fails, a note on these ``ids`` says why until it succeeds."""
        try:
            result = await self._lanes.run(lane, lambda: installed(work))
        except NBTorchJobError as exc:
            self._notes[lane] = Note(ids, f"jobs in {where} can't be listed: {exc}")
        except Exception as exc:
            if self._logged.get(lane) != repr(exc):  # not each time
                self._logged[lane] = repr(exc)
                _log.exception("jobs in %s can't be listed", where)
            self._notes[lane] = Note(ids, f"jobs in {where} can't be listed: see the Jupyter server's log")
        else:
            self._notes.pop(lane, None)
            self._logged.pop(lane, None)
            return result
        return None
