"""How a lab's turns reach its other nodes: by the store that the agents share, where only they are heard.

The lead writes messages one after the other, and each other node takes them in that order. Who waits asks
nobody meanwhile: the store answers once there is something.

    say/J         message J: {"part": N, …}, and what is to be done in the thread of the lab (``lab.py``)
    part/N/C      piece C of the payload of turn N, unless that is small: then it comes with the message
    have/N/C/NODE the node has the pieces to there, and has found them good at the end; or what is wrong
    done/R/NODE   its ranks are through with the turn of round R
    at/NODE       the newest message that it has taken, now and then: what all have taken is deleted

What isn't signed ends the job: whoever writes there could otherwise have nodes do different things.
All that is told of a turn before "run" can be taken back, so it is run on all nodes or on none.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

from .answering import Refused
from .payload import Payload, PayloadError
from .peers import PeersEnded

Connect = Callable[[], Any]

_PIECE = 1 << 19  # bytes
_SMALL = 1 << 16  # bytes of a payload that goes with the message
_AT_ONCE = 16  # pieces in the store
_SLICE_S = 20.0  # of waiting: then it is looked whether there is anything to wait for
_SHARE_S = 120.0  # for all nodes to take so many pieces
_TIDY = 64  # messages


def _below(connect: Connect, base: int) -> Any:
    return connect().below("nbtorchjob/lab/%d" % base)


def path_of(folder: str, number: int) -> str:
    """Return where a node keeps the payload of a turn."""
    return os.path.join(folder, "turn-%d.payload" % number)


class _Waits:
    """Waits in a store as long as that is of any use; ``distrust`` hears where somebody else writes there."""

    def __init__(self, distrust: Callable[[PeersEnded], None]) -> None:
        self._closed = threading.Event()
        self._distrust = distrust

    def _run(self) -> None:
        """Hear until there is nothing more to hear; in a thread of its own."""
        try:
            self._hear()
        except PeersEnded as exc:
            self._distrust(exc)
        except RuntimeError:  # the store is gone: others see to that
            pass

    def _hear(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Wait no more; who waits finds that out within some seconds."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._closed.is_set()

    def wait(self, store: Any, keys: Sequence[str], seconds: float = float("inf")) -> bool:
        """Wait until agents have written all of these; return whether they have."""
        until = time.monotonic() + seconds
        while not self.closed and time.monotonic() < until:
            began, left = time.monotonic(), max(0.01, min(_SLICE_S, until - time.monotonic()))
            try:
                store.wait(list(keys), timedelta(seconds=left))
                return not self.closed
            except RuntimeError:  # the time is over; or the store is gone, which others see to
                if time.monotonic() < began + left / 2:
                    self.close()
        return False


class Lead(_Waits):
    """The lead's end: ``others`` are the nodes that it tells, ``heard`` is called with what one has done."""

    def __init__(
        self,
        connect: Connect,
        base: int,
        others: Sequence[int],
        heard: Callable[[int, int, Dict[str, Any]], None],
        distrust: Callable[[PeersEnded], None],
    ) -> None:
        super().__init__(distrust)
        self._others = others
        self._heard = heard
        self._log, self._parts, self._dones = (_below(connect, base) for _ in range(3))
        self._saying, self._sharing = threading.Lock(), threading.Lock()
        self._said = self._deleted = 0
        self._expected: "queue.SimpleQueue[Tuple[int, List[int]]]" = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="relay").start()

    def close(self) -> None:
        """See the base class."""
        super().close()
        self._expected.put((0, []))

    def say(self, message: Dict[str, Any]) -> None:
        """Say it to all other nodes, behind what was said before."""
        with self._saying:
            self._said += 1
            self._log.set("say/%d" % self._said, json.dumps(message))
            if self._said % _TIDY == 0:
                self._tidy()

    def _tidy(self) -> None:
        keys = ["at/%d" % node for node in self._others]
        if self._log.check(keys):
            least = min(map(int, self._log.multi_get(keys)))
            for number in range(self._deleted + 1, least + 1):
                self._log.delete_key("say/%d" % number)
            self._deleted = max(least, self._deleted)

    def share(self, folder: str, number: int) -> None:
        """Have all nodes hold the payload of a turn; raises ``Refused``."""
        path = path_of(folder, number)
        with self._sharing, open(path, "rb") as file:
            count = -(-os.path.getsize(path) // _PIECE)
            for begin in range(0, count, _AT_ONCE):
                end = min(count, begin + _AT_ONCE)
                pieces = ["part/%d/%d" % (number, piece) for piece in range(begin, end)]
                with_it = ""
                if os.path.getsize(path) <= _SMALL:
                    pieces, with_it = [], base64.b64encode(file.read()).decode()
                for piece in pieces:
                    self._parts.set(piece, file.read(_PIECE))
                told = {"pieces": pieces, "data": with_it, "end": end, "last": end == count}
                self.say({"part": number, **told})
                haves = ["have/%d/%d/%d" % (number, end, node) for node in self._others]
                if not self.wait(self._parts, haves, _SHARE_S):
                    raise Refused("not all of its nodes can be reached")
                for have in haves:
                    trouble = self._parts.get(have).decode()
                    if trouble:
                        raise Refused("node %s: %s" % (have.rpartition("/")[2], trouble))
                for key in (*pieces, *haves):
                    self._parts.delete_key(key)

    def expect(self, round_: int, nodes: Sequence[int]) -> None:
        """Hear when these nodes' ranks are through with a turn."""
        self._expected.put((round_, list(nodes)))

    def _hear(self) -> None:
        while not self.closed:
            round_, nodes = self._expected.get()
            keys = ["done/%d/%d" % (round_, node) for node in nodes]
            if keys and self.wait(self._dones, keys):
                for node, record in zip(nodes, self._dones.multi_get(keys)):
                    self._heard(node, round_, json.loads(record.decode()))
                for key in keys:
                    self._dones.delete_key(key)


class Follower(_Waits):
    """Another node's end: ``heard`` is called with each message but parts, which it writes to ``folder``."""

    def __init__(
        self,
        connect: Connect,
        base: int,
        node: int,
        folder: str,
        key: bytes,
        heard: Callable[[Dict[str, Any]], None],
        distrust: Callable[[PeersEnded], None],
    ) -> None:
        super().__init__(distrust)
        self._node = node
        self._folder = folder
        self._key = key
        self._heard = heard
        self._store = _below(connect, base)
        self._open = partial(_below, connect, base)
        threading.Thread(target=self._run, daemon=True, name="relay").start()

    def done(self, round_: int, record: Dict[str, Any]) -> None:
        """Tell the lead that the ranks of this node are through with a turn."""
        self._store.set("done/%d/%d" % (round_, self._node), json.dumps(record))

    def _hear(self) -> None:
        store, at = self._open(), 0
        while self.wait(store, ["say/%d" % (at + 1)]):
            at += 1
            message: Dict[str, Any] = json.loads(store.get("say/%d" % at).decode())
            if at % _TIDY == 0:
                store.set("at/%d" % self._node, str(at))
            if "part" in message:
                self._take(store, message)
            else:
                self._heard(message)

    def _take(self, store: Any, message: Dict[str, Any]) -> None:
        number, pieces = message["part"], message["pieces"]
        try:
            with open(path_of(self._folder, number), "ab") as file:
                file.write(base64.b64decode(message["data"]))
                for piece in pieces:
                    file.write(store.get(piece))
            if message["last"]:
                Payload(file.name).verify(self._key)
            trouble = ""
        except (OSError, PayloadError) as exc:
            trouble = str(exc)
        store.set("have/%d/%d/%d" % (number, message["end"], self._node), trouble)
