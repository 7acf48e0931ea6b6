"""Where a rank's time went while it was profiled: from torch's trace, and from looks at its main thread.

Each moment of the main thread belongs to the first of these that it is in:

    ranks        a wait for the accelerator, which runs nothing but a collective
    accelerator  a wait for the accelerator
    data         ``DataLoader``'s ``next``, according to torch's marks or to the stack
    ranks        an operation of ``torch.distributed``
    compute      any other operation of torch
    ranks        no operation, while another thread has a collective under way: the thread waits for it
    python       no operation, while the thread uses its CPU
    idle         the rest: it sleeps, or waits for something else

CPU use is only known as a total between two looks, so Python's part has an error of some milliseconds each.

torch could record ``record_function``'s ranges and gloo's collectives itself, but that isn't safe if a
profile may end at any moment (``runtime/look/profiler``).

What the rank records besides torch's trace is merged into the trace.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.state.diagnosis.seen import DISPATCH, Sources, library, place, users_frame

Span = tuple[int, int]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return sorted spans without overlaps that cover the same time as these."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> int:
    """Return the total length of the spans."""
    return sum(end - start for start, end in spans)


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of ``spans`` that none of the others covers."""
    rest, first = [], 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = start
        for other in others[first:]:
            if other[0] >= end:
                break
            if other[0] > at:
                rest.append((at, other[0]))
            at = max(at, other[1])
        if at < end:
            rest.append((at, end))
    return rest


