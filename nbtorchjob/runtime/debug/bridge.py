"""A node connects users to a rank that is stopped in the debugger (``debug`` describes the protocol).

After ``{"question": "debug", "rank": 1, "by": "…"}`` each record comes from the rank, and each message goes
to it; or a record is ``{"trouble": "…"}``. To ``{"question": "release"}`` the answer is
``{"released": [1]}``, the ranks that were held where they failed.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import closing, suppress
from typing import Any, Dict, Iterator, Mapping, Tuple

from nbtorchjob.runtime.ask.answering import Handler, Question
from nbtorchjob.runtime.ask.questions import within
from nbtorchjob.runtime.debug import LINE_BYTES, rank_of, socket_of

_RELEASED_S = 5.0
_LEAVING_S, _EVERY_S = 2.0, 0.05  # to notice that a user has left: the next one may come at once
_MAX_BY = 200  # characters


def handlers(folder: str) -> "Mapping[str, Handler]":
    """Return the handlers of these questions; ranks listen in ``folder``."""
    bridge = _Bridge(folder)
    return {"debug": bridge.debug, "release": bridge.release}


class _Bridge:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._users: Dict[int, Tuple[str, float]] = {}  # by rank: who is attached, and since when

    def debug(self, question: Question) -> "Iterator[dict[str, Any]]":
        """Connect the user to a rank, until either end leaves."""
        rank, by = int(question["rank"]), str(question.get("by", ""))[:_MAX_BY]
        me = by, time.time()
        until = time.monotonic() + _LEAVING_S
        user = self._users.setdefault(rank, me)
        while user is not me and time.monotonic() < until:
            time.sleep(_EVERY_S)
            user = self._users.setdefault(rank, me)
        if user is not me:
            who, since = user
            at = time.strftime("%H:%M", time.localtime(since))
            yield {"trouble": "%s has been debugging rank %d since %s" % (who or "somebody", rank, at)}
            return
        try:
            with closing(socket.socket(socket.AF_UNIX)) as peer:
                try:
                    within(self._folder, socket_of(rank), peer.connect)
                except OSError:
                    yield {"trouble": "rank %d isn't stopped in the debugger" % rank}
                    return
                peer.sendall(json.dumps({"by": by}).encode() + b"\n")
                yield from _passed_on(question, peer)
        finally:
            del self._users[rank]

    def release(self, question: Question) -> "Iterator[dict[str, Any]]":
        """Release all ranks that are held."""
        released = []
        for name in os.listdir(self._folder):
            rank = rank_of(name)
            if rank is None:
                continue
            with closing(socket.socket(socket.AF_UNIX)) as peer, suppress(OSError, ValueError):
                peer.settimeout(_RELEASED_S)
                within(self._folder, name, peer.connect)
                peer.sendall(b'{"release": true}\n')
                if json.loads(peer.recv(1 << 12).decode()).get("released"):
                    released.append(rank)
        yield {"released": sorted(released)}


def _passed_on(question: Question, peer: socket.socket) -> "Iterator[dict[str, Any]]":
    came = b""
    while True:
        message = question.hear(0)
        while message is not None:
            if isinstance(message, dict):
                peer.sendall(json.dumps(message).encode() + b"\n", socket.MSG_NOSIGNAL)
            message = question.hear(0)
        ready, _, _ = select.select([question.fileno(), peer.fileno()], [], [])
        if peer.fileno() in ready:
            try:
                data = peer.recv(1 << 16)
            except OSError:
                data = b""
            *lines, came = (came + data).split(b"\n")
            for line in lines:
                yield json.loads(line.decode())
            if not data or len(came) > LINE_BYTES:
                return
