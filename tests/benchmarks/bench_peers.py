"""The calls of idle nodes to the store where they meet, and how soon they hear of an end.

The nodes are agents without ranks: threads of one process, each with its connections, on one store.
"""

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.rendezvous.peers import Peers
from tests.benchmarks.measure import Row, show
from tests.runtime.rendezvous.gang import join, serve

NODES = (8, 64, 256)
SECONDS = 13.0
SILENCE = 15.0  # as in jobs
CALLS = ("set", "get", "check", "compare_set", "multi_get", "wait", "seal", "unseal")


class Counting:
    """A store that counts the calls to it; once ``mute`` is set, it drops beats."""

    def __init__(self, store: Any, counts: list[int], mute: Event) -> None:
        self._store, self._counts, self._mute = store, counts, mute

    def below(self, prefix: str) -> "Counting":
        return Counting(self._store.below(prefix), self._counts, self._mute)

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._store, name)

        def count(*args: Any) -> Any:
            self._counts[0] += name in CALLS
            if not (self._mute.is_set() and name == "set" and "beat" in args[0]):
                return method(*args)
            return None

        return count


@contextmanager
def gang(nodes: int, silence: float, counts: list[int], mute: Event) -> Iterator[list[Peers]]:
    """Yield so many nodes of a fixed-size job, which have met; the last goes silent once ``mute`` is set."""
    store, never = serve(), Event()

    def counting(node: int) -> Callable[[Any], Counting]:
        return partial(Counting, counts=counts, mute=mute if node == nodes - 1 else never)

    members = [
        join(store, node, asking=counting(node), watching=counting(node), silence=silence)
        for node in range(nodes)
    ]
    for node, peers in enumerate(members):
        peers.enter(1, range(nodes), node)
    yield members
    members[0].tell(exits.USER_ERROR)
    for peers in members:
        peers.close()


def heard(gang: list[Peers], act: Callable[[], object]) -> list[float]:
    """Call ``act``; return after how many seconds each node has heard of the end."""
    ends = [Event() for _ in gang]
    times = [0.0] * len(gang)
    began = time.perf_counter()

    act()
    left = set(range(len(gang)))
    while left and time.perf_counter() - began < 60:
        for node in [node for node in left if gang[node]._ended is not None]:
            times[node] = time.perf_counter() - began
            ends[node].set()
            left.remove(node)
        time.sleep(0.002)
    assert not left, f"{len(left)} nodes have heard nothing"
    return times


def main() -> None:
    logging.disable(logging.WARNING)
    rows = []
    for nodes in NODES:
        counts, mute = [0], Event()
        with gang(nodes, SILENCE, counts, mute) as members:
            time.sleep(6.0)  # until all nodes know when the next one beats
            before, cpu = counts[0], time.process_time()
            time.sleep(SECONDS)
            calls = (counts[0] - before) / SECONDS / nodes
            cpu = (time.process_time() - cpu) / SECONDS
            took = statistics.median(heard(members[1:], partial(members[0].tell, exits.USER_ERROR)))
        rows.append(Row(f"{nodes} nodes, calls a second of a node", calls, 1.0, 1.0, ""))
        rows.append(Row(f"{nodes} nodes, CPU seconds a second, store and agents", cpu, 1.0, None, ""))
        rows.append(Row(f"{nodes} nodes, until half of them have heard of an end", took, 1.0, None))
    counts, mute = [0], Event()
    with gang(NODES[0], SILENCE, counts, mute) as members:
        time.sleep(12.0)
        lost = min(heard(members[:-1], mute.set))
    rows.append(Row("a node that goes silent is lost", lost, SILENCE, 1.1))
    show("Nodes at rest", "goal", rows)


if __name__ == "__main__":
    main()
