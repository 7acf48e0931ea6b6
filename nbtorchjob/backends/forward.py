"""A port of a rank at a port of this machine, for as long as this process lives or until it is closed.

All connections share one conversation with the rank's node (``runtime/ask/ports.py``). A new one begins with
the first connection after the node was replaced: by then the rank may be on another node.
"""

from __future__ import annotations

import itertools
import queue
import selectors
import socket
import threading
from contextlib import suppress

from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.backends.talk import Talk
from nbtorchjob.errors import AskError, JobEndedError, NBTorchJobError, SpecError
from nbtorchjob.runtime.ask.ports import Channels, Message
from nbtorchjob.state import JobState
from nbtorchjob.text.words import line

LOOPBACK = "127.0.0.1"
PORTS = range(1, 1 << 16)
_BEGIN_S = 10.0
_LISTENS_S = 10.0
_EVER_S = 86400.0
_ACCEPT, _WAKE = "accept", "wake"


class Forward:
    """A forwarded port: ``local`` on this machine's loopback leads to ``port`` of a rank.

    ``listens`` is whether a process listened there when it was opened, None if that is unknown; ``trouble``
    is why the newest connection failed, "" if none did.
    """

    def __init__(self, backend: Backend, state: JobState, port: int, rank: int, local: int | None) -> None:
        """Open it; raises ``AskError``, ``JobEndedError``, and ``SpecError`` for a port that can't be had."""
        self.name, self.port, self.rank = state.info.name, port, rank
        self.trouble = ""
        self._backend, self._address = backend, state.info.address
        self._numbers = itertools.count(1)
        self._peers: dict[int, socket.socket] = {}  # connections that the node hasn't made yet
        self._heard: queue.SimpleQueue[tuple[Talk, Message | None]] = queue.SimpleQueue()
        self._talk: Talk | None = self._begin()
        self._channels = Channels(self._say)
        try:
            assert self._talk is not None
            self._talk.send({"listens": self.port})
            record = self._talk.hear(_LISTENS_S) or {}
            self.listens = record["yes"] if isinstance(record.get("yes"), bool) else None
            self._listener = _listener(port, local, shared=state.info.backend == "local")
        except BaseException:
            self._talk.close()
            raise
        self.local: int = self._listener.getsockname()[1]
        self._waker, self._woken = socket.socketpair()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nbtorchjob-forward-{port}", daemon=True)
        self._listen_to(self._talk)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address, as a browser takes it."""
        return f"http://{LOOPBACK}:{self.local}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._channels) + len(self._peers)

    @property
    def open(self) -> bool:
        """Whether it still takes connections: not once it was closed, or the job was seen to have ended."""
        return not self._closed.is_set()

    def close(self) -> None:
        """End it, and all its connections."""
        self._closed.set()
        self._wake()
        self._thread.join()

    def _begin(self) -> Talk:
        state = self._backend.snapshot(self._address)
        node = next(
            (number for number, node in state.nodes.items() if self.rank in node.ranks and node.working), None
        )
        if state.phase.terminal:
            raise JobEndedError(f"{self.name} has ended: none of its ports can be reached any more")
        if node is None:
            raise AskError(f"rank {self.rank} of {self.name} isn't running now")
        return able(self._backend, Talks, "forward", self._address).talk(
            self._address, node, {"question": "forward"}, _BEGIN_S
        )

    def _listen_to(self, talk: Talk) -> None:
        def listen() -> None:
            try:
                while (message := talk.receive(_EVER_S)) is not None:
                    self._heard.put((talk, message))
                    self._wake()
            except (NBTorchJobError, TimeoutError, OSError):
                pass  # why it has ended is told to the next connection that can't be made
            self._heard.put((talk, None))
            self._wake()

        threading.Thread(target=listen, name="nbtorchjob-forward-talk", daemon=True).start()

    def _wake(self) -> None:
        with suppress(OSError):  # closed, or awake already
            self._waker.send(b"\0")

    def _run(self) -> None:
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._channels.selector.register(self._listener, selectors.EVENT_READ, _ACCEPT)
        self._channels.selector.register(self._woken, selectors.EVENT_READ, _WAKE)
        try:
            while not self._closed.is_set():
                for ready in self._channels.act(_EVER_S):
                    if ready == _ACCEPT:
                        self._accept()
                    else:
                        with suppress(BlockingIOError):
                            self._woken.recv(1 << 12)
                self._hear()
        finally:
            self._closed.set()
            self._break_off()
            for file in (self._listener, self._waker, self._woken):
                file.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # it has left again, or there are no file descriptors
            return
        try:
            if self._talk is None:
                self._talk = self._begin()
                self._listen_to(self._talk)
        except NBTorchJobError as exc:
            self.trouble = str(exc)
            peer.close()
            if isinstance(exc, JobEndedError):
                self._closed.set()
            return
        number = next(self._numbers)
        self._peers[number] = peer
        self._say({"open": number, "port": self.port})

    def _hear(self) -> None:
        while not self._heard.empty():
            talk, message = self._heard.get()
            if talk is not self._talk:
                continue
            if message is None:
                self._break_off()
            elif isinstance(message, dict) and isinstance(number := message.get("opened"), int):
                if peer := self._peers.pop(number, None):
                    self._channels.add(number, peer)
            elif isinstance(message, dict) and isinstance(number := message.get("failed"), int):
                why = line(str(message.get("why")), 200)
                self.trouble = f"nothing answers at port {self.port} of rank {self.rank}: {why}"
                if peer := self._peers.pop(number, None):
                    peer.close()
            else:
                self._channels.hear(message)

    def _say(self, message: Message) -> None:
        if self._talk is not None:
            self._talk.send(message)

    def _break_off(self) -> None:
        """End all connections of a conversation that is over."""
        self._channels.clear()
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._talk is not None:
            self._talk.close()
            self._talk = None


def _listener(port: int, local: int | None, *, shared: bool) -> socket.socket:
    """Listen at ``local``, or at the port's own number, or where that is taken at any that is free.

    A rank on this machine has ``shared`` ports: at its own number we would connect to ourselves, endlessly.
    """
    if shared and local == port:
        raise SpecError("local-port", local, "another port than the rank's, which is on this machine, too")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, local if local is not None else 0 if shared else port))
    except OSError as exc:
        if local is not None:
            listener.close()
            raise SpecError("local-port", local, f"a port that is free here ({exc.strerror})") from exc
        listener.bind((LOOPBACK, 0))
    listener.listen()
    return listener
