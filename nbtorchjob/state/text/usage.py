"""What a job uses of its machines, in words: what matters most, and how memory rose before it ran out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from nbtorchjob.state import Failure, JobState, Phase
from nbtorchjob.state.diagnosis.seen import WaitsFor, standing
from nbtorchjob.state.facts.series import Point, Use
from nbtorchjob.text.words import TIMES, clip, count, duration, line, number, ranks, size

_WINDOW_S = 300.0  # earlier use doesn't count
_LATELY_S = 60.0  # memory that hasn't risen for this long has stopped rising
_FULL = 0.9  # memory use that is worth a line, as a part of the limit
_HALF = 0.5  # the same if memory rises so that it will be full in `_SOON_S`
_SOON_S = 600.0
_RISES = 0.03  # of the limit, within the window
_SHM_FULL = 0.9
_IDLE, _WATCHED_S = 0.5, 30.0
_FOUND_S = 60.0  # a sample up to this old may explain idle GPUs
_CROWDED, _TIMES = 2.0, 3  # running threads per core, in the median of this many of the newest points
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 24
_MOST_NODES = 16
_MAX_CELL = 60
_MOST_CURVES = 8  # nodes
# Ends that memory may have caused: the reasons say so for the first, and suppose it for the second.
_KILLED = ("OOMKilled", "SIGKILL")
_NEAR = 0.8

KINDS = CPU, MEMORY, GPU = "CPU", "memory", "GPU"  # of strips
HEAD = ("node", "memory", "highest", "over time", "CPU", "threads", "/dev/shm", "GPUs")


Curve: TypeAlias = list[tuple[float, float]]  # by time


class _Level(NamedTuple):
    used: float
    limit: float
    rising: float  # bytes per second

    @property
    def filled(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def matters(state: JobState) -> str:
    """Return the one thing about a running job's use that matters most; empty where nothing does."""
    if state.phase is not Phase.RUNNING:
        return ""
    uses = {node: use for node, use in state.uses.items() if state.base(use.newest.round) == state.round}
    levels = {node: _level(_recent(use)) for node, use in uses.items()}
    worst = max(levels, key=lambda node: (levels[node].filled, -node), default=None)
    if worst is None:
        memory = ""
    else:
        level = levels[worst]
        rising = level.rising * _WINDOW_S > _RISES * level.limit
        soon = rising and level.limit - level.used < level.rising * _SOON_S
        if level.filled < (_HALF if soon else _FULL):
            memory = ""
        else:
            memory = f"memory {_of(level.used, level.limit)}{_where(worst, state)}" + (
                ", and rising" if rising else ""
            )
    steps = [step for use in uses.values() for step in _watched(_recent(use))]
    busy, watched = (sum(step[at] for step in steps) for at in (1, 2))
    if watched < _WATCHED_S or 1 - busy / watched < _IDLE:
        gpus = ""
    else:
        # What ranks were found to wait for, which may be why GPUs have nothing to do
        since = max(use.newest.time for use in state.uses.values()) - _FOUND_S
        newest = [
            sample
            for sample in state.samples.values()
            if sample.round == state.round and sample.time >= since
        ]
        stands = [standing(rank, item.time, state.info.sources) for item in newest for rank in item.samples]
        loading = [stand.rank for stand in stands if stand.waits is WaitsFor.DATALOADER]
        inside = {item.inside: [e.rank for e in stands if e.inside == item.inside] for item in stands}
        inside.pop("", None)
        waits = (
            {"for data": loading} if loading else {f"in {line(op, 40)}": who for op, who in inside.items()}
        )
        why = next(
            (f"{ranks(who)} {'waits' if len(who) == 1 else 'wait'} {text}" for text, who in waits.items()), ""
        )
        gpus = f"GPUs idle {100 * (1 - busy / watched):.0f} % of the time" + (f": {why}" if why else "")
    shm = ""
    for node, use in sorted(uses.items()):
        used, limit = use.newest.shm, use.newest.shm_limit
        if limit and used > _SHM_FULL * limit:
            shm = f"/dev/shm {_of(used, limit)}{_where(node, state)}"
            break
    texts = (memory, shm, gpus, _cpu(uses, state))
    return next((text for text in texts if text), "")


def _level(points: Sequence[Point]) -> _Level:
    last = points[-1]
    lately = [point for point in points if point.time >= last.time - _LATELY_S]
    # Loading a model is a step up, which looks like a slope while the window includes its foot.
    rising = min(_slope(points), _slope(lately if len(lately) > 1 else points[-2:]))
    return _Level(last.metrics["memory"], last.metrics["limit"], rising)


def _slope(points: Sequence[Point]) -> float:
    """Return how many bytes per second memory rose by from the first to the last of the points."""
    took = points[-1].time - points[0].time
    rose = points[-1].metrics["memory"] - points[0].metrics["memory"]
    return rose / took if took > 0 else 0.0


