"""The agent of a pool's node: what torch's agent takes for ranks are zygotes, which fork each job's."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Sequence, Tuple

from nbtorchjob.runtime.lab.keeper import Keeper
from nbtorchjob.runtime.node.agent import NodeAgent
from nbtorchjob.runtime.node.meter import EVERY
from nbtorchjob.runtime.pool.pool import Pool
from nbtorchjob.runtime.pool.zygote import stand
from nbtorchjob.runtime.rank import worker
from nbtorchjob.runtime.store.payload import Payload


def keeper(
    payload: Payload, key: bytes, folder: str, files: str, node: int
) -> Tuple[Callable[..., NodeAgent], Callable[..., None], Callable[[worker.Rank], None]]:
    """Return the same for a pool's node as ``lab/keeper`` does for a lab's."""
    pool = Pool(payload.header, payload.path, key, folder, files, node)
    return partial(PoolKeeper, lab=pool), stand, worker.call_once


class Worn(Exception):
    """A job has changed files of the image, which only a fresh pod has as they were."""


class PoolKeeper(Keeper):
    """The agent of one node of a pool."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._worn = ""

    def look_after(self, round_: int, pids: Dict[int, int]) -> None:
        """Take in the processes of a job's ranks on this node, by rank; called in the thread of the lab."""
        self._meter.every = EVERY
        self._lookout.enter(round_, self._folder_of(round_), pids, self._peers)
        self._meter.begin(round_, pids)

    def enter_turn(self, round_: int, ranks: Sequence[int]) -> None:
        """See the base class."""
        super().enter_turn(round_, ranks)
        self._meter.begin(round_, {})

    def leave_turn(self) -> None:
        """See the base class."""
        self._lookout.enter(self._round, self._folder_of(self._round), {}, self._peers)
        self._meter.begin(self._round, {})
        super().leave_turn()

    def wear(self, text: str) -> None:
        """End this node, for that reason; called in any thread."""
        self._worn = text
        self.wake()

    def _wait_for_an_end(self, seconds: float) -> bool:
        if self._worn:
            raise Worn(self._worn)
        return super()._wait_for_an_end(seconds)
