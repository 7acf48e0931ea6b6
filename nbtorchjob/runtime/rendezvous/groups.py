"""The process groups of a rank's code: where ``init_process_group`` meets, and how they are left at the end.

torch has two ways to meet: in a store that rank 0 hosts, which ends with rank 0 while others connect,
and in a store of the agent, where a second group reads the addresses of the first. Here groups meet in a
store of the agent, and each has its own part of it.

Each store that a node serves listens on one address; torch's own stores listen on all of the machine's.
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
# Where torch's own ways meet, which stay unchanged for what uses them, such as RPC or another process.
_WHERE = ("MASTER_ADDR", "MASTER_PORT")
_WHO = ("RANK", "WORLD_SIZE")
_RETURNED_S = 0.005  # by then a rank that leaves its groups has reported that it returned


def open_store(shared: Any, host: str, address: str) -> Any:
    """Open the store of a round's groups at ``address`` and keep it open as long as the result lives.

    Its address is written to ``shared`` for the other agents of the round. If ``address`` is "", the store
    listens on all addresses, and the others use ``host``.
    """
    store = serve_store(address)
    shared.set(_MEETING, "%s:%d" % (address or host, store.port))
    return store


def address(shared: Any) -> str:
    """Return where the groups of the round meet (host:port), once its first agent has written that."""
    return str(shared.get(_MEETING).decode())


def meet_at(address: str, round_: int) -> None:
    """Have each ``init_process_group`` of this process meet in the store at ``address`` (host:port).

    In the ranks of a pool the store outlives the round, so the names of its groups begin with ``round_``.

    This applies to ``env://``, unless the code has chosen its own address or store. No rank leaves the call
    before all have connected: otherwise a short function could end on one rank while another, on a busy
    machine, still connects, and gloo would fail there with "Connection closed by peer".
    """
    importlib.import_module("torch.distributed.distributed_c10d")
    # torch's public hook takes only new schemes.
    meet, has_barrier = torch_versions.MEET.get(), torch_versions.BARRIER.get()
    if meet is not None and has_barrier is not None:
        door = _Door(address, round_, meet, has_barrier)
        torch_versions.MEET.replace(door.meet)
        torch_versions.BARRIER.replace(door.has_barrier)


class _Door:
    """Replaces two functions that ``init_process_group`` calls, one after the other."""

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
        """Return 1 for a group that met here, so that its ranks wait for each other; else torch's answer."""
        passed, self._passed = self._passed, False
        return 1 if passed else self._has_barrier()


def _values(names: Sequence[str]) -> "list[str | None]":
    return [os.environ.get(name) for name in names]


def leave() -> None:
    """Leave the process groups that the code left open: torch warns about them in every rank's log.

    Gloo's groups are left in the background if possible: their threads check only 100 times a second
    whether to end, and calls that others still wait for can complete meanwhile. If all ranks return at once,
    they are ended before that begins.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    backends = {backend for backend, _ in getattr(torch_versions.WORLD.get(), "pg_map", {}).values()}
    # With one node, ranks end only after all have returned; with several, each node ends its own.
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE") or backends != {"gloo"}:
        distributed.destroy_process_group()
        return

    def leave_soon() -> None:
        time.sleep(_RETURNED_S)
        distributed.destroy_process_group()

    thread = threading.Thread(target=leave_soon, name="leave", daemon=True)
    thread.start()
    atexit.register(thread.join)  # for an interpreter that shuts down normally: most ranks are killed


ADDRESS = "NBTORCHJOB_ADDRESS"  # the pod's
ITSELF = "this machine can't connect to itself"
_FILES = 16  # more than a store needs
_REACH_S = 5.0  # for a connection from this machine to itself
_BACKLOG = 2048  # all nodes of a job may connect at once


def serve_store(address: str, port: int = 0, timeout: timedelta = timedelta(minutes=5)) -> Any:
    """Open a ``TCPStore`` at ``address``, or at all of this machine's if that is ""; port 0 is any free one.

    Raises ``OSError`` if that fails.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    return store_on(listener, address or "127.0.0.1", timeout=timeout)


def store_on(listener: socket.socket, host: str, **options: Any) -> Any:
    """Open a ``TCPStore`` on the socket ``listener``; this process reaches it at ``host``.

    Raises ``OSError`` if that fails.
    """
    from torch.distributed import TCPStore

    check_listener(listener, host)
    port, options = listener.getsockname()[1], {**torch_versions.listening_options(), **options}
    fd = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd, **options)


def check_listener(listener: socket.socket, address: str) -> None:
    """Make sure that a ``TCPStore`` can serve at ``address``, and that this process can reach it there.

    Raises ``OSError`` if not, as when the loopback interface is down or no more files may be opened.
    torch itself would retry silently for minutes, or end the process.
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
    """Return this node's address if the cluster has set it, else ""."""
    return os.environ.get(ADDRESS, "")


def own_address(host: str) -> str:
    """Return the address at which others reach this node under the name ``host``; "" if there is none."""
    if told_address():
        return told_address()
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
            pass
    except OSError:  # the name can't be resolved yet, or resolves to an address that isn't this machine's own
        return ""
    # Many machines map their own name to loopback in /etc/hosts, where no other machine can reach them.
    hidden = ipaddress.ip_address(address).is_loopback and host not in (address, "localhost")
    return "" if hidden else address
