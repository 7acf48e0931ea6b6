"""All jobs of this machine, and what one waits for before its turn.

A job is read again only if something was added to it: listing an ended one costs a ``stat``. Summaries of
ended jobs are kept in a file, for the next process that lists them. The file is only a cache: a damaged one
counts as empty, and other code uses another file. If several processes write it at once, one wins, and the
next list adds the rest.
"""

from __future__ import annotations

import json
import marshal
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache, lru_cache, reduce
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias, TypeVar

from nbtorchjob.backends.local import directory, liveness
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.backends.progress import Telling
from nbtorchjob.errors import DamagedError, NotOwnError
from nbtorchjob.frozen import NumberedMapping, replace
from nbtorchjob.machine.folders import own, record
from nbtorchjob.runtime.objects.wire import plain
from nbtorchjob.state import JobInfo, JobState, Series, apply
from nbtorchjob.state.facts.events import Lost, Waiting, Wrote
from nbtorchjob.state.facts.factlines import UNREADABLE, read
from nbtorchjob.state.progress import hang, last_sign
from nbtorchjob.text import words

V = TypeVar("V")

Mark: TypeAlias = "tuple[int, int, int]"  # of a job's events file; changes once there is more to read

_MOST = 10_000  # jobs in the file: another process reads the folders of any others itself
_PIECE = 256  # jobs that are written and parsed at once
_FEW = 4  # with no more pieces, jobs don't share equal parts
_MOST_FILES = 4  # for different code, as in environments with other versions, and for different functions


class Line(NamedTuple):
    """The summary of a job, which holds while its events have ``mark``, and until a time."""

    mark: Mark
    until: float  # when the job expires
    summary: Any


class Summaries:
    """The summaries that one function made of ended jobs, kept in memory and in a file.

    The file is written once a hundredth of it would be new: writing it for each job that ends would take as
    long as for all earlier jobs together.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = self._file_lines = self._read()

    def get(self, name: str, mark: Mark, now: float) -> Line | None:
        """Return a job's summary if it still holds, given the current mark of the job's events."""
        line = self._lines.get(name)
        return line if line is not None and line.mark == mark and now < line.until else None

    def keep(self, lines: dict[str, Line]) -> None:
        """Keep these summaries, and no others."""
        self._lines = lines
        first = dict(islice(lines.items(), _MOST))
        alike = sum(self._file_lines.get(name) is line for name, line in first.items())
        if len(first) + len(self._file_lines) - 2 * alike <= len(first) // 100:
            return
        # Some jobs per line: parsing all at once would take three times the memory of the result.
        items = [*first.items()]
        pieces = (items[at : at + _PIECE] for at in range(0, len(items), _PIECE))
        text = "\n".join(json.dumps(piece, separators=(",", ":")) for piece in pieces).encode()
        partial = self._path.with_name(f".{os.getpid()}.{token_hex(4)}")
        with suppress(OSError, NotOwnError):  # a full disk, maybe: then the next process makes them again
            own(self._path.parent)
            try:
                with open(partial, "wb", opener=plain) as file:
                    file.write(b"%d\n%b" % (zlib.crc32(text), text))
                os.replace(partial, self._path)
            finally:
                partial.unlink(missing_ok=True)
            newest_first = sorted(self._path.parent.iterdir(), key=lambda file: -file.stat().st_mtime)
            for old in newest_first[_MOST_FILES:]:
                old.unlink(missing_ok=True)
        self._file_lines = first

    def _read(self) -> dict[str, Line]:
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            checksum, _, text = record(self._path).partition(b"\n")
            if int(checksum) == zlib.crc32(text):
                pieces, kept = text.splitlines(), dict[str, Line]()
                for piece in pieces:
                    for name, (mark, until, summary) in json.loads(piece):
                        # For few jobs, as a command lists them, sharing takes longer than it is worth.
                        summary = alike(summary) if len(pieces) > _FEW else summary
                        kept[name] = Line(tuple(mark), until, summary)
                return kept
        return {}


def alike(summary: Any) -> Any:
    """Return a summary that shares equal strings and parts with other summaries."""
    if type(summary) is not dict:
        return summary
    shared: dict[str, Any] = {}
    for key, value in summary.items():
        kind = type(value)
        if kind is str:
            value = sys.intern(value)
        elif kind in (dict, list):
            value = _interned(marshal.dumps(value, _ALIKE)) if value else _EMPTY[kind]
        shared[key] = value
    return shared


def waiting(job: JobDirectory) -> Waiting | None:
    """Return what a job waits for; None if it doesn't wait."""
    if not liveness.queued(job.path.name) or job.supervisor() is not None:
        return None
    from nbtorchjob.backends.local.launch import pool_client, queue  # late: most jobs don't wait

    pool_client.step_now_and_then()
    ahead = queue.behind(job.path.name)
    if ahead is None:
        return None
    # Which job has the places, what it is doing, and how many come first.
    now, (many, place, holders) = time.time(), ahead
    if not many or not holders:
        return Waiting(now, f"behind {words.count(many, 'job')}" if many else "next on this machine")
    does = {entry.name: _does(entry.name, now) for entry in holders}
    lacking = {*place.gpus} if ahead.lacks_gpus else set[str]()
    gpus = {entry.name: len(lacking.intersection(entry.holds)) for entry in holders}
    holder = max(holders, key=lambda entry: (does[entry.name].stuck, gpus.get(entry.name, 0), entry.ranks))
    alike = [entry for entry in holders if entry.group == holder.group and (entry.group or entry is holder)]
    ranks = sum(entry.ranks for entry in alike)
    share = f"{ranks} of {words.count(place.most, 'place')}" if place.most else words.count(ranks, "place")
    exclusive = bool(gpus.get(holder.name))
    if exclusive:
        share = words.count(gpus[holder.name], "GPU")
    stuck = does[holder.name].stuck
    name = holder.name if stuck else holder.group or holder.name
    more = f"; behind {words.count(many, 'job')}" if many > 1 else ""
    text = f"waits for {name}: {does[holder.name].text}, holds {share}{more}"
    return Waiting(now, text, holder=name, stuck=stuck, exclusive=exclusive)


