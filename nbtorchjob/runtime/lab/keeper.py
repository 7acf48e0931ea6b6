"""The agent of a node whose ranks stay: for torch they are "running" while they wait, too."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from torch.distributed.elastic.agent.server.api import WorkerGroup

from nbtorchjob.runtime.ask.answering import Handler
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.facts.injected import local_addr, saving
from nbtorchjob.runtime.lab.lab import Base, Lab
from nbtorchjob.runtime.lab.turns import stay
from nbtorchjob.runtime.node.agent import NodeAgent, terminated
from nbtorchjob.runtime.node.departure import Departure
from nbtorchjob.runtime.node.meter import EVERY
from nbtorchjob.runtime.rank import worker
from nbtorchjob.runtime.rank.worker import Rank
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.groups import told_address
from nbtorchjob.runtime.store.payload import Payload

_IDLE_S = 1.0  # between two looks at ranks that wait
_BUSY_S = 0.05  # and at ranks that run a turn; the end of a rank is noticed at once
_IDLE_USE_S = 60.0  # between two reports of what waiting ranks use


def keeper(
    payload: Payload, key: bytes, folder: str, files: str, node: int
) -> Tuple[Callable[..., NodeAgent], Callable[..., None], Callable[[Rank], None]]:
    """Return a lab node's factory of agents, the function started for each rank, and what that calls."""
    lab = Lab(payload.header, payload.path, key, folder, files, node)
    return partial(Keeper, lab=lab), worker.run_rank, stay


class Keeper(NodeAgent):
    """The agent of one node of ``lab``."""

    def __init__(self, *args: Any, lab: Lab, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lab = lab
        self._pids: Dict[int, int] = {}
        self._distrusted: Optional[PeersEnded] = None
        lab.agent = self

    @property
    def questions(self) -> Dict[str, Handler]:
        """See the base class."""
        return {**super().questions, **self._lab.questions}

    def run(self, *args: Any, **options: Any) -> Any:
        """See the base class."""
        try:
            return super().run(*args, **options)
        finally:
            self._lab.close()

    def enter_turn(self, round_: int, ranks: Sequence[int], all_ranks: Sequence[int] = ()) -> None:
        """Begin a turn that these ranks of this node run, if any; called in the lab's thread.

        In a pool, ``all_ranks`` are the ranks of all nodes that run it; their positions are the job's ranks.
        """
        folder = self._folder_of(round_)
        os.makedirs(folder, exist_ok=True)
        workers = self._worker_group.workers
        departure = Departure(folder, self._node, round_, len(workers), self._peers)
        self._round = round_
        self._departure = departure
        if ranks:
            self._meter.every = EVERY
            numbers = [all_ranks.index(rank) for rank in ranks] if all_ranks else ranks
            world_size = len(all_ranks) or workers[0].world_size
            emit("WorkersStarted", ranks=numbers, world_size=world_size, **self._where())
            self._lookout.go_on(round_, folder, numbers)
            self._meter.begin(round_, self._pids)
        local = {worker.global_rank: worker.local_rank for worker in workers}
        self._may_swap(folder, [local[rank] for rank in ranks], all_ranks)

    def leave_turn(self) -> None:
        """Record that the ranks of this node wait from now on; called in the lab's thread, too."""
        self._end_swaps()
        self._lookout.rest()
        self._meter.every = _IDLE_USE_S

    def distrust(self, exc: PeersEnded) -> None:
        """End the job, as a stranger writes to the store of its nodes; called in any thread."""
        self._distrusted = exc
        self.wake()

    @property
    def leaving(self) -> bool:
        """Whether a node is about to end, and ranks save: no turn is begun."""
        departure = self._departure
        return self._peers.leaves is not None or (departure is not None and departure.own)

    def _leave(self, codes: Dict[int, int]) -> bool:
        departure = self._departure
        if self._lab.idle and departure is not None and departure.own:
            raise terminated()  # its ranks were done before they were told
        return super()._leave(codes)

    def _enter_round(self, worker_group: WorkerGroup) -> None:
        lab = self._lab
        self._round = max(self._round, lab.newest)
        super()._enter_round(worker_group)
        store, group_rank = worker_group.store, worker_group.group_rank
        words = (self._node, len(worker_group.workers), lab.first_is_over, told_address() or local_addr())
        store.set("nbtorchjob/lab/%d" % group_rank, "%d %d %d %s" % words)
        keys = ["nbtorchjob/lab/%d" % rank for rank in range(worker_group.group_world_size)]
        rows = [store.get(key).decode().split() for key in keys]
        nodes = [int(row[0]) for row in rows]
        where = [int(node) for node, count, *_ in rows for _ in range(int(count))]
        first = self._attempt == 1 and not any(int(over) for _, _, over, _ in rows)
        folder = self._folder_of(self._round)
        os.makedirs(folder, exist_ok=True)
        connect = self._rdzv_handler.connect if len(nodes) > 1 else None
        hosts = [host for *_, host in rows]
        lab.begin(Base(self._round, folder, nodes, dict(enumerate(where)), first, connect, hosts))

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        started = super()._start_workers(worker_group)
        self._pids = {worker.global_rank: started[worker.local_rank] for worker in worker_group.workers}
        return started

    def _stop_workers(self, *args: Any, **options: Any) -> None:
        self._lab.leave()
        super()._stop_workers(*args, **options)

    def _ended(self) -> Dict[int, int]:
        codes = super()._ended()
        if codes:
            self._lab.broken()
        return codes

    def _wait_for_an_end(self, seconds: float) -> bool:
        swaps = self.swaps is not None and self.swaps.busy
        busy = seconds if swaps else max(seconds, _BUSY_S)
        woken = super()._wait_for_an_end(_IDLE_S if self._lab.idle else busy)
        if self._distrusted is not None:
            self._peers.tell(self._distrusted.code)
            raise self._distrusted
        return woken

    def _on_sigterm(self, number: int, frame: object) -> None:
        if self._lab.idle:  # its ranks have had time to save what they hold
            self._shutdown_timeout = saving()
            raise terminated()
        super()._on_sigterm(number, frame)

    def leave(self, question: Any) -> Iterator[Dict[str, Any]]:
        """See the base class."""
        if self._lab.idle:
            yield {"leaves": False}
        else:
            yield from super().leave(question)
