"""The agent of a pool's node: what torch's agent takes for ranks are zygotes, which fork each job's."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from torch.distributed.elastic.agent.server.api import WorkerGroup

from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.facts import injected
from nbtorchjob.runtime.facts.emit import emit
from nbtorchjob.runtime.lab.keeper import Keeper
from nbtorchjob.runtime.node.agent import NodeAgent
from nbtorchjob.runtime.node.departure import Departure
from nbtorchjob.runtime.node.meter import EVERY
from nbtorchjob.runtime.pool.ground import Ground
from nbtorchjob.runtime.pool.pool import Pool
from nbtorchjob.runtime.pool.zygote import call_with_files, stand
from nbtorchjob.runtime.rank import worker
from nbtorchjob.runtime.store.payload import Payload

_NAMED = 20  # changed files


def keeper(
    payload: Payload, key: bytes, folder: str, files: str, node: int
) -> Tuple[Callable[..., NodeAgent], Callable[..., None], Callable[[worker.Rank], None]]:
    """Return the same for a pool's node as ``lab/keeper`` does for a lab's."""
    pool = Pool(payload.header, payload.path, key, folder, files, node)
    unseen = bool(os.environ.get(injected.UNSEEN))
    ground = partial(Ground, folder, **payload.header["lab"]["ground"], unseen=unseen)
    return partial(PoolKeeper, lab=pool, ground=ground), stand, call_with_files


class Worn(Exception):
    """A job left what only a fresh pod is free of, such as a changed file of the image."""


class PoolKeeper(Keeper):
    """The agent of one node of a pool."""

    def __init__(self, *args: Any, ground: Callable[[], Ground], **options: Any) -> None:
        super().__init__(*args, **options)
        self._left = ""  # what a job left that can't be put back
        self._worn = ""  # the same, once this node is to end
        self._look_at_ground = ground
        self._ground: Optional[Ground] = None

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        if self._ground is not None:  # what a job had left when they ended nobody has cleared
            raise Worn("the processes of its jobs have ended")
        self._ground = self._look_at_ground()
        return super()._start_workers(worker_group)

    @contextmanager
    def saving(self) -> Iterator[checkpoints.Saved]:
        """See the base class. Each job saves at a place of its own: here it is tried whether it can."""
        checkpoints.sender(os.environ.get(checkpoints.CHECKPOINTS, "")).finish()
        try:
            yield self.saved
        finally:
            with checkpoints.unstopped():
                self.saved.finish()

    def restore(self, over: Callable[[], None], then: Callable[[bool], None]) -> None:
        """End a job in another thread: send its checkpoints, call ``over``, and put the node's files back.

        ``then`` is called with whether that takes a fresh pod.
        """

        def act() -> None:
            assert self._ground is not None
            self.saved.finish()
            over()
            try:
                changed = self._ground.restore()
            except Exception as exc:  # whatever it is, the pool would wait for this node for ever
                changed = [repr(exc)]
            if changed:
                more = " and %d more" % len(changed[_NAMED:]) if changed[_NAMED:] else ""
                self._left = "a job left what can't be put back: %s%s" % (", ".join(changed[:_NAMED]), more)
                with suppress(OSError):  # a full disk
                    emit("Notice", text="node %d has to be replaced: %s" % (self._node, self._left))
            then(bool(changed))

        threading.Thread(target=act, daemon=True, name="ground").start()

    def renew(self) -> None:
        """End this node, so that a fresh pod takes its place; called in the thread of the lab."""
        self._worn = self._left
        self.wake()

    def look_after(self, round_: int, pids: Dict[int, int]) -> None:
        """Take in the processes of a job's ranks on this node, by rank; called in the thread of the lab."""
        self._meter.every = EVERY
        self._lookout.enter(round_, self._folder_of(round_), pids, self._peers)
        self._meter.begin(round_, pids)

    def enter_job(
        self, round_: int, ranks: Sequence[int], all_ranks: Sequence[int], nodes: Sequence[int], id_: str
    ) -> None:
        """Begin the job of that id, which these ranks of this node run, of ``all_ranks`` on ``nodes``."""
        self.saved = checkpoints.sender(checkpoints.of_job(id_))
        self._peers.go_with(nodes)
        self.enter_turn(round_, ranks, all_ranks)
        self._meter.begin(round_, {})

    def leave_turn(self) -> None:
        """See the base class."""
        folder = self._folder_of(self._round)
        self._lookout.enter(self._round, folder, {}, self._peers)
        self._meter.begin(self._round, {})
        super().leave_turn()
        if not self.leaving:  # jobs on other nodes may save: here is nobody who does
            self._peers.go_with([self._node])
            idle = os.path.join(self._folder, "idle")
            os.makedirs(idle, exist_ok=True)
            self._departure = Departure(idle, self._node, self._round, 0, self._peers)

    def _wait_for_an_end(self, seconds: float) -> bool:
        if self._worn:
            raise Worn(self._worn)
        return super()._wait_for_an_end(seconds)
