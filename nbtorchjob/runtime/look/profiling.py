"""A node has one of its ranks profiled, and sends the result to the client.

The answer to ``{"question": "profile", "rank": 0, "seconds": 3.0, "memory": false}`` is the rank's report
(``profiler.py``), in pieces, and then its trace or its snapshot: each piece is ``{"told": …}`` or
``{"trace": …}``, gzip in base64. Or it is ``{"trouble": …}``. The rank writes files, and this process
compresses them, which doesn't delay the rank.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import zlib
from contextlib import suppress
from typing import Any, Dict, Iterator

from nbtorchjob.runtime.look.inquiry import Inquiry
from nbtorchjob.runtime.look.profiler import AWAY, LONGEST_S, TOLD, TRACE, TURN_S, profile_path

ENDING_S = 60.0  # for a trace to be ended and written
_PIECE = 1 << 19  # bytes, which fit into a record
_MOST = 20 << 20  # bytes of a compressed profile: less than an answer may have
MOST_WRITTEN = 1 << 29
_TOO_LONG = "its trace is too long: ask for fewer seconds"
_EVERY_S = 0.02


class Profiling:
    """Profiles ranks that ``inquiry`` reaches, one at a time; they write to ``folder``."""

    def __init__(self, folder: str, inquiry: Inquiry) -> None:
        self._folder = folder
        self._inquiry = inquiry
        self._busy = threading.Lock()

    def answer(self, request: Dict[str, Any]) -> "Iterator[dict[str, Any]]":
        """Yield the records of a profile."""
        rank, seconds = int(request["rank"]), float(request["seconds"])
        if not 0 < seconds <= LONGEST_S:
            yield {"trouble": "a profile takes up to %d s" % LONGEST_S}
        elif not self._busy.acquire(blocking=False):
            yield {"trouble": "a rank of its node is being profiled already"}
        else:
            try:
                self._remove(rank)  # left by an earlier profile that was given up
                question = "memory" if request.get("memory") else "profile"
                trouble = self._inquiry.profile(rank, question, seconds) or self._waited(rank, seconds)
                yield from [{"trouble": trouble}] if trouble else self._records(rank)
            finally:
                self._remove(rank)
                self._busy.release()

    def _waited(self, rank: int, seconds: float) -> str:
        """Wait for the rank's report; return why there is none, else ""."""
        until = time.monotonic() + seconds + 2 * TURN_S + ENDING_S
        record, trace = (profile_path(self._folder, name, rank) for name in (TOLD, TRACE))
        while not os.path.exists(record):
            if not self._inquiry.is_there(rank):
                return "it ended meanwhile"
            if time.monotonic() > until:
                return AWAY + " since the profile began"
            time.sleep(_EVERY_S)
        with suppress(FileNotFoundError):  # no trace, if the profile was refused
            if max(os.path.getsize(record), os.path.getsize(trace)) > MOST_WRITTEN:
                return _TOO_LONG
        with open(record) as file:
            return str(json.load(file).get("trouble", ""))

    def _records(self, rank: int) -> "Iterator[dict[str, Any]]":
        room = _MOST
        for name in (TOLD, TRACE):
            for piece in _pieces(profile_path(self._folder, name, rank)):
                room -= len(piece)
                if room < 0:
                    yield {"trouble": _TOO_LONG}
                    return
                yield {name: base64.b64encode(piece).decode()}

    def _remove(self, rank: int) -> None:
        for name in (TOLD, TRACE):
            with suppress(OSError):
                os.unlink(profile_path(self._folder, name, rank))


def _pieces(path: str) -> Iterator[bytes]:
    squeeze = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    piece = b""
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(_PIECE), b""):
            piece += squeeze.compress(part)
            if len(piece) >= _PIECE:
                yield piece
                piece = b""
    yield piece + squeeze.flush()
