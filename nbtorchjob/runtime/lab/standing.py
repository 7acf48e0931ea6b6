"""The ranks of a node that stay, each at the other end of a socket (``turns.py``), and one thread for them.

That thread does everything that concerns a lab on its node, one thing after the other: it handles messages
from ranks, calls that other threads post, and what is due. While it is idle it costs nothing.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, TypeVar

from nbtorchjob.runtime.ask.questions import within
from nbtorchjob.runtime.lab.turns import SOCKET

_LONGEST = 1 << 24  # bytes of a line: the names in ``__main__``
_BACKLOG = 4096
_ACT_S = 60.0  # for calls that other threads post

T = TypeVar("T")


class Standing:
    """Exchanges messages with the ranks that connect to a socket in ``folder``, the node's.

    ``on_message`` is called with a rank and its message; ``due`` returns in how many seconds it has to be
    called again, if at all. Both are called in this object's thread.
    """

    def __init__(
        self,
        folder: str,
        on_message: Callable[[int, Dict[str, Any]], None],
        due: Callable[[], Optional[float]],
    ) -> None:
        self._on_message = on_message
        self._due = due
        self._base = -1
        self._open: Dict[int, Dict[str, Any]] = {}  # by rank: the last order, until it is done
        self._ranks: Dict[int, socket.socket] = {}
        self._acts: Deque[Callable[[], None]] = deque()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._listener = socket.socket(socket.AF_UNIX)
        os.fchmod(self._listener.fileno(), 0o600)
        path = os.path.join(folder, SOCKET)
        if os.path.exists(path):
            os.unlink(path)  # left by an earlier attempt
        within(folder, SOCKET, self._listener.bind)
        self._path = path
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_r, selectors.EVENT_READ, self._act)
        threading.Thread(target=self._run, daemon=True, name="lab").start()

    def close(self) -> None:
        """Have no further rank connect."""
        try:
            os.unlink(self._path)
        except OSError:
            pass

    # From any thread

    def post(self, act: Callable[[], None]) -> None:
        """Have ``act`` called in this object's thread."""
        self._acts.append(act)
        try:
            os.write(self._wake_w, b"\0")
        except BlockingIOError:  # it is awake
            pass

    def done(self, act: Callable[[], T], seconds: float = _ACT_S) -> T:
        """Post ``act`` and return or raise its outcome; raises ``queue.Empty`` after ``seconds``."""
        results: "queue.SimpleQueue[Tuple[Any, Optional[BaseException]]]" = queue.SimpleQueue()

        def note() -> None:
            try:
                results.put((act(), None))
            except BaseException as exc:
                results.put((None, exc))

        self.post(note)
        value, trouble = results.get(timeout=seconds)
        if trouble is not None:
            raise trouble
        result: T = value
        return result

    # In this object's thread

    def enter(self, base: int) -> None:
        """Accept only ranks that began in the round ``base``; -1 accepts none."""
        for rank in list(self._ranks):
            self._drop(self._ranks[rank])
        self._base = base
        self._open = {}

    def tell(self, rank: int, order: Dict[str, Any]) -> None:
        """Send a rank an order, now or once it has connected."""
        self._open[rank] = order
        if rank in self._ranks:
            self._send(rank)

    def _send(self, rank: int) -> None:
        try:
            line = json.dumps(self._open[rank]).encode() + b"\n"
            self._ranks[rank].sendall(line, socket.MSG_NOSIGNAL)
        except OSError:  # it connects again, or is gone
            self._drop(self._ranks[rank])

    def _run(self) -> None:
        # Signals have to reach the agent's thread: only then do they end its waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            try:
                for key, _ in self._selector.select(self._due()):
                    key.data()
            except Exception:  # something unforeseen, which mustn't stop the thread
                traceback.print_exc()
                sys.stderr.flush()
                time.sleep(0.1)

    def _act(self) -> None:
        os.read(self._wake_r, 4096)
        while self._acts:
            self._acts.popleft()()

    def _accept(self) -> None:
        rank, _ = self._listener.accept()
        rank.setblocking(False)
        buffer: List[bytes] = [b""]
        self._selector.register(rank, selectors.EVENT_READ, lambda: self._hear(rank, buffer))

    def _hear(self, rank: socket.socket, buffer: List[bytes]) -> None:
        try:
            data = rank.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, buffer[0] = (buffer[0] + data).split(b"\n")
        try:
            for line in lines:
                self._take(rank, json.loads(line.decode()))
        except (ValueError, TypeError, KeyError, AttributeError):  # the user's code wrote there
            data = b""
        if not data or len(buffer[0]) > _LONGEST:
            self._drop(rank)

    def _take(self, connection: socket.socket, record: Dict[str, Any]) -> None:
        rank = int(record["rank"])
        if record["base"] != self._base:
            raise ValueError("it belongs to another round")
        again = self._ranks.get(rank) is not connection
        if again:
            if rank in self._ranks:
                self._drop(self._ranks[rank])
            self._ranks[rank] = connection
        order = self._open.get(rank)
        if order is not None and order.get("round") == record["done"]:
            del self._open[rank]
        elif order is not None and again:
            self._send(rank)
        self._on_message(rank, record)

    def _drop(self, connection: socket.socket) -> None:
        self._ranks = {rank: other for rank, other in self._ranks.items() if other is not connection}
        try:
            self._selector.unregister(connection)
        except (KeyError, ValueError):
            pass
        connection.close()