class _Doing(NamedTuple):
    """What a job that holds places is doing."""

    text: str
    stuck: bool


_LOOK_S = 1.0  # between two looks at a job that others wait for
_holders: dict[str, tuple[ListedJob | None, float, _Doing]] = {}


def _does(name: str, now: float) -> _Doing:
    """Return what a job is doing, as of a moment ago."""
    listed, looked, doing = _holders.get(name) or (None, 0.0, _Doing("running", stuck=False))
    if not 0 <= now - looked < _LOOK_S:
        with suppress(*DAMAGED):
            listed = listed or ListedJob(directory.jobs_dir(), name)
            listed.look()
            state = listed.state()
            if state.stopped:
                text, since = "stopped in the debugger", min(stop.time for stop in state.stopped)
            elif (hung := hang(state, now)) is not None and not hung.slow:
                text, since = "hanging", last_sign(state)
            else:
                text, since = "running", state.first_start or state.info.created
            doing = _Doing(f"{text} for {words.about(now - since)}", stuck=text != "running")
        for stale_name in [other for other, (_, at, _) in _holders.items() if now - at > _FORGET_S]:
            _holders.pop(stale_name, None)
        _holders[name] = listed, now, doing
    return doing


_FORGET_S = 60.0


def tidy(over: Collection[str]) -> None:
    """Step the queue if one of these jobs, which are over, still has its place.

    An ended job has its place for a moment, and for good if its warden was killed.
    """
    with suppress(OSError, NotOwnError):
        if not {*over}.isdisjoint(os.listdir(directory.queue_dir() / "running")):
            from nbtorchjob.backends.local.launch import pool_client  # late, as above

            pool_client.step_now_and_then()


# What is raised by reading a folder that another kernel is deleting, or that a power cut has damaged.
DAMAGED = (OSError, DamagedError, *UNREADABLE)

