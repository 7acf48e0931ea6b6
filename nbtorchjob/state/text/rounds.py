"""Why each round of a job began, in a few words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from nbtorchjob.state import JobState, Node
from nbtorchjob.state.events import WorkersStarted
from nbtorchjob.text.words import ranks


def turns(state: JobState) -> Mapping[int, str]:
    """Return why each round but the first began, by its number: ``node 1 lost``, ``restart 2``."""
    rounds: dict[int, dict[int, tuple[Node, WorkersStarted]]] = {}
    for node in state.nodes.values():
        for workers in node.workers:
            rounds.setdefault(workers.round, {})[node.index] = (node, workers)
    return {late: "; ".join(_turn(rounds[early], rounds[late])) for early, late in pairwise(sorted(rounds))}


def _turn(
    before: Mapping[int, tuple[Node, WorkersStarted]], after: Mapping[int, tuple[Node, WorkersStarted]]
) -> Iterator[str]:
    attempt = max(node.life_of(workers).attempt for node, workers in after.values())
    restart = max(workers.restart for _, workers in after.values())
    lost, come = before.keys() - after.keys(), after.keys() - before.keys()
    again = {n for n in before.keys() & after.keys() if before[n][1].pod != after[n][1].pod}
    if attempt > max(node.life_of(workers).attempt for node, workers in before.values()):
        yield f"attempt {attempt}"
    elif lost or come or again:
        for nodes, word in ((lost, "lost"), (come, "joined"), (again, "replaced")):
            if nodes:
                yield f"{ranks(nodes).replace('rank', 'node')} {word}"
    elif restart > max(workers.restart for _, workers in before.values()):
        yield f"restart {restart}"
    else:
        yield "started again"
