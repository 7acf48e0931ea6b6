"""This machine's cache of a cluster's job, for when the job is gone from there: facts, logs, values.

A pod's log is decoded into events as it is read; its lines are cached as they arrive.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, pairwise
from operator import add, itemgetter
from pathlib import Path

from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import seconds
from nbtorchjob.backends.kubernetes.podlog import Life, Lines, Splitter
from nbtorchjob.errors import DamagedError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import own, plain, record
from nbtorchjob.machine.processes import Lock
from nbtorchjob.runtime.store import BY_LOG, LOG, frames
from nbtorchjob.runtime.store.frames import ValuePart
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.facts.events import ArtifactsReady, CheckoutTold, Event, Sent
from nbtorchjob.state.facts.factlines import UNREADABLE, read, to_json
from nbtorchjob.state.info import read as read_info
from nbtorchjob.state.info import why, write

_OURS = "ours"
_CHECKOUT = "checkout.json"
_RECENT = 256  # lines that are checked for repeats
_PART = 1 << 18  # bytes of a log
_MOST_UNSAVED = 4 << 20  # bytes
_VALUES = 4  # of a pod that may be incomplete at once; nodes send one at a time


class Pod(FrozenDataclass):
    """One life of a node whose log is cached."""

    node: int
    uid: str


class JobCache:
    """The folder of one job. The first process to take its lock writes it; others only read.

    Methods that read it raise ``DamagedError`` for what can't be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: Lock | None = None
        self._spools: dict[Pod, _Spool] = {}
        self._noted: set[bytes] = set()
        self._facts_file = _LineFile(folder / "facts.jsonl")

    def claim(self, info: JobInfo) -> bool:
        """Become the writer, if there is none; the system releases the lock when a process ends."""
        own(self._folder)
        lock = Lock(self._folder / "lock")
        while not lock.take(wait=False):
            # A process that checks whether there is a writer shares the lock for a moment (``followed``).
            if not lock.take(shared=True, wait=False):
                lock.release()
                return False
        self._lock = lock
        try:
            self._put_info(info)
            self._facts_file.cut()
            self._noted = set(self._facts())
        except (OSError, DamagedError):  # a full disk: the next process may have more luck
            self.release()
            raise
        return True

    def followed(self) -> float | None:
        """Return since when a process on this machine has followed the job; None if none does."""
        with suppress(OSError):
            since = (self._folder / "info.json").stat().st_mtime  # when it began
            lock = Lock(self._folder / "lock")
            try:
                return None if lock.take(shared=True, wait=False) else since
            finally:
                lock.release()
        return None

    def release(self) -> None:
        """Let another process be the writer."""
        self._spools.clear()
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def info(self) -> JobInfo | None:
        """Return the cached record of the job; None if there is none."""
        with suppress(FileNotFoundError), self._reading("record"):
            return read_info(record(self._folder / "info.json"), "kubernetes", self._name)
        return None

    def key(self) -> bytes | None:
        """Return the job's key; None unless the job was submitted, or its key read, from here before."""
        with suppress(FileNotFoundError), self._reading("key"):
            return record(self._folder / "key")
        return None

    @property
    def _name(self) -> str:
        return self._folder.name.partition(".")[0]

    @contextmanager
    def _reading(self, part: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, *UNREADABLE) as exc:
            raise DamagedError("kubernetes", self._name, part, why(exc)) from exc

    def begin(self, info: JobInfo, key: bytes, *, ours: bool) -> None:
        """Store a job's record and key at submission; a job that repeats another user's isn't ``ours``."""
        self.put_key(key)
        self._put_info(info)
        if ours:
            self._write(_OURS, b"")

    @property
    def ours(self) -> bool:
        """Whether its call was submitted from here; a job's labels prove nothing, as anyone can set them."""
        return (self._folder / _OURS).exists()

    def put_key(self, key: bytes) -> None:
        """Store the job's key, for values that outlive its Secret."""
        own(self._folder)
        self._write("key", key)

    def _put_info(self, info: JobInfo) -> None:
        self._write("info.json", write(info).encode())

    def note(self, event: Event) -> None:
        """Store a fact, once."""
        line = json.dumps(to_json(event)).encode()
        if self._lock is None or line in self._noted:
            return
        self._noted.add(line)
        self._facts_file.add(line + b"\n")

    def put_checkout(self, fact: CheckoutTold) -> None:
        """Store what git reported; the writer of the other facts may be another process."""
        self._write(_CHECKOUT, json.dumps(to_json(fact)).encode())

    def facts(self) -> list[Event]:
        """Return the cached facts, except those in the logs."""
        checkout = []
        with suppress(FileNotFoundError), self._reading("facts"):
            checkout = [record(self._folder / _CHECKOUT)]
        return [*read([*self._facts(), *checkout])]

    def _facts(self) -> list[bytes]:
        with suppress(FileNotFoundError), self._reading("facts"):
            return (self._folder / "facts.jsonl").read_bytes().split(b"\n")[:-1]
        return []

    def add(self, pod: Pod, lines: Lines) -> None:
        """Cache lines of a pod's log, each once; a full disk only means that they aren't cached."""
        if self._lock is None:
            return
        with suppress(OSError, DamagedError):
            if pod not in self._spools:
                self._spools[pod] = _Spool(self.log(pod), self.lines(pod))
            self._spools[pod].add(lines)

    def pods(self) -> list[Pod]:
        """Return the pods whose logs are cached."""
        names = [path.name.split("-", 2) for path in sorted(self._folder.glob("log-*"))]
        with self._reading("logs"):
            return [Pod(int(node), uid) for _, node, uid in names]

    def log(self, pod: Pod) -> Path:
        """Return the path of a pod's cached log: lines with their stamps."""
        return self._folder / f"log-{pod.node}-{pod.uid}"

    def lines(self, pod: Pod) -> Iterator[Lines]:
        """Yield the cached lines of a pod's log, with one part in memory at a time.

        An incomplete line, from when a process was killed, is left out.
        """
        splitter = Splitter()
        with (
            suppress(FileNotFoundError),
            self._reading("logs"),
            open(self.log(pod), "rb", opener=plain) as file,
        ):
            while part := file.read(_PART):
                if lines := splitter.feed(part):
                    yield lines

    def sent(self, sent: Sent) -> Path:
        """Return the path for a rank's value, or for a node's artifacts."""
        kind, name = ("artifacts" if isinstance(sent, ArtifactsReady) else "value"), _of(sent)
        return self._folder / f"{kind}-{name[1]}-{name[0]}"

    def put(self, sent: Sent, data: bytes) -> None:
        """Write what was sent, in one step."""
        own(self._folder)
        self._write(self.sent(sent).name, data)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> None:
        # The folder is for this user only, whatever the umask.
        partial = self._folder / f".{name}.{os.getpid()}"
        partial.write_bytes(data)
        partial.replace(self._folder / name)