def _where(node: int, state: JobState) -> str:
    if not state.info.cluster:
        return " on this machine"
    return f" on node {node}" if state.info.nodes[1] > 1 else ""


def _cpu(uses: Mapping[int, Use], state: JobState) -> str:
    """Describe that more threads compute than there are cores; all local nodes share the machine's cores."""
    from statistics import median  # late: its fractions and decimals are slow to import

    together = [list(uses.values())] if uses and not state.info.cluster else [[use] for use in uses.values()]
    for crowd in together:
        newest = [[point.metrics["running"] for point in _recent(use)[-_TIMES:]] for use in crowd]
        cores = crowd[0].newest.cores
        many = sum(len(use.newest.uses) for use in crowd)
        running = sum(median(counts) for counts in newest)
        crowded = all(len(counts) == _TIMES for counts in newest) and running >= _CROWDED * cores
        if many and cores and crowded:
            working = sum(counts.worked for use in crowd for counts in use.newest.uses)
            counts = max(1, round(max(running, working) / many))
            return f"CPU: {count(many, 'rank')} {TIMES} {count(counts, 'thread')} on {_cores(cores)}"
    return ""


def _cores(cores: float) -> str:
    return "1 core" if cores == 1 else f"{number(cores)} cores"


def _recent(use: Use) -> Sequence[Point]:
    since = use.newest.time - _WINDOW_S
    points = use.series.points
    return [point for point in points if point.time >= since] or points[-1:]


def before(failure: Failure, state: JobState) -> str:
    """Describe how a node's memory rose before it was killed, if memory may be the reason; else ""."""
    use = state.uses.get(failure.node) if failure.node is not None else None
    word = next((word for word in _KILLED if word in failure.reason.line), "")
    if use is None or not word:
        return ""
    rounds = {stretch.round: stretch.points for stretch in use.series.stretches}
    points = [point for point in rounds.get(failure.round, ()) if point.time <= failure.time + 1]
    points = [point for point in points if point.time >= points[-1].time - _WINDOW_S]
    if not points:
        return ""
    last = points[-1].metrics
    if word == "SIGKILL" and last["memory"] < _NEAR * last["limit"]:
        return ""
    first = min(points, key=lambda point: point.metrics["memory"])
    level = _of(last["memory"], last["limit"])
    ago = duration(max(0.0, failure.time - points[-1].time))
    if first is points[-1] or last["memory"] - first.metrics["memory"] < _RISES * last["limit"]:
        return f"Memory was at {level}, {ago} before."
    rose = size(int(first.metrics["memory"]))
    return (
        f"Memory had risen from {rose} to {level} in {duration(points[-1].time - first.time)}, {ago} before."
    )


def rows(state: JobState) -> list[tuple[str, ...]]:
    """Return :data:`HEAD` and a row for each node; nothing where no node has reported its use."""
    table = []
    for node, use in sorted(state.uses.items())[:_MOST_NODES]:
        newest, points = use.newest, use.series.points
        memory = [point.metrics["memory"] for point in points]
        threads = [task.tasks for task in newest.uses]
        shm = _of(newest.shm, newest.shm_limit) if newest.shm_limit else ""
        gpus = ", ".join(f"{_of(gpu.memory, gpu.limit)}" for gpu in newest.gpus[:8])
        took = points[-1].time - points[0].time
        spent = points[-1].metrics["cpu"] - points[0].metrics["cpu"]
        cells = (
            str(node),
            _of(newest.memory, newest.limit),
            size(int(max(memory))),
            bars([task / newest.limit if newest.limit else 0.0 for task in memory]),
            f"{spent / took:.1f} of {_cores(newest.cores)}"
            if took > 0 and spent >= 0
            else _cores(newest.cores),
            f"{sum(threads)} in {count(len(threads), 'rank')}",
            shm,
            gpus,
        )
        table.append(tuple(clip(cell, _MAX_CELL) for cell in cells))
    return [HEAD, *table] if table else []


def notes(state: JobState) -> list[str]:
    """Return how many nodes :func:`rows` leaves out, which kinds of nodes there are, and what matters."""
    left = len(state.uses) - _MOST_NODES
    more = f"… and {count(left, 'more node')}" if left > 0 else ""
    by_kind = _kinds(state)
    which = [
        f"{ranks(of).replace('rank', 'node')}: {kind}" if len(by_kind) > 1 else kind
        for kind, of in by_kind.items()
    ]
    return [note for note in (more, *which, matters(state)) if note]


def kinds(state: JobState) -> list[str]:
    """Return the distinct kinds of the job's nodes: ``8 cores of EPYC 9654, 64 GB``."""
    return list(_kinds(state))


