"""Where the agents of a job meet: a store that node 0 serves, or on one machine the job's supervisor."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any, Callable, Optional, Tuple, TypeVar

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from . import exits, listening
from .emit import emit
from .peers import END, PREFIX, PeersEnded
from .signed import SignedStore

_QUIET_S = 5.0  # of waiting, before it is told
_AGAIN_S = 1.0  # between two looks for a new node 0

_Met = TypeVar("_Met")


class Endpoint:
    """``host:port``; the stores it gives are signed with ``key``.

    Once it is served or joined, ``address`` is this node's own, to listen at; "" where that isn't known.
    """

    def __init__(self, text: str, timeout: timedelta, key: bytes) -> None:
        host, _, port = text.rpartition(":")
        self._where = self._found = (host.strip("[]"), int(port))
        self._timeout = timeout
        self._key = key
        self.address = ""

    def serve(self) -> SignedStore:
        """Open the store, which lives as long as the result does."""
        host, port = self._where
        self.address = listening.own_address(host)
        if not self.address:
            text = "node 0 listens at all addresses of its machine: set %s to its own" % listening.ADDRESS
            emit("Notice", text=text)
        self._found = (self.address or "127.0.0.1", port)
        return SignedStore(listening.serve(self.address, port, self._timeout), self._key)

    def join(self, limit: float, enter: Callable[[SignedStore], _Met]) -> _Met:
        """Return what ``enter`` makes of the store; one where a job has ended is of a node 0 to be replaced.

        So is one that goes away meanwhile. All other connections of this node go to the address that has
        answered. Its name may be unknown for a while again: Volcano deletes the Service of a job that is
        suspended, and makes a new one when it is resumed (1.15).

        Raises ``PeersEnded`` where the job has ended, ``TimeoutError`` after ``limit`` seconds.
        """
        until = time.monotonic() + limit
        while True:
            self._found, self.address = _await(*self._where, until - time.monotonic())
            try:
                store = self.connect()
                code = _ended(store)
                if code is None:
                    return enter(store)
            except (RuntimeError, RendezvousConnectionError):  # torch's, for a connection that ends
                code = exits.INFRASTRUCTURE_ERROR
            if code not in exits.AGAIN:
                raise PeersEnded(code)
            if time.monotonic() > until:
                raise TimeoutError("waited %.0f s for node 0 to start anew at %s:%d" % (limit, *self._where))
            time.sleep(_AGAIN_S)

    def connect(self) -> SignedStore:
        """Open a connection of its own: on a shared one, what is said waits behind what is waited for."""
        made: Any = TCPStore(*self._found, is_master=False, timeout=self._timeout, wait_for_workers=False)
        return SignedStore(made, self._key)


def _ended(store: SignedStore) -> Optional[int]:
    words = store.below(PREFIX)
    return exits.of_peer(int(words.get(END))) if words.check([END]) else None


def _await(host: str, port: int, limit: float) -> Tuple[Tuple[str, int], str]:
    """Wait for node 0: its pod may be late, and a name is known only once its pod is ready.

    Gives the address that has answered, and this node's own. Raises ``TimeoutError`` after ``limit`` seconds.
    """
    began, told, pause = time.monotonic(), False, 0.05
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                own = listening.said() or str(connection.getsockname()[0])
                return (connection.getpeername()[0], port), own
        except OSError as exc:
            waited = time.monotonic() - began
            why = "%s:%d (%s)" % (host, port, exc.strerror or exc)
        if waited > limit:
            raise TimeoutError("waited %.0f s for node 0 at %s" % (waited, why))
        if waited > _QUIET_S and not told:
            emit("Notice", text="waiting for node 0 at %s" % why)
            told = True
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
