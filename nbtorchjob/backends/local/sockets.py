"""The nodes of a job on this machine are asked at their sockets, all of them at once."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from nbtorchjob.backends.asking import OLDER, STARTING, Conversation, silent
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.runtime import questions
from nbtorchjob.state import JobState

_CHUNK = 1 << 16
_FULL = "too many ask it already, and it takes no more"


def ask(
    job: JobDirectory, state: JobState, conversations: Iterable[Conversation], timeout: float
) -> Iterator[NodeAnswer]:
    """Yield what the nodes answer, as they do."""
    until = time.monotonic() + timeout
    waiting: dict[int, tuple[socket.socket, Conversation]] = {}
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for talk in conversations:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            if trouble := _connected(peer, job, state, talk.node):
                talk.end(trouble)
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


def _connected(peer: socket.socket, job: JobDirectory, state: JobState, node: int) -> str:
    """Connect to a node's socket; return what keeps it from that, "" where nothing does."""
    peer.setblocking(False)
    try:
        questions.at_socket(str(job.node(node)), peer.connect)
    except (FileNotFoundError, ConnectionRefusedError):  # not there yet, or an earlier attempt's
        return OLDER if state.nodes[node].working else STARTING
    except BlockingIOError:
        return _FULL
    except OSError as exc:
        return f"its socket can't be used: {exc.strerror or exc}"
    return ""


def _exchange(peer: socket.socket, talk: Conversation) -> None:
    try:
        data = peer.recv(_CHUNK)
        if not data:
            talk.end("it has ended meanwhile")
        elif said := talk.hear(data):
            peer.sendall(said)  # a question fits into the empty buffer of a new connection
    except OSError as exc:
        talk.end(f"it has ended meanwhile: {exc.strerror or exc}")
