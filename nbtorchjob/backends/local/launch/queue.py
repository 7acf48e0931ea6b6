"""Whose turn it is on this machine: a job waits until there is room for its ranks.

    queue/waiting/NAME    what a job takes up, in a line of JSON, until its turn comes
    queue/running/NAME    the same for a job whose turn has come, until it has ended

No process is dedicated to this. The processes that submit a job, that saw one end (its warden) or that follow
a waiting one take the next step, one at a time: jobs that have ended leave, and those that there is room for
now are returned, to be started. So nothing is lost when a kernel or a pool dies.

Single jobs don't wait for runs of a group, only for each other; runs wait for all jobs. So a sweep keeps no
single job waiting, and this machine has at most twice as many ranks as it has room for. In each of the two
classes kernels take turns, and no job is overtaken by one that needs less room. Labs hold no place, as they
mostly rest. A job with a rank that is stopped in the debugger gives up its place meanwhile, which may take
hours. GPUs are never shared: a run has one for each rank of a node, any other job all that it sees.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from nbtorchjob.backends.local import directory, liveness
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.errors import DamagedError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import plain
from nbtorchjob.machine.processes import Process, locked
from nbtorchjob.state.facts.factlines import UNREADABLE

RANKS = "NBTORCHJOB_RANKS_AT_ONCE"  # how many there is room for, by default as many as cores; 0: no limit
_LAST = 128  # bytes at the end of a job's facts, enough for ``Closed``
_DAMAGED = (OSError, DamagedError, *UNREADABLE)


class Place(FrozenDataclass):
    """The share of this machine that a job occupies, and what decides when its turn comes.

    ``most`` is how many ranks its sender has room for, None without a limit. It needs ``wants`` of the GPUs
    in ``gpus``, and has those in ``holds`` once it runs. ``starter`` is the process that starts it. A job
    that runs ``beside`` others waits for no room, only for its GPUs.
    """

    name: str
    ranks: int
    sender: str
    at: float
    most: int | None = None
    group: str = ""
    at_once: int | None = None
    gpus: tuple[str, ...] = ()
    wants: int = 0
    holds: tuple[str, ...] = ()
    starter: Process | None = None
    beside: bool = False


class QueuePosition(NamedTuple):
    """How many jobs a waiting job is behind, and which hold the places that it waits for."""

    many: int
    own_place: Place
    holders: list[Place]

    @property
    def lacks_gpus(self) -> bool:
        """Whether fewer GPUs are free than it asks for."""
        return len(_free(self.own_place, self.holders)) < self.own_place.wants


def place(job: JobDirectory) -> Place:
    """Return the place of a job that this process sends."""
    info, me = job.info(), Process.of(os.getpid())
    visible = info.jobspec.env.get(processes.VISIBLE)
    lab = info.lab is not None
    gpus = processes.device_names(visible) if not lab else ()
    wants = min(len(gpus), info.nproc_per_node) if info.group else len(gpus)
    limit = os.environ.get(RANKS, "")
    room = (int(limit) or None) if limit.isdecimal() else len(os.sched_getaffinity(0))
    return Place(
        name=info.name,
        ranks=0 if lab else info.nodes[1] * info.nproc_per_node,
        sender=f"{me.pid}-{me.started}",
        at=info.created,
        most=room,
        group=info.group,
        at_once=info.at_once,
        gpus=gpus,
        wants=wants,
    )


def due(waiting: Iterable[Place], running: Iterable[Place]) -> list[Place]:
    """Return the jobs whose turn it is, in order, with the GPUs that they hold from then on."""
    waiting, running = [*waiting], [*running]
    places: list[Place] = []
    for entry in [entry for entry in waiting if entry.beside]:
        free = _free(entry, running)
        if len(free) >= entry.wants:
            places.append(replace(entry, holds=tuple(free[: entry.wants])))
            running.append(places[-1])
        waiting.remove(entry)
    spoken_for: set[str] = set()  # GPUs that a single job waits for
    for grouped in (False, True):
        for entry in _in_turn([w for w in waiting if bool(w.group) is grouped], running):
            alike = sum(other.group == entry.group for other in running)
            if entry.at_once is not None and alike >= entry.at_once:
                continue  # its group has no room for it, which doesn't hold up other jobs
            free = [gpu for gpu in _free(entry, running) if gpu not in spoken_for]
            others = sum(r.ranks for r in running if entry.group or not r.group)
            fits = entry.most is None or not others or not entry.ranks or others + entry.ranks <= entry.most
            if not fits or len(free) < entry.wants:
                spoken_for.update(entry.gpus if entry.wants else ())
                break
            places.append(replace(entry, holds=tuple(free[: entry.wants])))
            running.append(places[-1])
    return places


def _free(entry: Place, running: Iterable[Place]) -> list[str]:
    held_gpus = {gpu for other in running for gpu in other.holds}
    return [gpu for gpu in entry.gpus if gpu not in held_gpus]


def ahead(name: str, waiting: Collection[Place], running: Collection[Place]) -> int | None:
    """Return how many jobs a waiting job is behind; None if it doesn't wait."""
    own_place = next((entry for entry in waiting if entry.name == name), None)
    if own_place is None:
        return None
    alike = [entry for entry in waiting if bool(entry.group) is bool(own_place.group)]
    before = [entry.name for entry in _in_turn(alike, running)].index(name)
    singles = sum(not entry.group for entry in waiting) if own_place.group else 0
    return before + len(_in_the_way(own_place, running)) + singles