class _LineFile:
    """A file that whole lines are added to; it is closed in between, as there are many such files.

    Lines that a full disk has no room for are added together with the next ones, up to some megabytes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unsaved = b""

    def cut(self) -> None:
        """Remove an incomplete line, from when a process was killed: the next one would continue it."""
        with suppress(FileNotFoundError), open(self._path, "r+b") as file:
            size = end = file.seek(0, os.SEEK_END)
            newline = -1
            while end and newline < 0:
                begin = max(0, end - _PART)
                file.seek(begin)
                newline = file.read(end - begin).rfind(b"\n")
                end = begin + newline + 1
            if end < size:
                file.truncate(end)

    def add(self, lines: bytes) -> None:
        """Add lines."""
        self._unsaved += lines
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                if os.write(fd, self._unsaved) < len(self._unsaved):
                    os.ftruncate(fd, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        except OSError:
            if len(self._unsaved) < _MOST_UNSAVED:
                return
        self._unsaved = b""


class _Spool:
    """The cached log of one pod."""

    def __init__(self, path: Path, cached_lines: Iterable[Lines]) -> None:
        self._file = _LineFile(path)
        self._file.cut()
        # Lines written close together on stdout and stderr may swap places when a log is read again.
        self._recent = deque(chain.from_iterable(lines.stamps for lines in cached_lines), _RECENT)

    def add(self, lines: Lines) -> None:
        """Add the lines that aren't there yet."""
        if self._recent and lines and min(lines.stamps) <= max(self._recent):
            stamps = set(self._recent)
            lines = Lines.of(line for line in lines if line[0] > self._recent[0] and line[0] not in stamps)
        if lines:
            self._file.add(lines.raw)
            self._recent.extend(lines.stamps[-_RECENT:])


