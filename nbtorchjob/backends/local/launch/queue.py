"""Whose turn it is on this machine: a job waits until there is room for its ranks.

    queue/waiting/NAME    what a job takes up, in a line of JSON, until its turn comes
    queue/running/NAME    the same of one whose turn has come, until it has ended

No process lives for this. Whoever submits a job, whoever saw one end (its warden) and who follows one that
waits takes the next step, one at a time: what has ended leaves, what there is room for now is returned, to be
started. So a kernel or a pool that dies takes nothing along.

Jobs of their own don't wait for runs of a group, only for each other; runs wait for all. So a sweep keeps
nobody waiting, and this machine has at most twice as many ranks as it has room for. In each of the two
classes kernels take turns, and nobody is overtaken by who needs less room. Labs hold no place: mostly they
rest. A job of which a rank is stopped in the debugger gives its place up meanwhile: that may take hours. GPUs
are shared by none: a run has one for each rank of a node, any other job all that it sees.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from nbtorchjob.backends.local import liveness
from nbtorchjob.backends.local.jobdir import paths
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.errors import DamagedError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import devices
from nbtorchjob.machine.folders import plain
from nbtorchjob.machine.processes import Process
from nbtorchjob.state.events import UNREADABLE

RANKS = "NBTORCHJOB_RANKS_AT_ONCE"  # how many there is room for, by default as many as cores; 0: no limit
_LAST = 128  # bytes at the end of a job's facts, for the word that it is closed
_DAMAGED = (OSError, DamagedError, *UNREADABLE)


class Place(FrozenDataclass):
    """What a job takes up of this machine, and what decides when its turn comes.

    ``most`` is how many ranks its sender has room for, None without a limit. Of the GPUs in ``gpus`` it needs
    so many as ``wants``, and ``holds`` those once it runs. ``starter`` is who starts it.
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


def place(job: JobDirectory) -> Place:
    """Return what a job takes up that this process sends."""
    info, me = job.info(), Process.of(os.getpid())
    given = info.asked.env.get(devices.VISIBLE)
    lab = info.lab is not None
    gpus = devices.names(given) if not lab else ()
    wants = min(len(gpus), info.nproc_per_node) if info.group else len(gpus)
    return Place(
        name=info.name,
        ranks=0 if lab else info.nodes[1] * info.nproc_per_node,
        sender=f"{me.pid}-{me.started}",
        at=info.created,
        most=_room(),
        group=info.group,
        at_once=info.at_once,
        gpus=gpus,
        wants=wants,
    )


def _room() -> int | None:
    asked = os.environ.get(RANKS, "")
    if asked.isdecimal():
        return int(asked) or None
    return len(os.sched_getaffinity(0))


def due(waiting: Iterable[Place], running: Iterable[Place]) -> list[Place]:
    """Return those whose turn it is, in their order, with the GPUs that they hold then."""
    waiting, running = [*waiting], [*running]
    found: list[Place] = []
    spoken_for: set[str] = set()  # GPUs that a job of its own waits for
    for grouped in (False, True):
        for each in _in_turn([w for w in waiting if bool(w.group) is grouped], running):
            if _many(each, running):
                continue  # its group has no room for it, which is nobody else's matter
            held = {gpu for other in running for gpu in other.holds} | spoken_for
            free = [gpu for gpu in each.gpus if gpu not in held]
            if not _fits(each, running) or len(free) < each.wants:
                spoken_for.update(each.gpus if each.wants else ())
                break
            found.append(replace(each, holds=tuple(free[: each.wants])))
            running.append(found[-1])
    return found


def ahead(name: str, waiting: Collection[Place], running: Collection[Place]) -> int | None:
    """Return how many jobs one that waits is behind; None where it doesn't wait."""
    mine = next((each for each in waiting if each.name == name), None)
    if mine is None:
        return None
    alike = [each for each in waiting if bool(each.group) is bool(mine.group)]
    before = [each.name for each in _in_turn(alike, running)].index(name)
    others = [r for r in running if r.ranks and (mine.group or not r.group)]
    singles = sum(not each.group for each in waiting) if mine.group else 0
    return before + len(others) + singles


def _in_turn(waiting: Iterable[Place], running: Collection[Place]) -> list[Place]:
    """Return some of one class in the order of their turns: kernels one after the other."""
    turns = Counter(each.sender for each in running)
    order = []
    for each in sorted(waiting, key=lambda place: place.at):
        order.append((turns[each.sender], each.at, each))
        turns[each.sender] += 1
    return [each for _, _, each in sorted(order, key=lambda found: found[:2])]


def _many(each: Place, running: Iterable[Place]) -> bool:
    """Whether as many of its group run as are to."""
    return each.at_once is not None and sum(r.group == each.group for r in running) >= each.at_once


