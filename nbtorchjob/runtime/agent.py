"""torch's elastic agent for one node, with three changes that its own extension points allow.

It looks at its workers as often as a quick job needs, not once in ``monitor_interval``; it tells
what happens to them as events; and it notices a worker that left with exit code 0 without returning,
for which torch 2.13 waits for ever.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from . import exits
from .emit import emit

_SHORTEST, _LONGEST = 0.002, 0.05  # seconds between two looks at the workers
_PEER_GRACE = 0.5  # seconds from a collective's failure to the word that a peer is gone
_EXITED_GRACE = 1.0  # seconds from a worker's exit to its return value being read


class NodeAgent(LocalElasticAgent):  # type: ignore[misc]
    """The agent of one node; ``folder`` is where its rounds go, one folder each, from ``first_round`` on."""

    def __init__(
        self,
        *args: Any,
        node: int,
        folder: str,
        first_round: int,
        interval: float,
        elastic: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._elastic = elastic  # whether the group can go on with fewer nodes
        self.peer_lost = False
        self.recoverable = False
        self._node = node
        self._folder = folder
        self._interval = interval
        self._round = first_round - 1
        self._left: List[int] = []  # global ranks that left with code 0 without returning
        self._gone: Dict[int, float] = {}  # local rank -> when it was first seen to be gone

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        self.peer_lost = False
        self._gone.clear()
        self._left.clear()
        self._round = self._agree_on_round(worker_group)
        folder = os.path.join(self._folder, "round-%d" % self._round)
        os.makedirs(folder, exist_ok=True)
        spec = worker_group.spec
        path, _, key, _ = spec.args
        spec.args = (path, folder, key, self._round)
        ranks = [worker.global_rank for worker in worker_group.workers]
        emit(
            "WorkersStarted",
            node=self._node,
            attempt=self._attempt(),
            round=self._round,
            ranks=ranks,
            world_size=worker_group.workers[0].world_size,
        )
        started: Dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _agree_on_round(self, worker_group: WorkerGroup) -> int:
        """Give the number of this life of the group: the same on all its nodes, and rising."""
        store, mine = worker_group.store, worker_group.group_rank
        store.set("nbtorchjob/round/%d" % mine, str(self._round + 1))
        keys = ["nbtorchjob/round/%d" % rank for rank in range(worker_group.group_world_size)]
        return max(int(store.get(key)) for key in keys)

    def _attempt(self) -> int:
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    def _stop_workers(self, worker_group: WorkerGroup, *args: Any, **kwargs: Any) -> None:
        self._shutdown(timeout=self._shutdown_timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        until, pause = time.monotonic() + self._interval, _SHORTEST
        while True:
            result = super()._monitor_workers(worker_group)
            if result.state == WorkerState.HEALTHY:
                result = self._left_early(worker_group) or result
            if result.state != WorkerState.HEALTHY:
                self._tell(result)
                lost = result.state == WorkerState.FAILED and self._peer_is_lost()
                return RunResult(state=WorkerState.HEALTHY) if lost else result
            if self.peer_lost or time.monotonic() >= until:
                return result
            time.sleep(pause)
            pause = min(pause * 1.1, _LONGEST)

    def _peer_is_lost(self) -> bool:
        """Whether the group failed because of a lost peer: the word of it may come after the failure.

        Then what looks like a failure is a change of membership (``rendezvous.Watched``).
        """
        until = time.monotonic() + (_PEER_GRACE if self._elastic else 0.0)
        while not self.peer_lost and time.monotonic() < until:
            time.sleep(_SHORTEST)
        return self.peer_lost

    def _left_early(self, worker_group: WorkerGroup) -> Any:
        for worker in worker_group.workers:
            if _alive(int(worker.id)):
                self._gone.pop(worker.local_rank, None)
            elif (
                time.monotonic() - self._gone.setdefault(worker.local_rank, time.monotonic()) > _EXITED_GRACE
            ):
                self._left.append(worker.global_rank)
        if self._left:
            return RunResult(state=WorkerState.FAILED)
        return None

    def _tell(self, result: RunResult) -> None:
        if result.state != WorkerState.FAILED:
            return
        # torch names one failed rank only, and which one it looks at first is chance. The others
        # that still ran it has ended with SIGTERM, also those that had returned: they wait for all.
        codes = {rank: failed.exitcode for rank, failed in result.failures.items()}
        codes.update(dict.fromkeys(self._left, 0))
        for worker, process in zip(self._worker_group.workers, self._processes()):
            if process.exitcode not in (None, -signal.SIGTERM):
                codes[worker.global_rank] = process.exitcode
        self.recoverable = exits.TOLD_RECOVERABLE in codes.values()
        for rank, code in codes.items():
            if code < 0:
                emit("RankExited", rank=rank, signal=-code, **self._where())
            elif code not in (exits.TOLD, exits.TOLD_RECOVERABLE):
                emit("RankExited", rank=rank, code=code, **self._where())

    def _processes(self) -> Any:
        # Private to torch (2.13); without it only the one rank that it names is told of.
        return getattr(getattr(self._pcontext, "_pc", None), "processes", ())

    def _where(self) -> Dict[str, int]:
        return {"node": self._node, "attempt": self._attempt(), "round": self._round}

    def _record_worker_events(self, result: RunResult) -> None:
        """Leave out torch's own events: they go nowhere, and resolve the host's name for each."""

    def on_peer_lost(self, _signal: int, _frame: Any) -> None:
        """Signal handler: another node of this job is gone."""
        self.peer_lost = True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # no /proc: only the signal's answer counts
        return True


PEER_LOST = signal.SIGUSR1