def _in_the_way(own_place: Place, running: Iterable[Place]) -> list[Place]:
    """Return the running jobs with what ``own_place`` waits for: places, or GPUs, which aren't shared."""
    running = [*running]
    gpus = {*own_place.gpus} if len(_free(own_place, running)) < own_place.wants else set[str]()
    return [
        entry
        for entry in running
        if not gpus.isdisjoint(entry.holds) or (entry.ranks and (own_place.group or not entry.group))
    ]


def _in_turn(waiting: Iterable[Place], running: Collection[Place]) -> list[Place]:
    """Return waiting jobs of one class in the order of their turns: kernels take turns."""
    turns = Counter(entry.sender for entry in running)
    order = []
    for entry in sorted(waiting, key=lambda place: place.at):
        order.append((turns[entry.sender], entry.at, entry))
        turns[entry.sender] += 1
    return [entry for _, _, entry in sorted(order, key=lambda turn: turn[:2])]


def take(new: Sequence[Place] = ()) -> list[Place]:
    """Take the next step, with the ``new`` jobs; return those that the caller is to start now."""
    me = Process.of(os.getpid())
    with _alone() as folder:
        running, waiting = _read(folder / "running"), _read(folder / "waiting")
        going = {}
        for name, entry in running.items():
            goes_on = _goes_on(entry)
            if goes_on:
                going[name] = entry
            elif goes_on is None and name not in waiting:
                waiting[name] = entry  # the process that was to start it is gone
                _write(folder / "waiting", entry)
            if not goes_on:
                (folder / "running" / name).unlink(missing_ok=True)
        for name in [name for name in waiting if name in going or _over(name)]:
            (folder / "waiting" / name).unlink(missing_ok=True)
            del waiting[name]
        # New jobs go behind all that wait: the clock may have been set back since those came.
        latest, fresh = max((place.at for place in waiting.values()), default=-math.inf), []
        for place in new:
            latest = max(place.at, math.nextafter(latest, math.inf))
            fresh.append(replace(place, at=latest))
        held_places = map(_current_place, going.values())
        starts = [replace(entry, starter=me) for entry in due([*waiting.values(), *fresh], held_places)]
        for entry in starts:
            _write(folder / "running", entry)
            if entry.name in waiting:
                (folder / "waiting" / entry.name).unlink(missing_ok=True)
        begun = {start.name for start in starts}
        for entry in fresh:
            if entry.name not in begun:
                _write(folder / "waiting", entry)
    return starts