def _fits(each: Place, running: Iterable[Place]) -> bool:
    others = sum(r.ranks for r in running if each.group or not r.group)
    return each.most is None or not others or not each.ranks or others + each.ranks <= each.most


def take(new: Sequence[Place] = ()) -> list[Place]:
    """Take the next step, with jobs that are ``new``; return those that the caller starts now."""
    me = Process.of(os.getpid())
    with _alone() as folder:
        running, waiting = _read(folder / "running"), _read(folder / "waiting")
        going = {}
        for name, each in running.items():
            goes_on = _goes_on(each)
            if goes_on:
                going[name] = each
            elif goes_on is None and name not in waiting:
                waiting[name] = each  # whoever was to start it is gone
                _write(folder / "waiting", each)
            if not goes_on:
                (folder / "running" / name).unlink(missing_ok=True)
        for name in [name for name in waiting if name in going or _over(name)]:
            (folder / "waiting" / name).unlink(missing_ok=True)
            del waiting[name]
        taken = map(_taken, going.values())
        starts = [replace(each, starter=me) for each in due([*waiting.values(), *new], taken)]
        for each in starts:
            _write(folder / "running", each)
            if each.name in waiting:
                (folder / "waiting" / each.name).unlink(missing_ok=True)
        begun = {start.name for start in starts}
        for each in new:
            if each.name not in begun:
                _write(folder / "waiting", each)
    return starts


def leave(name: str) -> bool:
    """Take a job out; return whether it was in."""
    with _alone() as folder:
        found = False
        for where in ("waiting", "running"):
            with suppress(FileNotFoundError):
                (folder / where / name).unlink()
                found = True
    return found


def behind(name: str) -> tuple[int, list[str]] | None:
    """Return how many jobs one is behind, and what runs in the places; None where it doesn't wait."""
    if not liveness.queued(name):
        return None
    waiting, running = _known.look(paths.queue_dir())
    running = [*map(_taken, running)]
    many = ahead(name, waiting, running)
    return (
        None
        if many is None
        else (many, [*dict.fromkeys(each.group or each.name for each in running if each.ranks)])
    )


def _taken(each: Place) -> Place:
    """Return what a job that runs takes up: no place where a rank is stopped, which may take hours."""
    path = paths.jobs_dir() / each.name
    return replace(each, ranks=0) if each.ranks and any(path.glob("*/stopped-*")) else each


class _Known:
    """What lies in the queue, read again only where something has come or gone."""

    def __init__(self) -> None:
        self._marks: tuple[object, ...] = ()
        self._places: tuple[list[Place], list[Place]] = ([], [])

    def look(self, folder: Path) -> tuple[list[Place], list[Place]]:
        marks = (str(folder), *(os.stat(folder / where).st_mtime_ns for where in ("waiting", "running")))
        if marks != self._marks:
            running = _read(folder / "running")
            waiting = [each for name, each in _read(folder / "waiting").items() if name not in running]
            self._marks, self._places = marks, (waiting, [*running.values()])
        return self._places


_known = _Known()


def _goes_on(each: Place) -> bool | None:
    """Whether a job whose turn has come runs, or is being started; None where nobody will."""
    job = JobDirectory(paths.jobs_dir() / each.name)
    try:
        if job.supervisor() is None and job.handover() is None and job.events.exists():
            return True if each.starter is not None and each.starter.alive() else None
        return liveness.why(job) is None and not _closed(job)
    except _DAMAGED:
        return False


def _closed(job: JobDirectory) -> bool:
    """Whether a job has said its last word: its supervisor needs a moment more, and no room."""
    with open(job.events, "rb", opener=plain) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST))
        return b'"Closed"' in file.read().rstrip().rpartition(b"\n")[2]


def _over(name: str) -> bool:
    """Whether a job that waits is gone, or was ended before it began."""
    job = JobDirectory(paths.jobs_dir() / name)
    try:
        return not job.events.exists() or job.supervisor() is not None
    except _DAMAGED:
        return True


@contextmanager
def _alone() -> Iterator[Path]:
    folder = paths.queue_dir()
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _read(folder: Path) -> dict[str, Place]:
    found = {}
    for name in os.listdir(folder):
        with suppress(*_DAMAGED), open(folder / name, "rb", opener=plain) as file:
            told = json.loads(file.read())
            starter = Process(**told["starter"]) if told["starter"] else None
            lists = {key: tuple(told[key]) for key in ("gpus", "holds")}
            found[name] = Place(**{**told, **lists, "name": name, "starter": starter})
    return found


def _write(folder: Path, each: Place) -> None:
    # Whoever reads it has the lock, or can do without one that is half there.
    (folder / each.name).write_text(json.dumps(asdict(each)))
