"""Nodes without agents and ranks: threads of one process, each with its connections, on one store."""

from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore

from nbtorchjob.runtime.rendezvous.peers import Peers
from nbtorchjob.runtime.rendezvous.signed import SignedStore

KEY = b"k" * 32


def serve(port: int = 0) -> TCPStore:
    """Start a store in which nodes meet, at ``port`` or, by default, at any free one."""
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def connect(store: TCPStore) -> Any:
    """Open a connection to the store, as a node of the job."""
    return SignedStore(TCPStore("127.0.0.1", store.port, is_master=False), KEY)


def unchanged(connection: Any) -> Any:
    return connection


def join(
    store: TCPStore,
    node: int = 0,
    *,
    asking: Callable[[Any], Any] = unchanged,
    watching: Callable[[Any], Any] = unchanged,
    beating: Callable[[Any], Any] | None = None,
    elastic: bool = False,
    hosted: bool = False,
    silence: float = 60.0,
) -> Peers:
    """Return a node on the store.

    ``asking``, ``watching`` and ``beating`` change how its three connections act: the one of its main
    thread, the one that listens for news, and the one for heartbeats, by default as the second.
    """
    return Peers(
        asking(connect(store)),
        lambda: watching(connect(store)),
        (beating or watching)(connect(store)),
        node,
        elastic=elastic,
        hosted=hosted,
        silence=silence,
    )
