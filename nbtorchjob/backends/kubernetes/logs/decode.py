"""One pod's log as events; its lines are cached on this machine as they come."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import add, itemgetter

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.logs.cache import JobCache, Parts, Pod
from nbtorchjob.backends.kubernetes.logs.follow import Life
from nbtorchjob.backends.kubernetes.logs.lines import Lines
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import seconds
from nbtorchjob.runtime.store import frames
from nbtorchjob.runtime.store.store import LOG
from nbtorchjob.state import events as ev

_HUNDREDTHS = len(b"2026-01-01T00:00:00.00")
_LAST = b"~"  # sorts behind whatever stands in a stamp


class Reader:
    """Makes events of the lines of one pod's log, and a file of each value among them."""

    def __init__(self, pod: Pod, cache: JobCache) -> None:
        self._pod = pod
        self._cache = cache
        self._parser = frames.Parser()
        self._parts = Parts()

    def events(self, lines: Lines) -> list[ev.Event]:
        """Return what the lines say, each rank's text where its first line stood."""
        placed: list[tuple[int, ev.Event]] = []
        heard = lines.written[-1:]
        for at, others in lines.others.items():
            for stamp, line in others:
                frame = self._parser.feed(line)
                if frame is not None:
                    placed += [(at, event) for event in self._of(stamp, frame)]
                    if at == len(lines.logs) and not (
                        isinstance(frame, frames.Fact) and frame.record.get("event") in ev.LOOKED
                    ):
                        heard = [stamp]
        placed += _chunks(lines)
        wrote = [ev.Wrote(_seconds(stamp)) for stamp in heard]
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
            event = ev.believed(frame.record)
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
    """Yield what ranks wrote, each with the index of its first line among theirs."""
    columns = (lines.written, lines.offsets, lines.marks, lines.texts)
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
    """Yield one log's text, in several chunks where lines are missing or come again."""
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
    """Return the spans that were written to stderr, of pieces that follow one another."""
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
        # They ascend, as a node writes its ranks' text to one stream; where they don't, more is told.
        at = max(at + 1, bisect_right(stamps, stamps[at][:_HUNDREDTHS] + _LAST, at))
        times.append((ends[at - 1], _seconds(stamps[at - 1])))
    return tuple(times)


def _seconds(stamp: bytes) -> float:
    return seconds(stamp.decode("ascii", "replace"))


class Fresh:
    """Lets each byte of a job's logs through once: what was cached comes again from its pod."""

    def __init__(self, known: Mapping[tuple[int, int], int]) -> None:
        self._ends = dict(known)

    def part(self, event: ev.Event) -> ev.Event | None:
        """Return what an event says that is new, if anything; of facts all is."""
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
    """Yield what the cached logs say: their pods may be gone by now, or have been rotated."""
    # By when each wrote its first line: names of pods don't say which attempt came first.
    for pod in sorted(cache.pods(), key=lambda pod: _began(cache.lines(pod))):
        yield from cached_log(Reader(pod, cache), cache.lines(pod))


def _began(lines: Iterator[Lines]) -> bytes:
    return next((part.stamps[0] for part in lines), b"")


def cached_log(reader: Reader, lines: Iterable[Lines]) -> Iterator[ev.Event]:
    """Yield what the cached lines of one pod say."""
    for part in lines:
        yield from reader.events(part)


def life(pod: Object | None, container: str) -> Life:
    """Describe what is known of a pod's container."""
    if pod is None:
        return Life(ended=True, gone=True)
    status = reading.status(pod)
    statuses: list[Object] = status.get("containerStatuses") or []
    current = next((status for status in statuses if status.get("name") == container), {})
    never = (pod.get("spec") or {}).get("restartPolicy") == "Never"
    terminated = (current.get("state") or {}).get("terminated") is not None
    ended = reading.ended(pod) or (never and terminated)
    return Life(int(current.get("restartCount") or 0), ended=ended)