class Parts:
    """The values and artifacts whose parts arrive in the log, until announced: a few, of bounded size.

    A node sends a value's parts one after the other, and then announces the value.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], bytearray] = {}

    def add(self, part: ValuePart) -> None:
        """Add a part, perhaps a repeated one; a part after a gap, or beyond the limit, drops its value."""
        data = self._values.pop((part.rank, part.round), bytearray())
        if part.offset > len(data) or part.offset + len(part.data) > BY_LOG:
            return
        data[part.offset : part.offset + len(part.data)] = part.data
        self._values[part.rank, part.round] = data
        if len(self._values) > _VALUES:
            del self._values[next(iter(self._values))]

    def take(self, sent: Sent) -> bytes | None:
        """Return the bytes of what is announced, if complete; they are verified when they are read."""
        data = self._values.pop(_of(sent), b"")
        return bytes(data) if data and len(data) == sent.size else None


def _of(sent: Sent) -> tuple[int, int]:
    """Return the numbers that identify parts."""
    return (sent.node, sent.attempt) if isinstance(sent, ArtifactsReady) else (sent.rank, sent.round)


_HUNDREDTHS = len(b"2026-01-01T00:00:00.00")
_LAST = b"~"  # sorts after everything in a stamp


class Reader:
    """Turns the lines of one pod's log into events, and each value among them into a file."""

    def __init__(self, pod: Pod, cache: JobCache) -> None:
        self._pod = pod
        self._cache = cache
        self._parser = frames.Parser()
        self._parts = Parts()

    def events(self, lines: Lines) -> list[ev.Event]:
        """Return the events in the lines, with each rank's text at the place of its first line."""
        placed: list[tuple[int, ev.Event]] = []
        stamps = lines.rank_stamps[-1:]
        for at, others in lines.others.items():
            for stamp, line in others:
                frame = self._parser.feed(line)
                if frame is not None:
                    placed += [(at, event) for event in self._of(stamp, frame)]
                    if at == len(lines.logs) and not (
                        isinstance(frame, frames.Fact) and frame.record.get("event") in ev.LOOKED
                    ):
                        stamps = [stamp]
        placed += _chunks(lines)
        wrote = [ev.Wrote(_seconds(stamp)) for stamp in stamps]
        return [*(event for _, event in sorted(placed, key=itemgetter(0))), *wrote]

    def _of(self, stamp: bytes, frame: frames.Frame) -> Iterator[ev.Event]:
        if isinstance(frame, frames.LogPiece):
            whole = (frame.offset, frame.offset + len(frame.data))
            yield ev.LogChunk(*frame[:4], stderr=(whole,) if frame.stderr else ())
        elif isinstance(frame, frames.Output):
            yield ev.NodeOutput(_seconds(stamp), self._pod.node, self._pod.uid, frame.text)
        elif isinstance(frame, frames.ValuePart):
            self._parts.add(frame)
        else:
            event = factlines.believed(frame.record)
            if isinstance(event, ev.Sent) and event.ref.startswith(f"{LOG}#"):
                data = self._parts.take(event)
                if data is not None:
                    self._cache.put(event, data)
            if isinstance(event, ev.WorkersStarted | ev.NodeFailed | ev.EnvironmentTold):
                # Times of pods and of the API are too coarse to tell which of two pods it was.
                event = replace(event, pod=self._pod.uid)
            if event is not None:
                yield event


def _chunks(lines: Lines) -> Iterator[tuple[int, ev.LogChunk]]:
    """Yield what ranks wrote, each chunk with the index of its first line among all ranks' lines."""
    columns = (lines.rank_stamps, lines.offsets, lines.marks, lines.texts)
    if lines.logs and lines.logs.count(lines.logs[0]) == len(lines.logs):
        yield from _log(lines.logs[0], range(len(lines.logs)), *columns)
        return
    logs: dict[bytes, list[int]] = defaultdict(list)
    for index, log in enumerate(lines.logs):
        logs[log].append(index)
    for log, where in logs.items():
        yield from _log(log, where, *([column[index] for index in where] for column in columns))


