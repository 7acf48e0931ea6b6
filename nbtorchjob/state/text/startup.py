"""What a job that comes to run is doing, and how long each step of that took, in words."""

from __future__ import annotations

from collections.abc import Iterable

from nbtorchjob.state import JobState
from nbtorchjob.text.words import duration, size


def doing(state: JobState) -> str:
    """Describe what its nodes do until the call runs on all ranks; empty where nothing tells, or it does."""
    if state.phase.terminal or state.next is not None or state.suspended:
        return ""
    if state.info.of_lab and state.round < 0:
        return ""  # on a lab: what it waits for is said of it
    return _meeting(state) if state.round < 0 else _starting(state)


def _meeting(state: JobState) -> str:
    nodes = [node for node in state.nodes.values() if node.life.running]
    met = [node for node in nodes if state.met.get(node.index, 0.0) >= node.life.since]
    most = state.info.nodes[1]
    if not nodes:
        # Here nobody waits for a place: what runs first is the pool, which imports torch.
        return "" if state.info.cluster or state.nodes else "importing torch"
    if len(met) < len(nodes):
        many, what = len(nodes), "importing torch"
        if (state.info.spec.get("cluster") or {}).get("packages"):
            what = "installing packages, importing torch"
        return what if many == 1 else f"{what} on {many - len(met)} of {many} nodes"
    return f"meeting: {len(met)} of {most} nodes are there" if most > 1 else "starting ranks"


def _starting(state: JobState) -> str:
    began = {rank for rank, each in state.began.items() if state.base(each.round) == state.round}
    # Of what an earlier version runs nothing is told of that.
    if not state.met or len(began) >= state.world_size or state.ended is not None or state.reforming:
        return ""
    return f"starting ranks: {len(began)} of {state.world_size} run"


def steps(state: JobState) -> list[tuple[str, str]]:
    """Return what came before the call ran in the first round, and how long each took."""
    info = state.info
    first = min((node.workers[0].round for node in state.nodes.values() if node.workers), default=None)
    workers = [w.time for node in state.nodes.values() for w in node.workers if w.round == first]
    ends = (
        ("submitting, and waiting for nodes", state.started),
        ("importing torch", _last(state.met.values())),
        ("meeting", _last(workers)),
        ("starting ranks", _last(each.time for each in state.began.values() if each.round == first)),
    )
    rows, before = [], info.created
    if info.packed:
        rows.append((f"packing {size(info.payload)}", duration(info.packed - info.began)))
        before = max(before, info.packed)
    for what, at in ends:
        if at is not None and at >= before:
            rows.append((what, duration(at - before)))
            before = at
    return rows


def _last(times: Iterable[float]) -> float | None:
    return max(times, default=None)