def common(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts that both cover."""
    return without(spans, without(spans, others))


DATA, RANKS, ACCELERATOR = "data", "ranks", "accelerator"
COMPUTE, PYTHON, IDLE = "compute", "python", "idle"

# ``_c10d_functional`` has the collectives of tensors and of compiled code, ``_dtensor`` one of its own.
_COLLECTIVE = re.compile(
    r"_?c10d(_functional\w*)?::|_dtensor::|record_param_comms|(gloo|nccl|mpi|ucc|xccl):|nccl\w*Kernel"
)
_SYNC = re.compile(r"(cu|cuda|hip)(\w*Synchronize|Memcpy(WithStream)?)$")
_LOADING = "enumerate(DataLoader)"
_OPERATIONS = ("cpu_op", "user_annotation")
_RUNTIME = ("cuda_runtime", "cuda_driver")
_DEVICES = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORIES = {*_OPERATIONS, *_RUNTIME, *_DEVICES}

# The time, the main thread's CPU time so far, the number of its stack, whether a collective was under way.
_Look = tuple[int, int, int, int]


class Operation(FrozenDataclass):
    """A torch operation: how often it ran, its own seconds without nested operations, and its line."""

    name: str
    count: int
    seconds: float
    place: str = ""


class TimeSpent(FrozenDataclass):
    """Where ``seconds`` of the requested ``asked`` went; for ``busy`` of them the accelerator worked.

    ``busy`` is None where the rank uses no accelerator.
    """

    seconds: float
    asked: float
    parts: Mapping[str, float]
    lines: tuple[tuple[str, float], ...]  # of the user's code, the longest first
    operations: tuple[Operation, ...]  # the longest first
    busy: float | None = None


class _Event(FrozenDataclass):
    name: str
    span: Span
    thread: int
    category: str

    @property
    def collective(self) -> bool:
        return bool(_COLLECTIVE.match(self.name))


def spent(record: Mapping[str, Any], trace: Mapping[str, Any], sources: Sources) -> TimeSpent:
    """Return where the time went, from a rank's ``record`` (``runtime/look/profiler``) and torch's trace.

    Raises ``LookupError``, ``TypeError`` or ``ValueError`` for what isn't such a record or trace.
    """
    began, ended = int(record["began"]), int(record["ended"])
    stacks = [
        tuple(Frame(str(file), int(number), str(name)) for file, number, name in stack)
        for stack in record["stacks"]
    ]
    looks = [(int(at), int(cpu), int(stack), int(meets)) for at, cpu, stack, meets in record["looks"]]
    events: list[_Event] = []
    base = int(trace.get("baseTimeNanoseconds", 0))
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in _CATEGORIES:
            at = base + round(float(event["ts"]) * 1000)
            start, end = max(began, at), min(ended, at + round(float(event["dur"]) * 1000))
            if start < end:
                events.append(_Event(str(event["name"]), (start, end), int(event["tid"]), event["cat"]))
    main = int(record["pid"])  # also the main thread's number
    frames = [users_frame(stack, sources) for stack in stacks]
    places = [place(frame, sources) if frame is not None else "" for frame in frames]
    seconds = (ended - began) / 1e9
    per_look = seconds / max(1, len(looks))
    lines = Counter(places[stack] for _, _, stack, _ in looks if places[stack])
    busy = length(_spans(event for event in events if event.category in _DEVICES)) / 1e9
    return TimeSpent(
        seconds,
        float(record["asked"]),
        _parts((began, ended), events, main, looks, [_kind(stack, sources) for stack in stacks]),
        tuple((line, many * per_look) for line, many in lines.most_common()),
        tuple(_operations(events, main, [(at, places[stack]) for at, _, stack, _ in looks])),
        busy if record["devices"] else None,
    )


def _kind(stack: Sequence[Frame], sources: Sources) -> str:
    """Return what a thread waits for according to its innermost frames: DATA, RANKS or ""."""
    libraries = takewhile(lambda frame: library(frame, sources), reversed(stack))
    inner = [frame.filename for frame in libraries if not DISPATCH.search(frame.filename)]
    if any("importlib" in file for file in inner):
        return ""
    if any("torch/utils/data/" in file for file in inner):
        return DATA
    # Other Python code that torch.distributed calls only prepares a wait.
    return RANKS if inner and "torch/distributed/" in inner[0] else ""


def _spans(events: Iterable[_Event]) -> list[Span]:
    return merged(event.span for event in events)


def _parts(
    whole: Span, events: Sequence[_Event], main: int, looks: Sequence[_Look], kinds: Sequence[str]
) -> dict[str, float]:
    by_kind: dict[str, list[Span]] = defaultdict(list)
    meets: list[Span] = []
    for (before, *_), (at, _, stack, under_way) in pairwise(looks):
        by_kind[kinds[stack]].append((before, at))
        meets += [(before, at)] if under_way else []
    main_events = [event for event in events if event.thread == main]
    devices = [event for event in events if event.category in _DEVICES]
    waits = _spans(event for event in main_events if event.category in _RUNTIME and _SYNC.match(event.name))
    reduced = without(
        _spans(event for event in devices if event.collective),
        _spans(event for event in devices if not event.collective),
    )
    called = [event for event in events if event.category in _OPERATIONS]
    loading = [event.span for event in main_events if event.name.startswith(_LOADING)]
    # A look only counts for the time around it where there is no event.
    steps: tuple[tuple[str, Sequence[Span]], ...] = (
        (RANKS, common(waits, reduced)),
        (ACCELERATOR, waits),
        (DATA, [*loading, *by_kind[DATA]]),
        (RANKS, [event.span for event in called if event.collective and event.thread == main]),
        (COMPUTE, [event.span for event in main_events if event.category == "cpu_op"]),
        (RANKS, [*(event.span for event in called if event.collective), *meets, *by_kind[RANKS]]),
    )
    parts = dict.fromkeys((DATA, RANKS, ACCELERATOR, COMPUTE, PYTHON, IDLE), 0.0)
    covered: list[Span] = []
    for name, spans in steps:
        more = merged([*covered, *spans])
        parts[name] += (length(more) - length(covered)) / 1e9
        covered = more
    rest = (whole[1] - whole[0] - length(covered)) / 1e9
    parts[PYTHON] = max(0.0, min(rest, _used_beside(looks, covered) / 1e9))
    parts[IDLE] = max(0.0, rest - parts[PYTHON])
    return parts


def _used_beside(looks: Sequence[_Look], covered: Sequence[Span]) -> int:
    """Return an upper bound of the time that the CPU was used outside what is ``covered``."""
    total = at = 0
    for (start, before, *_), (end, after, *_) in pairwise(looks):
        while at < len(covered) and covered[at][1] <= start:
            at += 1
        inside = 0
        for span in covered[at:]:
            if span[0] >= end:
                break
            inside += min(end, span[1]) - max(start, span[0])
        total += min(end - start - inside, after - before)
    return total


def _operations(events: Sequence[_Event], main: int, looks: Sequence[tuple[int, str]]) -> Iterator[Operation]:
    """Yield the operations by name, the longest first; each with the line found in most looks at it."""
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    lines: dict[str, Counter[str]] = defaultdict(Counter)
    moments = [at for at, _ in looks]
    threads: dict[int, list[_Event]] = defaultdict(list)
    for event in events:
        if event.category in _OPERATIONS:
            threads[event.thread].append(event)
    for thread, own in threads.items():
        for event, seconds in _nested(own):
            counts[event.name] += 1
            times[event.name] += seconds
            if thread == main:
                start, end = (bisect_left(moments, at) for at in event.span)
                lines[event.name].update(line for _, line in looks[start:end] if line)
    for name, time in times.most_common():
        where = [line for line, _ in lines[name].most_common(1)]
        yield Operation(name, counts[name], time / 1e9, where[0] if where else "")


def _nested(events: Iterable[_Event]) -> Iterator[tuple[_Event, int]]:
    """Yield each operation of a thread with its own time, without that of nested ones, in order of end."""
    opened: list[tuple[_Event, list[Span]]] = []

    def closed(until: float) -> Iterator[tuple[_Event, int]]:
        while opened and opened[-1][0].span[1] <= until:
            event, inner = opened.pop()
            yield event, length(without([event.span], merged(inner)))

    for event in sorted(events, key=lambda item: (item.span[0], -item.span[1])):
        yield from closed(event.span[0])
        if opened:
            opened[-1][1].append(event.span)
        opened.append((event, []))
    yield from closed(float("inf"))


_CATEGORY = "user_annotation"  # torch's own category for ranges and collectives


def marked(trace: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace with the ranges and collectives in a rank's ``record`` added as events.

    Raises ``LookupError``, ``TypeError`` or ``ValueError`` for what isn't such a record
    (``runtime/look/profiler``).
    """
    base, pid = int(trace.get("baseTimeNanoseconds", 0)), int(record["pid"])
    events = [_event(name, span, base, pid, pid) for name, span in _named_spans(record["ranges"])]
    rows: list[int] = []  # until when each row is taken
    for name, span in sorted(_named_spans(record["collectives"]), key=lambda item: item[1]):
        row = next((number for number, until in enumerate(rows) if until <= span[0]), len(rows))
        rows[row : row + 1] = [span[1]]
        events.append(_event(name, span, base, pid, row + 1))
    names = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": row + 1, "args": {"name": f"gloo {row + 1}"}}
        for row in range(len(rows))
    ]
    return {**trace, "traceEvents": [*trace["traceEvents"], *names, *events]}


def _named_spans(items: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Span]]:
    for name, began, ended in items:
        yield str(name), (int(began), int(ended))


def _event(name: str, span: Span, base: int, pid: int, thread: int) -> dict[str, Any]:
    start, end = ((at - base) / 1000 for at in span)
    times = {"ts": start, "dur": end - start}
    return {"ph": "X", "cat": _CATEGORY, "name": name, "pid": pid, "tid": thread, **times}
