"""All jobs of this machine and of the clusters, polled while anybody wants to know.

Each scope is polled by itself, so that one that hangs or refuses delays no other. What is known is
returned at once; when nobody has asked for a while, nothing is polled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from nbtorchjob.backends import ROWS, backend
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.handlers import installed
from nbtorchjob.frontends.server.ids import JobId
from nbtorchjob.frontends.server.limiter import Lanes
from nbtorchjob.frontends.server.updates.changes import BackendScope, Changes, Look
from nbtorchjob.frontends.server.updates.history import History
from nbtorchjob.frontends.server.updates.poller import Poller
from nbtorchjob.ui.record import Record, as_of

T = TypeVar("T")

_INTEREST_S = 150.0  # a page asks every minute, and a lost answer doesn't make it blind
_FIND_S = 10.0  # between two searches for scopes to which kernels have newly sent jobs
PATIENCE_S = 2.0  # with what isn't here

_log = logging.getLogger(__name__)


@dataclass
class _Watched:
    """A scope that is watched, and what was seen there last."""

    scope: BackendScope
    poller: Poller
    look: Look


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
        self._asked = float("-inf")
        self._answered = False  # whether any page has seen what was known
        self._watched: dict[BackendScope, _Watched] = {}
        self._notes: dict[str, str] = {}  # by lane
        self._logged: dict[str, str] = {}  # what went wrong in a lane when it was looked at last
        # Where a new kernel sends its jobs isn't known before it sends one.
        self._finding = {name: Poller(partial(self._find, name), _FIND_S, self._wanted) for name in every}

    async def jobs(self) -> tuple[list[Record], list[str]]:
        """Return the records of all jobs, oldest first, and why some may be missing, a line each.

        It reflects whatever was done through this server. It waits for a cluster only so long.
        """
        self._asked = self._clock()
        for poller in (*self._finding.values(), *(watched.poller for watched in self._watched.values())):
            poller.begin()
        await asyncio.gather(*map(self._caught_up, self._finding))
        self._answered = True
        now = time.time()
        found = [
            as_of(job, now) for watched in self._watched.values() for job in watched.look.records.values()
        ]
        return sorted(found, key=lambda job: job["created"]), [*self._notes.values()]

    def job(self, job: JobId) -> Record | None:
        """Return the record of a job that was seen lately; else None."""
        watched = self._watched.get(BackendScope(job.backend, job.scope))
        if watched is None or not watched.poller.fresh or watched.scope.lane in self._notes:
            return None
        found = watched.look.records.get(str(job))
        return found and as_of(found, time.time())

    def again(self, job: JobId) -> None:
        """Look again at a job's scope, as something was done to the job."""
        watched = self._watched.get(BackendScope(job.backend, job.scope))
        if watched is not None:
            watched.poller.again()

    async def stop(self) -> None:
        """Stop looking. Looks that hang are left alone: their threads delay nobody."""
        every = (*self._finding.values(), *(watched.poller for watched in self._watched.values()))
        await asyncio.gather(*(poller.stop() for poller in every))

    def _wanted(self) -> bool:
        return self._clock() - self._asked < _INTEREST_S

    async def _caught_up(self, name: str) -> None:
        with suppress(asyncio.TimeoutError):  # the builtin one only from Python 3.11 on
            patience = None if ROWS[name].here else self._patience
            await asyncio.wait_for(self._all_caught_up(name), patience)

    async def _all_caught_up(self, name: str) -> None:
        await self._finding[name].caught_up()
        those = [watched for scope, watched in self._watched.items() if scope.backend == name]
        await asyncio.gather(*(watched.poller.caught_up() for watched in those))

    async def _find(self, name: str) -> None:
        """Start watching new scopes, and stop where this user has no jobs any more."""
        found = await self._ask(f"{name} (scopes)", name, lambda: backend(name).scopes())
        if found is None:
            return
        scopes = {BackendScope(name, each) for each in found}
        for scope in scopes - self._watched.keys():
            self._begin(scope)
        for scope in [each for each in self._watched if each.backend == name and each not in scopes]:
            await self._end(self._watched.pop(scope))

    def _begin(self, scope: BackendScope) -> None:
        self._notes[scope.lane] = f"jobs in {scope} aren't known yet: it hasn't answered"
        poller = Poller(lambda: self._look(watched), self._every[scope.backend], self._wanted)
        watched = self._watched[scope] = _Watched(scope, poller, Look())
        poller.begin()

    async def _end(self, watched: _Watched) -> None:
        await watched.poller.stop()
        self._notes.pop(watched.scope.lane, None)
        self._announce(Changes(removed=[*watched.look.records]))

    async def _look(self, watched: _Watched) -> None:
        scope, before = watched.scope, watched.look
        found = await self._ask(scope.lane, f"{scope}", lambda: before.again(scope, self._roots))
        if found is not None:
            watched.look, changes = found
            self._announce(changes)

    def _announce(self, changes: Changes) -> None:
        if changes:
            self.history.add(changes)
        # Before the first answer there is no page that this could be news to.
        if changes and self._answered:
            self._tell(changes)

    async def _ask(self, lane: str, where: str, work: Callable[[], T]) -> T | None:
        """Do it in its lane; if that fails, a note says why until it succeeds."""
        try:
            found = await self._lanes.run(lane, lambda: installed(work))
        except NBTorchJobError as exc:
            self._notes[lane] = f"jobs in {where} can't be listed: {exc}"
        except Exception as exc:
            if self._logged.get(lane) != repr(exc):  # not each time
                self._logged[lane] = repr(exc)
                _log.exception("jobs in %s can't be listed", where)
            self._notes[lane] = f"jobs in {where} can't be listed: see the Jupyter server's log for why"
        else:
            self._notes.pop(lane, None)
            self._logged.pop(lane, None)
            return found
        return None
