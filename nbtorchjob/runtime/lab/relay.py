"""How a lab's turns reach its other nodes: through the agents' shared store, where only signed values count.

The lead writes numbered messages, and each other node handles them in that order. Waiting needs no polling:
the store answers once a key is written.

    say/J        message J: {"have": N, "name": …}, or one that the lab's thread handles (``lab.py``)
    have/N/NODE  "" once the node has the payload of turn N, which was brought by that name; else an error
    done/R/NODE  its ranks are through with the turn of round R
    at/NODE      the newest message that it has read, now and then: those that all have read are deleted
    stop/R       of a pool: the turn of round R is to stop on all nodes, as a rank has failed; or it is over

An unsigned value ends the job: its writer could otherwise have nodes do different things. But everyone who
reaches the store can read it: no payload and no name from a user's code goes through it. The client brings a
turn's payload to each node, over the node's own socket.
Every message about a turn before "run" can be taken back, so it is run on all nodes or on none.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any, Callable, Dict, Sequence

from nbtorchjob.runtime.ask.answering import Refused
from nbtorchjob.runtime.rendezvous.alone import PeersEnded, store_may_be_gone

Connect = Callable[[], Any]

_SLICE_S = 20.0  # of waiting, between two checks that there is still something to wait for
_HAVE_S = 120.0  # for all nodes to say whether they have a payload
_TIDY = 64  # messages, after which old ones are deleted


def _below(connect: Connect, base: int) -> Any:
    return connect().below("nbtorchjob/lab/%d" % base)


def name_of(known_as: str) -> str:
    """Return the name that nodes give to the payload brought for the turn of that id."""
    return hashlib.sha256(known_as.encode()).hexdigest()[:32]


def brought(folder: str, name: str) -> str:
    """Return where a node keeps a payload until the lead says which turn it belongs to."""
    return os.path.join(folder, "brought-%s.payload" % name)


def path_of(folder: str, number: int) -> str:
    """Return where a node keeps the payload of a turn."""
    return os.path.join(folder, "turn-%d.payload" % number)


class _Waits:
    """Waits in a store until it is closed or gone; ``distrust`` is called if a stranger writes there.

    ``open_`` returns a new connection to that store.
    """

    def __init__(self, open_: Callable[[], Any], distrust: Callable[[PeersEnded], None]) -> None:
        self._open = open_
        self._closed = threading.Event()
        self._distrust = distrust

    def _start(self, act: Callable[[Any], None]) -> None:
        """Call ``act`` with a new connection in a new thread, in which it may wait."""

        def run() -> None:
            try:
                with store_may_be_gone():
                    act(self._open())
            except PeersEnded as exc:
                self._distrust(exc)

        threading.Thread(target=run, daemon=True, name="relay").start()

    def close(self) -> None:
        """Stop waiting; waiting threads notice that within some seconds."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """Whether it was closed, or the store is gone."""
        return self._closed.is_set()

    def wait(self, store: Any, keys: Sequence[str], seconds: float = float("inf")) -> bool:
        """Wait until agents have written all of these; return whether they have."""
        until = time.monotonic() + seconds
        while not self.closed and time.monotonic() < until:
            began, left = time.monotonic(), max(0.01, min(_SLICE_S, until - time.monotonic()))
            try:
                store.wait(list(keys), timedelta(seconds=left))
                return not self.closed
            except RuntimeError:  # the time is over; or the store is gone, which is handled elsewhere
                if time.monotonic() < began + left / 2:
                    self.close()
        return False

    def watch(self, round_: int, act: Callable[[], None]) -> None:
        """Call ``act`` once some node has had all nodes :meth:`stop` a turn of a pool."""

        def watch(store: Any) -> None:
            if self.wait(store, ["stop/%d" % round_]):
                act()

        self._start(watch)

    def stop(self, round_: int) -> None:
        """Have each node that watches a turn stop it; from any thread."""
        with store_may_be_gone():
            self._open().set("stop/%d" % round_, "")


class Lead(_Waits):
    """The lead's end, which sends to the nodes ``others``; ``on_done`` is called when a node is through."""

    def __init__(
        self,
        connect: Connect,
        base: int,
        others: Sequence[int],
        on_done: Callable[[int, int, Dict[str, Any]], None],
        distrust: Callable[[PeersEnded], None],
    ) -> None:
        super().__init__(partial(_below, connect, base), distrust)
        self.others = others
        self._on_done = on_done
        self._log, self._haves = self._open(), self._open()
        self._saying, self._asking = threading.Lock(), threading.Lock()
        self._newest = self._deleted = 0

    def say(self, message: Dict[str, Any]) -> None:
        """Send a message to all other nodes, after the earlier ones."""
        with self._saying:
            self._newest += 1
            self._log.set("say/%d" % self._newest, json.dumps(message))
            if self._newest % _TIDY == 0:
                keys = ["at/%d" % node for node in self.others]
                if self._log.check(keys):
                    least = min(map(int, self._log.multi_get(keys)))
                    for number in range(self._deleted + 1, least + 1):
                        self._log.delete_key("say/%d" % number)
                    self._deleted = max(least, self._deleted)

    def all_have(self, number: int, name: str) -> None:
        """Return once all nodes have the payload of a turn; raises ``Refused``."""
        haves = ["have/%d/%d" % (number, node) for node in self.others]
        with self._asking:
            self.say({"have": number, "name": name})
            if not self.wait(self._haves, haves, _HAVE_S):
                raise Refused("not all of its nodes can be reached")
            for have in haves:
                trouble = self._haves.get(have).decode()
                if trouble:
                    raise Refused("node %s: %s" % (have.rpartition("/")[2], trouble))
                self._haves.delete_key(have)

    def expect(self, round_: int, nodes: Sequence[int]) -> None:
        """Wait in a thread until these nodes' ranks are through with a turn."""

        def hear(store: Any) -> None:
            keys = ["done/%d/%d" % (round_, node) for node in nodes]
            if self.wait(store, keys):
                for node, record in zip(nodes, store.multi_get(keys)):
                    self._on_done(node, round_, json.loads(record.decode()))
                for key in keys:
                    store.delete_key(key)

        self._start(hear)


class Follower(_Waits):
    """Another node's end; ``on_message`` gets each message, except those on payloads in ``folder``."""

    def __init__(
        self,
        connect: Connect,
        base: int,
        node: int,
        folder: str,
        on_message: Callable[[Dict[str, Any]], None],
        distrust: Callable[[PeersEnded], None],
    ) -> None:
        super().__init__(partial(_below, connect, base), distrust)
        self._node = node
        self._folder = folder
        self._on_message = on_message
        self._store = self._open()
        self._start(self._hear)

    def done(self, round_: int, record: Dict[str, Any]) -> None:
        """Tell the lead that the ranks of this node are through with a turn."""
        self._store.set("done/%d/%d" % (round_, self._node), json.dumps(record))

    def _hear(self, store: Any) -> None:
        at = 0
        while self.wait(store, ["say/%d" % (at + 1)]):
            at += 1
            message: Dict[str, Any] = json.loads(store.get("say/%d" % at).decode())
            if at % _TIDY == 0:
                store.set("at/%d" % self._node, str(at))
            if "have" in message:
                number, trouble = message["have"], ""
                try:  # the payload that was brought becomes the turn's
                    os.replace(brought(self._folder, message["name"]), path_of(self._folder, number))
                except FileNotFoundError:
                    trouble = "the payload didn't arrive"
                except OSError as exc:
                    trouble = str(exc)
                store.set("have/%d/%d" % (number, self._node), trouble)
            else:
                self._on_message(message)
