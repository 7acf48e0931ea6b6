"""The process groups of a rank's code: where ``init_process_group`` meets, and that none is left open.

torch has two ways to meet: a store that rank 0 hosts, which ends with rank 0 while others connect,
and one of the agent's, in which a second group reads the addresses of the first. Here it is one of the
agent's, of which each group has a part of its own.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
import sys
import threading
import time
from typing import Any, Callable, Iterator, Sequence

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.rendezvous import listening

_ADDRESS = "nbtorchjob/meeting"  # in the store that the agents of a round share
# Where torch's own ways meet: what goes there, such as RPC or another process, does so as ever.
_WHERE = ("MASTER_ADDR", "MASTER_PORT")
_WHO = ("RANK", "WORLD_SIZE")
_RETURNED_S = 0.005  # within which a rank that leaves its groups has told that it returned


def open_store(shared: Any, host: str, address: str) -> Any:
    """Open the store of a round's groups at ``address`` and keep it open as long as the result lives.

    ``shared`` tells the other agents of the round where it is: on ``host`` if ``address`` is "", for all.
    """
    store = listening.serve(address)
    shared.set(_ADDRESS, "%s:%d" % (address or host, store.port))
    return store


def address(shared: Any) -> str:
    """Return where the groups of the round meet (host:port), once its first agent has told."""
    return str(shared.get(_ADDRESS).decode())


def meet_at(address: str, round_: int) -> None:
    """Have each ``init_process_group`` of this process meet in the store at ``address`` (host:port).

    In the ranks of a pool the store outlives the round, so the names of its groups begin with ``round_``.

    That is, over ``env://``, unless the code has chosen an address or a store of its own. Nobody leaves it
    before all have connected: a short function would end on one rank while another, on a busy machine, still
    connects, and gloo would fail there with "Connection closed by peer".
    """
    importlib.import_module("torch.distributed.distributed_c10d")
    # torch's public door takes new schemes only.
    meet, has_barrier = torch_versions.MEET.get(), torch_versions.BARRIER.get()
    if meet is not None and has_barrier is not None:
        door = _Door(address, round_, meet, has_barrier)
        torch_versions.MEET.replace(door.meet)
        torch_versions.BARRIER.replace(door.has_barrier)


class _Door:
    """Stands in for two functions that ``init_process_group`` calls, one after the other."""

    def __init__(
        self,
        address: str,
        round_: int,
        rendezvous: Callable[..., Iterator[Any]],
        has_barrier: Callable[[], int],
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._round = round_
        self._rendezvous = rendezvous
        self._has_barrier = has_barrier
        self._where = _values(_WHERE)
        self._numbers = itertools.count()
        self._passed = False

    def meet(self, url: str, rank: int = -1, world_size: int = -1, **options: Any) -> Iterator[Any]:
        """Yield store, rank and world size."""
        if url != "env://" or _values(_WHERE) != self._where or None in _values(_WHO):
            yield from self._rendezvous(url, rank, world_size, **options)
            return
        from torch.distributed import PrefixStore, TCPStore

        rank = int(os.environ["RANK"]) if rank == -1 else rank
        world_size = int(os.environ["WORLD_SIZE"]) if world_size == -1 else world_size
        store = TCPStore(*self._address, world_size, is_master=False, **options)
        self._passed = True
        yield PrefixStore("round-%d-group-%d" % (self._round, next(self._numbers)), store), rank, world_size

    def has_barrier(self) -> int:
        """Return whether all wait for each other: for a group that met here, else as torch has it."""
        passed, self._passed = self._passed, False
        return 1 if passed else self._has_barrier()


def _values(names: Sequence[str]) -> "list[str | None]":
    return [os.environ.get(name) for name in names]


def leave() -> None:
    """Leave the process groups that the code left open: torch warns about them in every rank's log.

    Gloo's are left in the background where it can be: their threads look whether they are to end 100 times a
    second only, and what others still wait for goes on meanwhile. Where all ranks return at
    once, they are ended before it begins.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    # Its ranks end once all of them have returned; of several nodes each would on its own.
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE") or not _only_gloo():
        distributed.destroy_process_group()
        return

    def leave_soon() -> None:
        time.sleep(_RETURNED_S)
        distributed.destroy_process_group()

    thread = threading.Thread(target=leave_soon, name="leave", daemon=True)
    thread.start()
    atexit.register(thread.join)  # for an interpreter that ends in order: most ranks just end


def _only_gloo() -> bool:
    return {backend for backend, _ in getattr(torch_versions.WORLD.get(), "pg_map", {}).values()} == {"gloo"}
