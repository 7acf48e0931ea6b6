"""How long the stacks of many nodes with eight ranks each take: one node is asked, and gathers the others'.

Threads emulate the nodes: they hear of the question as a node does, and send samples of a usual size at once.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from threading import Thread
from typing import Any

from torch.distributed import TCPStore

from nbtorchjob.backends import stacks
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.runtime.look.lookout import Lookout
from nbtorchjob.runtime.rendezvous.alone import Alone
from nbtorchjob.runtime.rendezvous.ring import GATHER, News, Ring, gather, give
from nbtorchjob.runtime.rendezvous.signed import SignedStore
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from tests.backends.full import Questions
from tests.benchmarks.measure import Row, show

NODES, RANKS = (64, 256, 1000), 8
THREADS = 8
KEY = b"k" * 32


def sample(node: int) -> dict[str, Any]:
    """Return a node's sample of its ranks, each with a stack of 25 frames."""
    digits = random.Random(node)
    ranks = []
    for rank in range(node * RANKS, (node + 1) * RANKS):
        frames = [
            {"filename": f"/usr/lib/python3/site-packages/package/module_{depth}.py", "lineno": 100 + depth}
            | {"name": f"function_{depth}", "line": f"result = self.part_{depth}(inputs, **options)"}
            for depth in range(24)
        ]
        frames.append({"filename": "<cell 1>", "lineno": 7, "name": "train", "line": "loss.backward()"})
        ranks.append(
            {
                "rank": rank,
                "state": "runs",
                "pid": digits.randrange(1 << 16),
                "threads": [{"name": "main", "frames": frames}],
            }
        )
    return {
        "event": "Sampled",
        "time": time.time(),
        "node": node,
        "round": 0,
        "why": "asked",
        "samples": ranks,
    }


class Gathering(Alone):
    """The peers of the node that is asked."""

    def __init__(self, store: Any, nodes: int) -> None:
        self._store, self._ring = store, Ring(0, range(nodes), 0, 15.0)

    def gather(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        yield from gather(self._store, self._ring, seconds)


class Emulated(Questions):
    """A backend that asks node 0 in this process, without a connection."""

    def __init__(self, lead: Any) -> None:
        self.lead, self.asked = lead, 0

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[NodeAnswer]:
        for node in nodes or (0,):
            self.asked += 1
            yield NodeAnswer(node, tuple(self.lead.answer(question)))


def measured(nodes: int) -> tuple[float, float]:
    """Return the seconds until the stacks of so many nodes are text, and the CPU seconds of all of them."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect() -> Any:
        return SignedStore(TCPStore("127.0.0.1", server.port, is_master=False), KEY)

    samples = [sample(node) for node in range(nodes)]

    def others(share: Sequence[int], store: Any, news: News) -> None:
        ring = Ring(0, range(nodes), 0, 15.0)
        while not store.check([ring.key(GATHER)]):
            news.wait()
        name = store.get(ring.key(GATHER)).decode()
        for node in share:
            ring.node = node
            give(store, ring, name, samples[node])

    threads = []
    for part in range(THREADS):
        waits = connect()
        share = range(1 + part, nodes, THREADS)
        threads.append(Thread(target=others, args=(share, waits, News(waits)), daemon=True))
        threads[-1].start()

    class Lead:
        """A lookout with ranks that are emulated, like those of the other nodes."""

        _peers = Gathering(connect(), nodes)
        answer = Lookout.answer

        def _own_sample(self) -> dict[str, Any]:
            return samples[0]

    starts: list[ev.Event] = [ev.NodeStarted(1.0, node, "host", pod=f"pod-{node}") for node in range(nodes)]
    begun = ev.WorkersStarted(1.0, 0, 0, 0, tuple(range(RANKS)), nodes * RANKS)
    state = reduce(apply, [*starts, begun], JobState(JobInfo("job", nodes=(nodes, nodes))))
    backend: Any = Emulated(Lead())
    began, cpu = time.perf_counter(), time.process_time()
    dump = stacks.ask(backend, state, 10.0)
    text = str(dump)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert len(dump.samples) == nodes * RANKS, len(dump.samples)
    assert not dump.trouble, dump.trouble
    assert text
    assert backend.asked == 1, backend.asked
    return took, cpu


def main() -> None:
    rows = []
    with ThreadPoolExecutor(1) as pool:  # a thread has another stack than a rank
        for nodes in NODES:
            took, cpu = pool.submit(measured, nodes).result()
            rows.append(Row(f"{nodes} nodes, 1 asked", took, 1.0, 5.0))
            rows.append(Row(f"{nodes} nodes, CPU of all emulated nodes, too", cpu, 1.0))
    show(f"Stacks of {RANKS} ranks a node", "a second", rows)


if __name__ == "__main__":
    main()