_MOST_LOGS = 256  # of a job, checked at each look
_ALIKE = 2  # marshal's last version in which equal objects have the same bytes


class Listing:
    """Remembers from look to look what was read; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder = Path()
        self._jobs: dict[str, ListedJob] = {}
        self._left_out: set[str] = set()

    def leave_out(self, name: str, exc: Exception) -> None:
        """Log once that a job can't be read, unless it is being deleted."""
        if not isinstance(exc, FileNotFoundError | NotADirectoryError) and name not in self._left_out:
            self._left_out.add(name)
            import logging  # late: seldom needed

            logging.getLogger(__name__).warning("%s isn't listed: %s", name, exc)

    def look(self, folder: Path, without: Callable[[str, Mark], bool] = lambda *_: False) -> list[ListedJob]:
        """Return the jobs whose folders lie in ``folder``, except those that ``without`` is true for."""
        with self._lock:
            previous, self._jobs = (self._jobs if folder == self._folder else {}), {}
            self._folder = folder
            for name in os.listdir(folder):
                if name.startswith(".") or not name.isprintable():
                    continue
                try:
                    stat = os.stat(f"{folder}/{name}/events.jsonl")
                    if without(name, _mark(stat)):
                        continue  # it isn't remembered here, either
                    job = self._jobs[name] = previous.get(name) or ListedJob(folder, name)
                    job.seen(stat)
                except DAMAGED as exc:
                    self.leave_out(name, exc)
            return [*self._jobs.values()]


class ListedJob:
    """A job's folder, as it was at the last look."""

    __slots__ = (
        *("_begun", "_home", "_lock", "_read", "_record_hash", "_state"),
        *("changed", "closed", "mark", "name", "ttl"),
    )

    def __init__(self, home: Path, name: str) -> None:
        self._home = home
        self.name = name
        self._record_hash = self._record()
        self.ttl = self.folder.ttl_s()
        self.changed = 0.0  # when its newest event was written
        self.mark: Mark | None = None  # changes once there is more to read
        self.closed = False  # whether its events, as far as they were read, say that it has ended
        self._lock = threading.Lock()
        self._read: Mark | None = None
        self._state: JobState | None = None
        self._begun: _Begun | None = None

    @property
    def folder(self) -> JobDirectory:
        """The job's folder, made at each access: the paths of thousands of jobs take megabytes."""
        return JobDirectory(self._home / self.name)

    def look(self) -> None:
        """Check whether there is more to read."""
        self.seen(os.stat(f"{self._home}/{self.name}/events.jsonl"))

    def seen(self, stat: os.stat_result) -> None:
        """Record the status of its events file."""
        self.mark, self.changed = _mark(stat), stat.st_mtime

    def state(self, *, keep: bool = True) -> JobState:
        """Return the job's state now, without logs and sources; raises one of ``DAMAGED``.

        With ``keep``, an ended job's state is kept, in as little memory as thousands of them should take.
        """
        with self._lock:
            if self._state is None or self._state.ended is None or self._read != self.mark:
                state = self._look()
                if state.ended is not None and not keep:
                    self._read = self._state = None
                    return state
                if state.ended is not None:
                    info = state.info
                    spec = {
                        sys.intern(key): _interned(marshal.dumps(part, _ALIKE))
                        for key, part in info.spec.items()
                    }
                    labels = _interned(marshal.dumps(dict(info.sources), _ALIKE))
                    state = _compact(replace(state, info=_compact(replace(info, sources=labels, spec=spec))))
                self._read, self._state = self.mark, state
            return self._state

    def expired(self, now: float) -> bool:
        """Whether its time to live since its end is over; raises as :meth:`state` does."""
        # The last event is the end: until the file is old enough there is no need to read it.
        return self._old(now) and self.state().ended is not None and self._old(now)

    def _old(self, now: float) -> bool:
        return now - self.changed >= self.ttl

    def _look(self) -> JobState:
        record_hash = self._record()
        if record_hash != self._record_hash:  # a job that was deleted may be made again
            self._record_hash, self._begun, self.ttl = record_hash, None, self.folder.ttl_s()
        self._begun = self._begun or _Begun(self.folder)
        state = self._begun.read(self.mark)
        reason = self._begun.alive.why() if state.ended is None else None
        if reason is not None:
            state = self._begun.read()  # its last facts may have come in between
        self.closed = state.ended is not None
        if reason is not None and not self.closed:
            state = apply(state, Lost(self.changed, reason))
        if state.ended is None:
            waits = None if state.nodes else waiting(self.folder)
            if waits is not None:
                return apply(state, waits)
            ranks = ((node.index, node.round, rank) for node in state.members for rank in node.ranks)
            wrote = max(map(_write_time, self.folder.rank_logs(islice(ranks, _MOST_LOGS))), default=0.0)
            return apply(state, Wrote(wrote)) if wrote else state
        self._begun = None
        # Only the newest value of each metric, which a list shows, without the earlier ones
        spoken = state.spoken
        series: NumberedMapping[Series] = NumberedMapping()
        if spoken.points:
            newest = replace(spoken.points[-1], metrics=spoken.newest)
            one = replace(Series().add(spoken.round, newest), firsts=spoken.firsts)
            series = NumberedMapping([(state.info.speaker, one)])
        return replace(state, series=series, variables={}, uses=NumberedMapping())

    def _record(self) -> int:
        """Return what tells it from a later job with its name: a number, as thousands are remembered."""
        return hash(_mark(os.stat(f"{self._home}/{self.name}/job.json")))


