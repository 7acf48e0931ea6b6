"""One pod's log as events; its lines are cached on this machine as they come."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.logs.cache import JobCache, Parts, Pod
from nbtorchjob.backends.kubernetes.logs.follow import Life
from nbtorchjob.backends.kubernetes.logs.lines import Line
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import seconds
from nbtorchjob.runtime import frames
from nbtorchjob.runtime.store import LOG
from nbtorchjob.state import events as ev

_HUNDREDTHS = len(b"2026-01-01T00:00:00.00")
# What is in front of text with a newline behind it (``runtime/frames.py``).
_heads = re.compile(rb"^(\d{1,9})\.(\d{1,12})\.(\d{1,18}) ", re.MULTILINE).split
_BATCH = 4096  # cached lines that are read at a time: what follows on among them becomes one event


class Reader:
    """Makes events of the lines of one pod's log, and a file of each value among them."""

    def __init__(self, pod: Pod, cache: JobCache) -> None:
        self._pod = pod
        self._cache = cache
        self._parser = frames.Parser()
        self._parts = Parts()

    def events(self, lines: Sequence[Line]) -> list[ev.Event]:
        """Return what the lines say."""
        found = _logs(lines) or self._parser.read(lines)
        told = [event for stamp, frame in found for event in self._of(stamp, frame)]
        heard = next((stamp for stamp, frame in reversed(found) if not _looked(frame)), None)
        return [*told, *([ev.Wrote(_seconds(heard))] if heard is not None else [])]

    def _of(self, stamp: bytes, frame: frames.Frame) -> Iterator[ev.Event]:
        if isinstance(frame, frames.LogPiece):
            yield ev.LogChunk(*frame[:4], times=_times(frame.stamps))
        elif isinstance(frame, frames.Output):
            yield ev.NodeOutput(_seconds(stamp), self._pod.node, self._pod.uid, frame.text)
        elif isinstance(frame, frames.ValuePart):
            self._parts.add(frame)
        else:
            yield from self._fact(frame)

    def _fact(self, frame: frames.Fact) -> Iterator[ev.Event]:
        event = ev.believed(frame.record)
        if isinstance(event, ev.Sent) and event.ref.startswith(f"{LOG}#"):
            data = self._parts.take(event)
            if data is not None:
                self._cache.put(event, data)
        if isinstance(event, ev.WorkersStarted | ev.NodeFailed):
            # Times of pods and of the API are too coarse to tell which of two pods it was.
            event = replace(event, pod=self._pod.uid)
        if event is not None:
            yield event


def _logs(lines: Sequence[Line]) -> list[tuple[bytes, frames.Frame]] | None:
    """Return what ``Parser.read`` does, in two thirds of the time, of whole lines of ranks' logs.

    None of others, and where something is missing between two of a log: here is no object for each line.
    """
    before, *found = _heads(b"\n".join([*(data for _, data in lines), b""]))
    ranks, rounds, offsets, texts = (found[at::4] for at in range(4))
    if before or len(ranks) != len(lines):
        return None
    logs: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
    for index, log in enumerate(zip(ranks, rounds, strict=True)):
        logs[log].append(index)
    out: list[tuple[bytes, frames.Frame]] = []
    for (rank, round_), where in logs.items():
        starts = [int(offsets[index]) for index in where]
        data = [texts[index] for index in where]
        *ends, end = accumulate(map(len, data), initial=starts[0])
        if ends != starts:
            return None
        stamps = tuple(zip([*ends[1:], end], (lines[index][0] for index in where), strict=True))
        piece = frames.LogPiece(int(rank), int(round_), starts[0], b"".join(data), stamps)
        out.append((lines[where[0]][0], piece))
    return out


def _looked(frame: frames.Frame) -> bool:
    return isinstance(frame, frames.Fact) and frame.record.get("event") in ev.LOOKED


def _times(stamps: Iterable[tuple[int, bytes]]) -> tuple[tuple[int, float], ...]:
    """Return when bytes were written, to a hundredth of a second: a busy rank writes 1000 lines in one."""
    found = {each[1][:_HUNDREDTHS]: each for each in stamps}
    # Lines of stdout and stderr may stand the other way round.
    return tuple(sorted((offset, _seconds(stamp)) for offset, stamp in found.values()))


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
        return replace(event, offset=start, data=data, times=tuple(t for t in event.times if t[0] > start))


def cached_logs(cache: JobCache) -> Iterator[ev.Event]:
    """Yield what the cached logs say: their pods may be gone by now, or have been rotated."""
    # By when each wrote its first line: names of pods don't say which attempt came first.
    for pod in sorted(cache.pods(), key=lambda pod: next((stamp for stamp, _ in cache.lines(pod)), b"")):
        yield from cached_log(Reader(pod, cache), cache.lines(pod))


def cached_log(reader: Reader, lines: Iterator[Line]) -> Iterator[ev.Event]:
    """Yield what the cached lines of one pod say, a part in memory at a time."""
    while batch := list(islice(lines, _BATCH)):
        yield from reader.events(batch)


def life(pod: Object | None, container: str) -> Life:
    """Describe what is known of a pod's container."""
    if pod is None:
        return Life(ended=True, gone=True)
    status = reading.status(pod)
    statuses: list[Object] = status.get("containerStatuses") or []
    found = next((each for each in statuses if each.get("name") == container), {})
    never = (pod.get("spec") or {}).get("restartPolicy") == "Never"
    terminated = (found.get("state") or {}).get("terminated") is not None
    over = status.get("phase") in ("Succeeded", "Failed")
    return Life(int(found.get("restartCount") or 0), ended=over or (never and terminated))
