"""How the agents of a job find each other: they meet in a store of node 0 or of the supervisor.

torch unpickles whatever is in the store under a fixed name. Here the state is stored as JSON, and only what
this very process has just pickled is unpickled.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, TypeVar

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _NodeDesc,
    _RendezvousState,
)

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts import emit, exits
from nbtorchjob.runtime.facts.injected import node_index
from nbtorchjob.runtime.rendezvous import groups
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.peers import END, PREFIX, Peers
from nbtorchjob.runtime.rendezvous.signed import SignedStore

_QUIET_S = 5.0  # of waiting, before a notice
_AGAIN_S = 1.0  # between two looks for a new node 0
_FORMER_S = 120.0  # for the pods of an earlier job of the same name to end

_Met = TypeVar("_Met")


class Endpoint:
    """``host:port``; the stores that it opens are signed with ``key``.

    Once it is served or joined, ``address`` is the one where this node can listen; "" if that is unknown.
    """

    def __init__(self, text: str, timeout: timedelta, key: bytes) -> None:
        host, _, port = text.rpartition(":")
        self._where = self._server = (host.strip("[]"), int(port))
        self._timeout = timeout
        self._key = key
        self.address = ""

    def serve(self) -> SignedStore:
        """Open the store, which lives as long as the result."""
        host, port = self._where
        self.address = groups.own_address(host)
        if not self.address:
            text = "node 0 listens at all addresses of its machine: set %s to its own" % groups.ADDRESS
            emit("Notice", text=text)
        self._server = (self.address or "127.0.0.1", port)
        return SignedStore(groups.serve_store(self.address, port, self._timeout), self._key)

    def join(self, limit: float, enter: Callable[[SignedStore], _Met]) -> _Met:
        """Return what ``enter`` makes of the store; wait for a new node 0 if the store's attempt has ended.

        It also waits if the store goes away meanwhile, and for a while if the store isn't signed by this job:
        while the pods of an earlier job of the same name end, the name may lead to them (a Service of JobSet
        0.12 selects them, a resolver caches them). All other connections of this node go to the address that
        has answered. The name may become unknown for a while: Volcano deletes the Service of a suspended job,
        and creates a new one when the job is resumed (1.15).

        Raises ``PeersEnded`` if the job has ended, ``TimeoutError`` after ``limit`` seconds.
        """
        began = time.monotonic()
        until = began + limit
        while True:
            self._server, self.address = _await(*self._where, until - time.monotonic())
            try:
                store = self.connect()
                # If the store isn't this job's: the code that makes it wait for another node 0, or
                # ``PeersEnded``.
                words = store.below(PREFIX)
                wait = time.monotonic() < began + _FORMER_S
                try:
                    words.check(["was/0"])
                    code = exits.of_peer(int(words.get(END))) if words.check([END]) else None
                except PeersEnded:
                    if not wait:
                        raise
                    code = exits.INFRASTRUCTURE_ERROR
                if code is None:
                    return enter(store)
            except (RuntimeError, RendezvousConnectionError):  # torch raises these when a connection ends
                code = exits.INFRASTRUCTURE_ERROR
            if code not in exits.AGAIN:
                raise PeersEnded(code)
            if time.monotonic() > until:
                raise TimeoutError("waited %.0f s for node 0 to start anew at %s:%d" % (limit, *self._where))
            time.sleep(_AGAIN_S)

    def connect(self) -> SignedStore:
        """Open a new connection: on a shared one, writes would wait behind a blocking read."""
        store: Any = TCPStore(*self._server, is_master=False, timeout=self._timeout, wait_for_workers=False)
        return SignedStore(store, self._key)


def _await(host: str, port: int, limit: float) -> Tuple[Tuple[str, int], str]:
    """Wait for node 0: its pod may be late, and its name can be resolved only once the pod is ready.

    Returns the address that has answered, and this node's own. Raises ``TimeoutError`` after ``limit``
    seconds.
    """
    began, noted, pause = time.monotonic(), False, 0.05
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                own = groups.told_address() or str(connection.getsockname()[0])
                return (connection.getpeername()[0], port), own
        except OSError as exc:
            waited = time.monotonic() - began
            why = "%s:%d (%s)" % (host, port, exc.strerror or exc)
        if waited > limit:
            raise TimeoutError("waited %.0f s for node 0 at %s" % (waited, why))
        if waited > _QUIET_S and not noted:
            emit("Notice", text="waiting for node 0 at %s" % why)
            noted = True
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


_TAG = "$"


class Meeting(C10dRendezvousBackend):  # type: ignore[misc]
    """Holds the state of the rendezvous, and ends a node that waits in it for others that are gone."""

    def __init__(self, store: Any, run_id: str, peers: Peers) -> None:
        super().__init__(store, run_id)
        self._peers = peers

    def get_state(self) -> "Optional[Tuple[bytes, Any]]":
        """See the base class. Raises ``PeersEnded``."""
        self._peers.check()
        state_and_token = super().get_state()
        return None if state_and_token is None else (_pickled(state_and_token[0]), state_and_token[1])

    def set_state(self, state: bytes, token: Any = None) -> "Optional[Tuple[bytes, Any, bool]]":
        """See the base class. Raises ``PeersEnded``."""
        result = super().set_state(encode(pickle.loads(state)), token)
        return None if result is None else (_pickled(result[0]), result[1], result[2])


def _pickled(text: bytes) -> bytes:
    return pickle.dumps(decode(text))


def encode(state: Any) -> bytes:
    """Encode a rendezvous' state; raises ``TypeError`` for values that another version of torch may use."""
    return json.dumps(_plain(vars(state)), sort_keys=True).encode()