def give_back(places: Iterable[Place]) -> None:
    """Let other processes start the jobs that the caller was to start and hasn't handed over."""
    with _alone() as folder:
        for entry in places:
            if (folder / "running" / entry.name).exists():
                _write(folder / "running", replace(entry, starter=None))


def _goes_on(entry: Place) -> bool | None:
    """Whether a job whose turn has come runs, or is being started; None if no process will start it."""
    job = JobDirectory(directory.jobs_dir() / entry.name)
    try:
        if job.supervisor() is None and job.handover() is None and job.events.exists():
            return True if entry.starter is not None and entry.starter.alive() else None
        if liveness.why(job) is not None:
            return False
        # A job that is closed has a supervisor for a moment more, but takes no room.
        with open(job.events, "rb", opener=plain) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
            return b'"Closed"' not in file.read().rstrip().rpartition(b"\n")[2]
    except _DAMAGED:
        return False


def leave(name: str) -> bool:
    """Remove a job from the queue; return whether it was in it."""
    with _alone() as folder:
        present = False
        for where in ("waiting", "running"):
            with suppress(FileNotFoundError):
                (folder / where / name).unlink()
                present = True
    return present


def put_beside(name: str) -> bool:
    """Let a waiting job run beside those that have its places; return whether it waited."""
    with _alone() as folder:
        entry = _read(folder / "waiting").get(name)
        if entry is not None:
            _write(folder / "waiting", replace(entry, beside=True))
    return entry is not None


def behind(name: str) -> QueuePosition | None:
    """Return what a job waits for; None if it doesn't wait."""
    if not liveness.queued(name):
        return None
    waiting, running = _contents.look(directory.queue_dir())
    running = [*map(_current_place, running)]
    many = ahead(name, waiting, running)
    if many is None:
        return None
    own_place = next(entry for entry in waiting if entry.name == name)
    return QueuePosition(many, own_place, _in_the_way(own_place, running))


def _current_place(entry: Place) -> Place:
    """Return the place of a running job, without ranks while one is stopped, which may take hours."""
    path = directory.jobs_dir() / entry.name
    return replace(entry, ranks=0) if entry.ranks and any(path.glob("*/stopped-*")) else entry


class _Contents:
    """The contents of the queue, read again only if a job has come or gone."""

    def __init__(self) -> None:
        self._marks: tuple[object, ...] = ()
        self._places: tuple[list[Place], list[Place]] = ([], [])

    def look(self, folder: Path) -> tuple[list[Place], list[Place]]:
        marks = (str(folder), *(os.stat(folder / where).st_mtime_ns for where in ("waiting", "running")))
        if marks != self._marks:
            running = _read(folder / "running")
            waiting = [entry for name, entry in _read(folder / "waiting").items() if name not in running]
            self._marks, self._places = marks, (waiting, [*running.values()])
        return self._places


_contents = _Contents()


def _over(name: str) -> bool:
    """Whether a waiting job is gone, or was ended before it began."""
    job = JobDirectory(directory.jobs_dir() / name)
    try:
        return not job.events.exists() or job.supervisor() is not None
    except _DAMAGED:
        return True


@contextmanager
def _alone() -> Iterator[Path]:
    folder = directory.queue_dir()
    with locked(folder / "lock"):
        yield folder


def _read(folder: Path) -> dict[str, Place]:
    places = {}
    for name in os.listdir(folder):
        with suppress(*_DAMAGED), open(folder / name, "rb", opener=plain) as file:
            record = json.loads(file.read())
            starter = Process(**record["starter"]) if record["starter"] else None
            lists = {key: tuple(record[key]) for key in ("gpus", "holds")}
            places[name] = Place(**{**record, **lists, "name": name, "starter": starter})
    return places


def _write(folder: Path, entry: Place) -> None:
    # Readers have the lock, or can do without a half-written entry.
    (folder / entry.name).write_text(json.dumps(asdict(entry)))
