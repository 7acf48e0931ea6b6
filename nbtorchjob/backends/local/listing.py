"""All jobs of this machine, each read again only where something was added to it.

A list costs a ``stat`` for a job that has ended: its events never change, and are read once.
"""

from __future__ import annotations

import marshal
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import islice
from pathlib import Path
from typing import Any

from nbtorchjob.backends.local import liveness, waits
from nbtorchjob.backends.local.ended import Mark
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.backends.local.jobdir.events import EventFile
from nbtorchjob.backends.progress import DISPLAYED, REPORTED, USED, Telling
from nbtorchjob.errors import DamagedError
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.events import UNREADABLE, Lost, Wrote, read

# What reading a folder raises that another kernel is deleting, or that a power cut has left.
DAMAGED = (OSError, DamagedError, *UNREADABLE)

_MOST_LOGS = 256  # of a job, looked at in each look
_ALIKE = 2  # marshal's last version in which what is alike has the same bytes
_UNSORTED = 4096  # reports of a job that may have ended, which then tell nothing


class Listing:
    """Remembers what was read from look to look; any thread may ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder = Path()
        self._known: dict[str, Listed] = {}
        self._left_out: set[str] = set()

    @contextmanager
    def leaving_out(self, name: str) -> Iterator[None]:
        """Go on without a job that can't be read, and say so once, unless it is being deleted."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            pass
        except DAMAGED as exc:
            if name not in self._left_out:
                self._left_out.add(name)
                import logging  # late: it is seldom needed

                logging.getLogger(__name__).warning("%s isn't listed: %s", name, exc)

    def look(self, folder: Path, without: Callable[[str, Mark], bool] = lambda *_: False) -> list[Listed]:
        """Return the jobs whose folders lie in ``folder``, ``without`` some that the caller knows."""
        with self._lock:
            known, self._known = (self._known if folder == self._folder else {}), {}
            self._folder = folder
            for name in os.listdir(folder):
                if not name.startswith(".") and name.isprintable():
                    with self.leaving_out(name):
                        stat = os.stat(f"{folder}/{name}/events.jsonl")
                        if without(name, _mark(stat)):
                            continue
                        job = self._known[name] = known.get(name) or Listed(JobDirectory(folder / name))
                        job.seen(stat)
            return [*self._known.values()]


class Listed:
    """A job's folder, as it was at the last look."""

    __slots__ = ("_begun", "_lock", "_read", "_state", "changed", "closed", "folder", "mark", "ttl")

    def __init__(self, folder: JobDirectory) -> None:
        self.folder = folder
        self.ttl = folder.ttl_s()
        self.changed = 0.0  # when its newest event was written
        self.mark: Mark | None = None  # another one once there is more to read
        self.closed = False  # whether its events say that it has ended, as far as they were read
        self._lock = threading.Lock()
        self._read: Mark | None = None
        self._state: JobState | None = None
        self._begun: _Begun | None = None

    def look(self) -> None:
        """Look whether there is more to read."""
        self.seen(os.stat(self.folder.events))

    def seen(self, stat: os.stat_result) -> None:
        """Take in how the file of its events is."""
        self.mark, self.changed = _mark(stat), stat.st_mtime

    def state(self) -> JobState:
        """Return what is known of it now, without logs and sources; raises one of ``DAMAGED``."""
        with self._lock:
            if self._state is None or self._state.ended is None or self._read != self.mark:
                self._read, self._state = self.mark, self._look()
            return self._state

    def expired(self, now: float) -> bool:
        """Whether it ended longer ago than it asked to be kept; raises as :meth:`state` does."""
        # The last event is the end: until its time is old there is no need to read it.
        return self._old(now) and self.state().ended is not None and self._old(now)

    def _old(self, now: float) -> bool:
        return now - self.changed >= self.ttl

    def _look(self) -> JobState:
        made = _mark(os.stat(self.folder.path / "job.json"))
        if self._begun is None or self._begun.made != made:  # a job that was deleted may be made again
            self.ttl = self.folder.ttl_s()
            alive, events = liveness.Liveness(self.folder), EventFile(self.folder.events)
            self._begun = _Begun(made, alive, events, JobState(_brief(self.folder)))
        state = self._begun.read()
        gone = self._begun.alive.why() if state.ended is None else None
        if gone is not None:
            state = self._begun.read()  # its last words may have come in between
        self.closed = state.ended is not None
        if gone is not None and not self.closed:
            state = apply(state, Lost(self.changed, gone))
        if state.ended is None:
            waiting = None if state.nodes else waits.told(self.folder)
            return self._heard(state) if waiting is None else apply(state, waiting)
        self._begun = None
        return replace(state, series={}, variables={}, uses={})

    def _heard(self, state: JobState) -> JobState:
        """Return the state that knows when its ranks wrote last."""
        ranks = ((node.index, node.round, rank) for node in state.members for rank in node.ranks)
        logs = self.folder.rank_logs(islice(ranks, _MOST_LOGS))
        wrote = max(map(_written, logs), default=0.0)
        return apply(state, Wrote(wrote)) if wrote else state


@dataclass(slots=True)
class _Begun:
    """What was read of a job that goes on; ``made`` tells it from a later one of its name."""

    made: Mark
    alive: liveness.Liveness
    events: EventFile
    known: JobState

    def read(self) -> JobState:
        """Return what is known now."""
        self.known = _told(self.known, self.events.lines())
        return self.known


def _brief(folder: JobDirectory) -> JobInfo:
    """Return what is written down of a job, in as little memory as thousands of them should take."""
    info = folder.info()
    spec = {key: _one(marshal.dumps(part, _ALIKE)) for key, part in info.spec.items()}
    return replace(info, sources={}, spec=spec, variant="")


@lru_cache(maxsize=256)
def _one(part: bytes) -> Any:
    """Return the same object for the same part of a spec: of most jobs nearly all parts are alike."""
    return marshal.loads(part)


def _written(log: str) -> float:
    """When a log was written last; 0 where there is none."""
    try:
        return os.stat(log).st_mtime
    except FileNotFoundError:
        return 0.0


def _mark(stat: os.stat_result) -> Mark:
    # File systems give a number to the next file once its file is gone, but hardly in the same instant.
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _told(state: JobState, lines: Iterable[bytes]) -> JobState:
    """Return the state that knows the lines, too; of a living job some of what it tells all the time."""
    facts: list[bytes] = []
    reports: list[bytes] = []
    telling = Telling()
    for line in lines:
        if line.startswith(DISPLAYED):
            continue
        (reports if line.startswith((REPORTED, USED)) else facts).append(line)
        if len(reports) == _UNSORTED:
            telling.add(*reports)
            reports.clear()
    state = reduce(apply, read(facts), state)
    if state.ended is not None:
        return state
    telling.add(*reports)
    return reduce(apply, read(telling.lines), state)