def decode(text: bytes) -> Any:
    """Decode what :func:`encode` wrote. Raises ``RendezvousStateError``."""
    state = _RendezvousState()
    try:
        fields = _rebuilt(json.loads(text.decode()))
        if fields.keys() != vars(state).keys():
            raise ValueError("it has %s" % ", ".join(sorted(fields)))
    except Exception as exc:  # another version may have written anything
        raise RendezvousStateError("the rendezvous state that the nodes share is damaged: %s" % exc) from exc
    vars(state).update(fields)
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {_TAG: "dict", "of": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, set):
        return {_TAG: "set", "of": [_plain(item) for item in sorted(value)]}
    if isinstance(value, datetime):
        return {_TAG: "time", "of": value.isoformat()}
    if isinstance(value, _NodeDesc):
        return {_TAG: "node", "of": [value.addr, value.pid, value.local_id]}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError("a rendezvous' state holds a %s" % type(value).__name__)


def _rebuilt(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _rebuilt(item) for key, item in value.items()}
    kind, parts = value[_TAG], value["of"]
    if kind == "dict":
        return {_rebuilt(key): _rebuilt(item) for key, item in parts}
    if kind == "set":
        return {_rebuilt(item) for item in parts}
    if kind == "time":
        return datetime.fromisoformat(parts)
    addr, pid, local_id = parts
    return _NodeDesc(addr, pid, local_id)


# c10d ignores the "timeout" of flytekit's defaults, and reads other keys. With a node range, the first
# rendezvous would wait torch's 30 s for late nodes, which is longer than most need.
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


class WatchedRendezvous(RendezvousHandler):  # type: ignore[misc]
    """A c10d rendezvous that also restarts the group when a peer is known to be gone.

    c10d notices a lost node only as a failed collective, which counts against ``max_restarts``, while a
    change of membership doesn't. So a certain loss is reported to the agent as such a change.
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
        while True:
            try:
                with _fresh_looks(self._inner):
                    info = self._inner.next_rendezvous()
                    break
            except (PeersEnded, RuntimeError, RendezvousConnectionError) as exc:
                # A Job starts a node anew while the others still end, which may take them 15 s or more
                # (Kubernetes 1.36). Such a node belongs to the next peers, not to the ending ones, and may
                # notice only that the store of these goes away.
                code = exc.code if isinstance(exc, PeersEnded) else exits.INFRASTRUCTURE_ERROR
                late = self.peers.replaces >= 0 and not self.peers.joined
                if not late or code not in exits.AGAIN:
                    raise
                self.peers.close()
                self._inner, self.peers = self._meet()
        if info.rank == 0:
            host = info.bootstrap_store_info.master_addr
            self._store = groups.open_store(info.store, host, self._where.address)
        return info

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
    """Have every look for the other nodes ask the store; torch caches the answer for a second.

    That cache is meant for an agent that runs its ranks and only sometimes asks for new nodes.
    """
    seconds = torch_versions.ANSWERS_FOR_S.get(handler)
    torch_versions.ANSWERS_FOR_S.set(handler, 0)
    try:
        yield
    finally:
        torch_versions.ANSWERS_FOR_S.set(handler, seconds)


class _Pause:
    """Waits between two looks for the other nodes: a tenth of the time since the first one.

    torch's own pauses take a second, as long as two nodes of one machine need for everything else.
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
) -> WatchedRendezvous:
    """Meet other agents over c10d at ``endpoint`` (host:port); ``configs`` are torchrun's rdzv-conf.

    They recognize each other by ``key``. Raises ``PeersEnded`` if the job has ended, ``TimeoutError`` if
    no other agent comes.
    """
    os.environ[torch_versions.OWN_STORE] = "1"  # ``WatchedRendezvous`` opens one per round
    torch_versions.METHOD_NAME.replace(_calling)
    conf = {**DEFAULTS, **configs}
    where = Endpoint(endpoint, timedelta(seconds=int(conf["read_timeout"])), key)
    # Passed in, not guessed as torch does: a pod may start before its own name can be resolved.
    hosted = bool(int(conf.get("is_host", 0)))

    def enter(store: SignedStore) -> Tuple[RendezvousHandler, Peers]:
        # A separate connection: heartbeats would otherwise wait behind this node's wait for another.
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

    return WatchedRendezvous(where, meet)


def _calling(depth: int = 2) -> str:
    """Name a calling function for the events of torch's rendezvous, which go nowhere.

    torch's version reads the sources of the whole stack at each step, for which it looks through all
    modules: 0.1 to 0.2 s in a zipapp. On a busy machine nodes then miss their heartbeats.
    """
    return sys._getframe(depth).f_code.co_name
