"""The process groups of a rank's code: where ``init_process_group`` meets, and that none is left open.

torch has two ways to meet: a store that rank 0 hosts, which ends with rank 0 while others connect,
and one of the agent's, in which a second group reads the addresses of the first. Here it is one of the
agent's, of which each group has a part of its own.

Each store that a node serves listens on one address; torch's own listen on all of the machine's.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import ipaddress
import itertools
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Iterator, Sequence

from nbtorchjob.runtime import torch_versions

_MEETING = "nbtorchjob/meeting"  # in the store that the agents of a round share
# Where torch's own ways meet: what goes there, such as RPC or another process, does so as ever.
_WHERE = ("MASTER_ADDR", "MASTER_PORT")
_WHO = ("RANK", "WORLD_SIZE")
_RETURNED_S = 0.005  # within which a rank that leaves its groups has told that it returned


def open_store(shared: Any, host: str, address: str) -> Any:
    """Open the store of a round's groups at ``address`` and keep it open as long as the result lives.

    ``shared`` tells the other agents of the round where it is: on ``host`` if ``address`` is "", for all.
    """
    store = serve_store(address)
    shared.set(_MEETING, "%s:%d" % (address or host, store.port))
    return store


def address(shared: Any) -> str:
    """Return where the groups of the round meet (host:port), once its first agent has told."""
    return str(shared.get(_MEETING).decode())


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
    backends = {backend for backend, _ in getattr(torch_versions.WORLD.get(), "pg_map", {}).values()}
    # Its ranks end once all of them have returned; of several nodes each would on its own.
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE") or backends != {"gloo"}:
        distributed.destroy_process_group()
        return

    def leave_soon() -> None:
        time.sleep(_RETURNED_S)
        distributed.destroy_process_group()

    thread = threading.Thread(target=leave_soon, name="leave", daemon=True)
    thread.start()
    atexit.register(thread.join)  # for an interpreter that ends in order: most ranks just end


ADDRESS = "NBTORCHJOB_ADDRESS"  # the pod's own
ITSELF = "this machine can't connect to itself"
_FILES = 16  # that a store takes, and some to spare
_REACH_S = 5.0  # for a connection from this machine to itself
_BACKLOG = 2048  # all nodes of a job may come at once


def serve_store(address: str, port: int = 0, timeout: timedelta = timedelta(minutes=5)) -> Any:
    """Open a ``TCPStore`` at ``address``, or at any of this machine's where that is ""; 0 is any free port.

    Raises ``OSError`` where it can't be had.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    return store_on(listener, address or "127.0.0.1", timeout=timeout)


def store_on(listener: socket.socket, host: str, **options: Any) -> Any:
    """Open a ``TCPStore`` that ``listener`` listens for; this process reaches it at ``host``.

    Raises ``OSError`` where it can't be had.
    """
    from torch.distributed import TCPStore

    check_listener(listener, host)
    port, options = listener.getsockname()[1], {**torch_versions.listening_options(), **options}
    fd = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd, **options)


def check_listener(listener: socket.socket, address: str) -> None:
    """Make sure that a ``TCPStore`` can serve at ``address``, and be reached there by this process.

    Raises ``OSError`` where it can't, as where the loopback interface is down or no more files may be open.
    torch itself then tries again for minutes, without a word, or ends the process.
    """
    files = []
    try:
        for _ in range(_FILES):
            files.append(os.dup(listener.fileno()))
    finally:
        for file in files:
            os.close(file)
    port = listener.getsockname()[1]
    try:
        socket.create_connection((address, port), timeout=_REACH_S).close()
    except OSError as exc:
        text = "%s: %s at %s:%d" % (exc.strerror or exc, ITSELF, address, port)
        raise OSError(exc.errno or errno.ETIMEDOUT, text) from None


def told_address() -> str:
    """Return this node's own address, where the cluster tells it; else ""."""
    return os.environ.get(ADDRESS, "")


def own_address(host: str) -> str:
    """Return the address at which others reach this node, known to them as ``host``; "" if there is none."""
    if told_address():
        return told_address()
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
            pass
    except (
        OSError
    ):  # nobody knows the name yet, or it stands for this machine without being one of its addresses
        return ""
    # Many a machine calls itself so in its own /etc/hosts, and nobody else does.
    hidden = ipaddress.ip_address(address).is_loopback and host not in (address, "localhost")
    return "" if hidden else address