class _Begun:
    """What was read of a job that goes on."""

    # Not a dataclass: creating the class takes longer than listing a hundred jobs.
    __slots__ = ("alive", "events", "seen", "state")

    def __init__(self, folder: JobDirectory) -> None:
        self.alive = liveness.Liveness(folder)
        self.events = EventFile(folder)
        info = folder.info()
        # Of its sources only the cells' labels: a list's line says where a rank is stopped.
        labels = {file: (label, "") for file, (label, _) in info.sources.items()}
        self.state = replace(_blank(), info=replace(info, sources=labels, variant=""))
        self.seen: Mark | None = None  # of its events when they were last read, or from before that

    def read(self, mark: Mark | None = None) -> JobState:
        """Return the state now, or the one returned before while its events have the same ``mark``.

        It has only some of the ranks' reports; for an ended job, the newest.
        """
        if mark is not None and mark == self.seen:
            return self.state
        telling = Telling()
        state = reduce(apply, read(telling.sift(self.events.lines())), self.state)
        kept = telling.lines if state.ended is None else telling.newest(state.info.speaker)
        self.state, self.seen = reduce(apply, read(kept), state), mark
        return self.state


@cache
def _blank() -> JobState:
    """Return the state of a job without facts: copying it takes a tenth of the time of making one."""
    return JobState(JobInfo(""))


# Most mappings of most jobs are empty, and most strings occur in other jobs, too.
_EMPTY: Mapping[type, Any] = {dict: {}, list: [], NumberedMapping: NumberedMapping()}


def _compact(instance: V) -> V:
    """Return the same dataclass in as little memory as thousands of them should take."""
    alike: dict[str, Any] = {}
    for name, value in vars(instance).items():
        if type(value) is str:
            alike[name] = sys.intern(value)
        else:
            alike[name] = value if value else _EMPTY.get(type(value), value)
    new = object.__new__(type(instance))
    object.__setattr__(new, "__dict__", alike)  # a dict that ``replace`` makes has twice the room it needs
    return new


@lru_cache(maxsize=256)
def _interned(part: bytes) -> Any:
    """Return the same object for equal parts of specs: most jobs have nearly all parts in common."""
    return marshal.loads(part)


def _write_time(log: str) -> float:
    """Return when a log was last written; 0 if there is none."""
    try:
        return os.stat(log).st_mtime
    except FileNotFoundError:
        return 0.0


def _mark(stat: os.stat_result) -> Mark:
    # A file system may reuse a deleted file's inode number, but hardly in the same instant.
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
