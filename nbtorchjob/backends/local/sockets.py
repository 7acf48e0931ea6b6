"""Asks the nodes of a job on this machine at their sockets: all of them at once, or one for longer."""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.talk import OLDER, STARTING, Conversation, silent
from nbtorchjob.runtime.ask import questions
from nbtorchjob.state import JobState
from nbtorchjob.state.nodes import Node

_CHUNK = 1 << 16
_SENDING_S = 10.0  # for a node to accept part of the data that is sent
_ENDED = "it has ended meanwhile"
_FULL = "too many ask it already, and it takes no more"


def ask(
    job: JobDirectory, state: JobState, conversations: Iterable[Conversation], timeout: float
) -> Iterator[NodeAnswer]:
    """Yield the nodes' answers as they arrive."""
    until = time.monotonic() + timeout
    waiting: dict[int, tuple[socket.socket, Conversation]] = {}
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for talk in conversations:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                _connect(peer, job, talk.node)
            except OSError as exc:
                talk.end(trouble(exc, state.nodes[talk.node]))
                yield talk.answer
            else:
                waiting[selector.register(peer, selectors.EVENT_READ).fd] = peer, talk
        while waiting and (left := until - time.monotonic()) > 0:
            for ready, _ in selector.select(left):
                peer, talk = waiting[ready.fd]
                _exchange(peer, talk)
                if talk.over:
                    del waiting[ready.fd]
                    selector.unregister(peer)
                    peer.close()
                    yield talk.answer
        for _, talk in waiting.values():
            talk.end(silent(timeout))
            yield talk.answer


def line(job: JobDirectory, node: int) -> SocketLine:
    """Return a connection to a node's socket; raises ``OSError``, which :func:`trouble` explains."""
    peer = socket.socket(socket.AF_UNIX)
    try:
        _connect(peer, job, node)
    except OSError:
        peer.close()
        raise
    return SocketLine(peer)


def trouble(exc: OSError, node: Node) -> str:
    """Return why connecting to a node's socket failed."""
    if isinstance(exc, FileNotFoundError | ConnectionRefusedError):  # not there yet, or an earlier attempt's
        return OLDER if node.working else STARTING
    return _FULL if isinstance(exc, BlockingIOError) else f"its socket can't be used: {exc.strerror or exc}"


def _connect(peer: socket.socket, job: JobDirectory, node: int) -> None:
    peer.setblocking(False)
    questions.within(str(job.node(node)), questions.SOCKET, peer.connect)


def _exchange(peer: socket.socket, talk: Conversation) -> None:
    try:
        data = peer.recv(_CHUNK)
        if not data:
            talk.end(_ENDED)
        elif message := talk.hear(data):
            peer.sendall(message)  # a question fits into the empty buffer of a new connection
    except OSError as exc:
        talk.end(f"{_ENDED}: {exc.strerror or exc}")


class SocketLine:
    """A connection that carries a conversation (``talk.Line``)."""

    beat = math.inf  # a peer that has left is noticed at once

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._sender = peer.dup()  # has a time-out of its own: one thread may send while another receives
        self._sender.settimeout(_SENDING_S)
        self._why = _ENDED

    def send(self, data: bytes) -> None:
        """See ``talk.Line``."""
        try:
            self._sender.sendall(data)
        except OSError as exc:  # what the node sent before can still be received
            self._why = f"{_ENDED}: {exc.strerror or exc}"

    def receive(self, seconds: float) -> bytes:
        """See ``talk.Line``."""
        self._peer.settimeout(max(seconds, 1e-3))
        try:
            return self._peer.recv(_CHUNK)
        except TimeoutError:
            raise
        except OSError as exc:
            self._why = f"{_ENDED}: {exc.strerror or exc}"
            return b""

    def why(self) -> str:
        """See ``talk.Line``."""
        return self._why

    def close(self) -> None:
        """See ``talk.Line``."""
        with suppress(OSError):  # the node has left already
            self._peer.shutdown(socket.SHUT_RDWR)  # wakes a thread that still receives, as closing doesn't
        self._sender.close()
        self._peer.close()
