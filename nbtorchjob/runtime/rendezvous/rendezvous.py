"""How the agents of a job find each other."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, Tuple

from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.injected import node_index
from nbtorchjob.runtime.rendezvous import groups
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.endpoint import Endpoint, Meeting
from nbtorchjob.runtime.rendezvous.peers import Peers
from nbtorchjob.runtime.rendezvous.signed import SignedStore

# c10d reads other keys than the "timeout" of flytekit's defaults. With a node range
# the first rendezvous waits for late nodes for torch's 30 s, which is longer than most of them need.
DEFAULTS = {
    "join_timeout": 900,
    "last_call_timeout": 15,
    "close_timeout": 30,
    "heartbeat_timeout": 5,
    "keep_alive_interval": 5,
    "keep_alive_max_attempt": 3,
    "read_timeout": 60,
    "silence": 15,  # seconds without a heartbeat of a node's agent after which it is lost (``peers.py``)
}


_SHORTEST_S = 0.005


class Watched(RendezvousHandler):  # type: ignore[misc]
    """A c10d rendezvous that also restarts the group when a peer is known to be gone.

    c10d notices a lost node only as a failed collective, which counts against ``max_restarts``; a
    change of membership doesn't. So a loss that is certain is reported to the agent as such a change.
    """

    def __init__(self, where: Endpoint, meet: Callable[[], Tuple[RendezvousHandler, Peers]]) -> None:
        self._where = where
        self._meet = meet
        self._inner, self.peers = meet()
        self._store: Any = None

    def get_backend(self) -> str:
        """See the base class."""
        return str(self._inner.get_backend())

    @property
    def use_agent_store(self) -> bool:
        """See the base class: ranks meet in an agent's store, but not in torch's way (``groups``)."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """See the base class; the first agent of the round opens the store that its ranks meet in."""
        self._store = None
        torch_versions.DELAY.replace(_Pause())
        info = self._joined()
        if info.rank == 0:
            host = info.bootstrap_store_info.master_addr
            self._store = groups.open_store(info.store, host, self._where.address)
        return info

    def _joined(self) -> RendezvousInfo:
        while True:
            try:
                with _fresh_looks(self._inner):
                    return self._inner.next_rendezvous()
            except (PeersEnded, RuntimeError, RendezvousConnectionError) as exc:
                # A Job starts a node anew while the others still end, which may take them 15 s or more
                # (Kubernetes 1.36). Such a node belongs to the next peers, not to the ending ones, of which
                # it may see no more than that their store goes.
                code = exc.code if isinstance(exc, PeersEnded) else exits.INFRASTRUCTURE_ERROR
                late = self.peers.replaces >= 0 and not self.peers.joined
                if not late or code not in exits.AGAIN:
                    raise
                self.peers.close()
                self._inner, self.peers = self._meet()

    def connect(self) -> SignedStore:
        """Open one more connection to the store where the agents meet."""
        return self._where.connect()

    def is_closed(self) -> bool:
        """See the base class."""
        return bool(self._inner.is_closed())

    def set_closed(self) -> None:
        """See the base class."""
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        """Return how many nodes want to join; a lost peer counts as one."""
        return int(self._inner.num_nodes_waiting()) + int(self.peers.peer_lost)

    def get_run_id(self) -> str:
        """See the base class."""
        return str(self._inner.get_run_id())

    def shutdown(self) -> bool:
        """See the base class."""
        self._store = None
        return bool(self._inner.shutdown())


@contextmanager
def _fresh_looks(handler: Any) -> Iterator[None]:
    """Have each look for the other nodes ask the store, where torch's own answers anew once a second.

    That is for an agent that runs its ranks and asks now and then who else has come.
    """
    seconds = torch_versions.ANSWERS_FOR_S.get(handler)
    torch_versions.ANSWERS_FOR_S.set(handler, 0)
    try:
        yield
    finally:
        torch_versions.ANSWERS_FOR_S.set(handler, seconds)


class _Pause:
    """Waits between two looks for the other nodes: a tenth of the time since the first one.

    torch's own take a second, as long as two nodes of one machine take for everything else together.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, seconds: "float | Tuple[float, float]") -> None:
        """Wait; ``seconds`` is how long torch would, or the range from which it would draw the time."""
        most = seconds[0] if isinstance(seconds, tuple) else seconds
        time.sleep(min(most, max(_SHORTEST_S, (time.monotonic() - self._began) / 10)))


def dynamic(
    endpoint: str,
    run_id: str,
    nodes: "tuple[int, int]",
    local_addr: "str | None",
    configs: Dict[str, Any],
    key: bytes,
) -> Watched:
    """Meet other agents over c10d at ``endpoint`` (host:port); ``configs`` are torchrun's rdzv-conf.

    They recognize each other by ``key``. Raises ``PeersEnded`` if the job has ended, ``TimeoutError`` if
    there is nobody to meet.
    """
    os.environ[torch_versions.OWN_STORE] = "1"  # ``Watched`` opens one a round
    torch_versions.METHOD_NAME.replace(_calling)
    conf = {**DEFAULTS, **configs}
    where = Endpoint(endpoint, timedelta(seconds=int(conf["read_timeout"])), key)
    # Passed, not guessed as torch does: a pod may start before its own name can be resolved.
    hosted = bool(int(conf.get("is_host", 0)))

    def enter(store: SignedStore) -> Tuple[RendezvousHandler, Peers]:
        # On a connection of their own: heartbeats would otherwise wait behind this node's wait for another.
        other = where.connect()
        peers = Peers(
            store,
            where.connect,
            other,
            node_index(),
            elastic=nodes[0] < nodes[1],
            hosted=hosted,
            silence=float(conf["silence"]),
        )
        timeout = RendezvousTimeout(
            join=timedelta(seconds=int(conf["join_timeout"])),
            last_call=timedelta(seconds=float(conf["last_call_timeout"])),
            close=timedelta(seconds=int(conf["close_timeout"])),
            heartbeat=timedelta(seconds=int(conf["heartbeat_timeout"])),
        )
        names = ("keep_alive_interval", "keep_alive_max_attempt") if torch_versions.KEEP_ALIVE.get() else ()
        handler = DynamicRendezvousHandler.from_backend(
            run_id,
            store,
            Meeting(other, run_id, peers),
            *nodes,
            local_addr,
            timeout,
            **{name: int(conf[name]) for name in names},
        )
        return handler, peers

    def meet() -> Tuple[RendezvousHandler, Peers]:
        return enter(where.serve()) if hosted else where.join(float(conf["join_timeout"]), enter)

    return Watched(where, meet)


def _calling(depth: int = 2) -> str:
    """Name a calling function for the events of torch's rendezvous, which go nowhere.

    torch's own reads the sources of the whole stack at each step, for which it looks through all
    modules: 0.1 to 0.2 s in a zipapp. On a busy machine nodes then miss their heartbeats.
    """
    return sys._getframe(depth).f_code.co_name