def _log(
    log: bytes,
    where: Sequence[int],
    stamps: Sequence[bytes],
    offsets: Sequence[bytes],
    marks: Sequence[bytes],
    texts: Sequence[bytes],
) -> Iterator[tuple[int, ev.LogChunk]]:
    """Yield one log's text, in several chunks if lines are missing or repeated."""
    rank, round_ = map(int, log.split(b"."))
    if marks.count(b" ") < len(marks):
        texts = [frames.ended(text[:-1], mark) for text, mark in zip(texts, marks, strict=True)]
    starts = [*map(int, offsets)]
    ends = [*map(add, starts, map(len, texts))]
    edges = [0, len(starts)]
    if starts[1:] != ends[:-1]:
        edges[1:1] = [at for at in range(1, len(starts)) if starts[at] != ends[at - 1]]
    for begin, end in pairwise(edges):
        times = _times(ends[begin:end], stamps[begin:end])
        data = b"".join(texts[begin:end])
        stderr = _stderr(starts[begin:end], ends[begin:end], marks[begin:end])
        yield where[begin], ev.LogChunk(rank, round_, starts[begin], data, times, stderr)


def _stderr(
    starts: Sequence[int], ends: Sequence[int], marks: Sequence[bytes]
) -> tuple[tuple[int, int], ...]:
    """Return the spans of consecutive pieces that were written to stderr."""
    if frames.STDERR.isdisjoint(marks):
        return ()
    spans: list[tuple[int, int]] = []
    for start, end, mark in zip(starts, ends, marks, strict=True):
        if mark in frames.STDERR:
            joined = spans.pop()[0] if spans and spans[-1][1] == start else start
            spans.append((joined, end))
    return tuple(spans)


def _times(ends: Sequence[int], stamps: Sequence[bytes]) -> tuple[tuple[int, float], ...]:
    """Return when bytes were written, to a hundredth of a second: a busy rank writes 1000 lines in one."""
    times, at = [], 0
    while at < len(ends):
        # Stamps ascend, as a node writes its ranks' text to one stream; if they don't, more times are kept.
        at = max(at + 1, bisect_right(stamps, stamps[at][:_HUNDREDTHS] + _LAST, at))
        times.append((ends[at - 1], _seconds(stamps[at - 1])))
    return tuple(times)


def _seconds(stamp: bytes) -> float:
    return seconds(stamp.decode("ascii", "replace"))


class Fresh:
    """Lets each byte of a job's logs through once: cached bytes come again from their pod."""

    def __init__(self, ends: Mapping[tuple[int, int], int]) -> None:
        self._ends = dict(ends)

    def part(self, event: ev.Event) -> ev.Event | None:
        """Return the new part of an event, if any; facts are always new."""
        if not isinstance(event, ev.LogChunk):
            return event
        log = (event.rank, event.round)
        start = max(event.offset, self._ends.get(log, 0))
        data = event.data[start - event.offset :]
        if not data:
            return None
        self._ends[log] = start + len(data)
        return replace(
            event,
            offset=start,
            data=data,
            times=tuple(t for t in event.times if t[0] > start),
            stderr=tuple((max(a, start), b) for a, b in event.stderr if b > start),
        )


def cached_logs(cache: JobCache) -> Iterator[ev.Event]:
    """Yield the events in the cached logs: their pods may be gone by now, or their logs rotated."""
    # Ordered by each pod's first line: the names of pods don't say which attempt came first.
    began = {pod: next((part.stamps[0] for part in cache.lines(pod)), b"") for pod in cache.pods()}
    for pod in sorted(began, key=began.__getitem__):
        yield from cached_log(Reader(pod, cache), cache.lines(pod))


def cached_log(reader: Reader, lines: Iterable[Lines]) -> Iterator[ev.Event]:
    """Yield the events in the cached lines of one pod."""
    for part in lines:
        yield from reader.events(part)


def life(pod: Object | None, container: str) -> Life:
    """Return the state of a pod's container."""
    if pod is None:
        return Life(ended=True, missing=True)
    status = reading.status(pod)
    statuses: list[Object] = status.get("containerStatuses") or []
    current = next((status for status in statuses if status.get("name") == container), {})
    never = (pod.get("spec") or {}).get("restartPolicy") == "Never"
    terminated = (current.get("state") or {}).get("terminated") is not None
    ended = reading.ended(pod) or (never and terminated)
    return Life(int(current.get("restartCount") or 0), ended=ended)