def _kinds(state: JobState) -> dict[str, list[int]]:
    """Return the nodes of each kind."""
    by_kind: dict[str, list[int]] = {}
    for node, use in sorted(state.uses.items()):
        gpus = [f"{line(gpu.model, _MAX_CELL) or 'GPU'} of {size(gpu.limit)}" for gpu in use.newest.gpus]
        cpu = (
            f"{_cores(use.newest.cores)} of {line(use.newest.model, _MAX_CELL)}"
            if use.newest.model
            else _cores(use.newest.cores)
        )
        kind = [f"{gpus.count(gpu)} {TIMES} {gpu}" for gpu in dict.fromkeys(gpus)]
        by_kind.setdefault(", ".join([cpu, size(use.newest.limit), *kind]), []).append(node)
    return by_kind


def bars(parts: Sequence[float]) -> str:
    """Return a strip of bars for parts of a whole; a bar that stands for several parts shows the highest."""
    return "".join(_BARS[min(len(_BARS) - 1, int(part * len(_BARS)))] for part in _thinned(parts))


def _thinned(parts: Sequence[float]) -> list[float]:
    per = math.ceil(len(parts) / _MOST_BARS) or 1
    return [max(parts[at : at + per]) for at in range(0, len(parts), per)]


class Strip(NamedTuple):
    """What a node used of one thing since its round began, in parts of the whole; ``newest`` in words."""

    of: str  # CPU, MEMORY or GPU
    newest: str
    parts: Sequence[float]


def strips(state: JobState, most: int) -> Iterator[tuple[int, list[Strip]]]:
    """Yield the first ``most`` nodes of a running job, each with strips of what it has used for a while."""
    uses = sorted(state.uses.items()) if state.phase is Phase.RUNNING else []
    for node, use in [item for item in uses if state.base(item[1].newest.round) == state.round][:most]:
        newest, points = use.newest, use.series.points
        cpu, gpu = _cpu_curve(points), _gpu_curve(points)
        cores = f"{cpu[-1][1]:.1f} of {_cores(newest.cores)}" if cpu else ""
        memory = [point.metrics["memory"] for point in points]
        busy = f"{gpu[-1][1]:.0f} % busy" if gpu else ""
        all_strips = (
            Strip(CPU, cores, _parts([used for _, used in cpu], newest.cores)),
            Strip(MEMORY, _of(newest.memory, newest.limit), _parts(memory, newest.limit)),
            Strip(GPU, busy, _parts([percent for _, percent in gpu], 100)),
        )
        if drawn := [strip for strip in all_strips if len(strip.parts) > 1]:
            yield node, drawn


def _parts(values: Sequence[float], whole: float) -> list[float]:
    return [round(min(1.0, value / whole), 2) if whole else 0.0 for value in _thinned(values)]


def _grown(points: Sequence[Point], name: str) -> Iterator[tuple[Point, Point, float]]:
    """Yield the growth of a sum between successive points; not if it fell, as when a rank had ended."""
    for before, after in pairwise(points):
        more = after.metrics[name] - before.metrics[name]
        if more >= 0 and after.time > before.time:
            yield before, after, more


def _watched(points: Sequence[Point]) -> Iterator[tuple[float, float, float]]:
    """Yield times, and for how many seconds before each the GPUs in use were busy, and were watched."""
    for before, after, busy in _grown(points, "busy"):
        in_use = min(before.metrics["gpus"], after.metrics["gpus"])
        watched = in_use * (after.metrics["watched"] - before.metrics["watched"])
        if watched > 0:
            yield after.time, min(busy, watched), watched


def _cpu_curve(points: Sequence[Point]) -> Curve:
    return [(after.time, more / (after.time - before.time)) for before, after, more in _grown(points, "cpu")]


def _gpu_curve(points: Sequence[Point]) -> Curve:
    return [(time, 100 * busy / watched) for time, busy, watched in _watched(points)]


def courses(state: JobState) -> Iterator[tuple[str, dict[str, Curve]]]:
    """Yield each title that has curves, with the curves by node over the minutes since the job began."""
    began = min((use.series.points[0].time for use in state.uses.values()), default=0.0)
    nodes = sorted(state.uses.items())[:_MOST_CURVES]
    for title, of in _CURVES:
        by_node = {f"node {node}": of(use.series.points) for node, use in nodes}
        curves = {
            name: [((time - began) / 60, value) for time, value in curve]
            for name, curve in by_node.items()
            if len(curve) > 1
        }
        if curves:
            yield title, curves


_CURVES: tuple[tuple[str, Callable[[Sequence[Point]], Curve]], ...] = (
    ("Memory in GB", lambda points: [(point.time, point.metrics["memory"] / 1e9) for point in points]),
    ("CPU cores at work", _cpu_curve),
    ("GPUs at work, in %", _gpu_curve),
)


def _of(used: float, limit: float) -> str:
    """Return ``7.2 of 8 GB``, or ``812 MB of 8 GB``."""
    (some, unit), (most, units) = (size(int(amount)).split() for amount in (used, limit))
    whole = f"{most.removesuffix('.0')} {units}"
    return f"{some} of {whole}" if unit == units else f"{some} {unit} of {whole}"
