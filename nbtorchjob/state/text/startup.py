"""What a job that comes to run is doing, and how long each step of that took, in words."""

from __future__ import annotations

from collections.abc import Iterable

from nbtorchjob.state import JobState, Node
from nbtorchjob.state import events as ev
from nbtorchjob.text.words import count, duration, line, size

_NAMED = 3  # of the packages that are installed
_MOST_NAME = 60  # characters of what a node calls them, and what installs them


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
        return "" if state.info.cluster or state.nodes or state.waits else "importing torch"
    if len(met) < len(nodes):
        packages = [each for node in nodes if (each := installing(node, state)) is not None]
        busy = len(packages) or len(nodes) - len(met)
        what = _installs(packages) if packages else "importing torch"
        return what if len(nodes) == 1 else f"{what} on {busy} of {len(nodes)} nodes"
    return f"meeting: {len(met)} of {most} nodes are there" if most > 1 else "starting ranks"


def installing(node: Node, state: JobState) -> ev.Installing | None:
    """Return what a node installs, if it does that now."""
    found = state.installs.get(node.index)
    return found if isinstance(found, ev.Installing) and found.time >= node.life.since else None


def _installs(packages: Iterable[ev.Installing]) -> str:
    most = max((each.packages for each in packages), key=len)
    some = ", ".join(line(each, _MOST_NAME) for each in most[:_NAMED])
    some += " and others" if len(most) > _NAMED else ""
    return f"installing {count(len(most), 'package')} ({some})" if most else "choosing packages"


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
    installed = [each for each in state.installs.values() if isinstance(each, ev.Installed)]
    ends = (
        ("submitting, and waiting for nodes", state.started),
        (_what(installed), _last(each.time for each in installed)),
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


def _what(installed: Iterable[ev.Installed]) -> str:
    most = max(installed, key=lambda each: len(each.packages), default=None)
    if most is None or not most.packages:
        return "finding that all packages are there"
    kept = f"with {line(most.by, _MOST_NAME)}" if most.by else "from an earlier job"
    return f"installing {count(len(most.packages), 'package')} {kept}"


def _last(times: Iterable[float]) -> float | None:
    return max(times, default=None)
