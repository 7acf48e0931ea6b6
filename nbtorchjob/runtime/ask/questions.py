"""What is said where a node is asked: one connection, one question, and what answers it.

    node   {"number": …}        never the same twice: no question can be asked again by who heard it
    asker  {"question": …, …}   signed for that number, with one of its own, for which no old answer is signed
    node   {"record": …}        as many as it takes, signed for both, as all that follows; or bytes
    asker  anything             meanwhile, where the question is one that goes on
    node   {"end": ""}          or why there is no more

A message is 4 bytes of length, 32 bytes of HMAC-SHA256 and JSON, or bytes behind a zero. Its place among
those of its side is signed with it: none can be left out, doubled or moved.

A question may bring modules of the program along, as most jobs are never asked it. The question is signed
with the job's key, as the payload is. A node adds them to the modules of its payload (``start/modules.py``),
and leaves them in its own folder for ranks. A whole program has them all.
"""

from __future__ import annotations

import hmac
import json
import os
import struct
import sys
from contextlib import suppress
from itertools import chain, count
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, Union

from nbtorchjob.runtime.objects.wire import WireError, derived, sign

OWN = "own number"  # of a question: the asker's
MODULES = "modules"  # of a question: those that its answer needs (``add_modules``)
SOCKET = "node.sock"  # in the node's own folder
QUESTION_BYTES = 1 << 16
RECORD_BYTES = 1 << 20  # as of a fact
ANSWER_BYTES = 1 << 25  # all records of one answer

_HEAD = struct.Struct(">I32s")
_RAW = b"\0"


def node_key(key: bytes, run: str, node: int) -> bytes:
    """Return the key for what is said with one node: a retry has its job's key, but its own ``run``."""
    return derived(key, "asked", run, node)


def at_socket(folder: str, act: Callable[[str], None]) -> None:
    """Bind or connect to the socket in ``folder``, whose path may be longer than a socket's (107 bytes)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act("/proc/self/fd/%d/%s" % (fd, SOCKET))
    finally:
        os.close(fd)


Content = Union[Dict[str, Any], bytes]


class Messages:
    """The messages of one conversation, on either side of it: who writes first is the node."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = ""
        self._places: Optional[Tuple[Iterator[int], Iterator[int]]] = None  # of what is written, and read

    def number(self, number: str) -> None:
        """Sign all that follows for this conversation alone: with one side's number, and then both."""
        self._number += number

    def write(self, content: Content, most: int) -> bytes:
        """Return the next message; raises ``WireError`` above ``most`` bytes."""
        body = _RAW + content if isinstance(content, bytes) else json.dumps(content).encode()
        if len(body) > most:
            raise WireError("%d bytes are more than the %d that may be said at once" % (len(body), most))
        return _HEAD.pack(len(body), self._sign(body, 0)) + body

    def read(self, came: bytearray, most: int) -> Optional[Content]:
        """Take the next message off the front of what came; None where its end is yet to come.

        Raises ``WireError`` for what isn't one, or has more than ``most`` bytes.
        """
        if len(came) < _HEAD.size:
            return None
        length, mark = _HEAD.unpack_from(came)
        if length > most:
            raise WireError("%d bytes are more than the %d that may be said at once" % (length, most))
        if len(came) < _HEAD.size + length:
            return None
        body = bytes(came[_HEAD.size : _HEAD.size + length])
        del came[: _HEAD.size + length]
        if not hmac.compare_digest(mark, self._sign(body, 1)):
            raise WireError("it isn't signed with this job's key")
        if body.startswith(_RAW):
            return body[1:]
        try:
            content = json.loads(body.decode())
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise WireError("it isn't a message")
        return content

    def _sign(self, body: bytes, side: int) -> bytes:
        if self._places is None:
            # Of a node, and of who asks: both may speak at once.
            places = chain((1,), count(3)), chain((2,), count(-1, -1))
            self._places = places if side == 0 else places[::-1]
        return sign(b"%s %d " % (self._number.encode(), next(self._places[side])) + body, self._key)


_MODULES_FILE = "late-modules.json"  # in a node's folder


def add_modules(sources: Mapping[str, str]) -> None:
    """Have modules be found that aren't there yet: texts by their file's name in a payload."""
    for finder in sys.meta_path:
        add: Any = getattr(finder, "add_late", None)
        if add is not None:
            add(sources)


def leave_modules(folder: str, sources: Mapping[str, str]) -> None:
    """Leave modules for the ranks of the node with that folder."""
    path = os.path.join(folder, _MODULES_FILE)
    if sources and not os.path.exists(path):
        with open(path + ".partial", "w") as file:
            json.dump(dict(sources), file)
        os.replace(path + ".partial", path)


def take_modules(folder: str) -> None:
    """Take in what the node has left."""
    with suppress(FileNotFoundError), open(os.path.join(folder, _MODULES_FILE)) as file:
        add_modules(json.load(file))
