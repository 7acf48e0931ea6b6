"""The protocol for asking a node: one connection, one question, and its answer.

    node   {"number": …}        never the same twice: an eavesdropper can't replay a question
    asker  {"question": …, …}   signed for that number, with one of its own: no old answer is signed for it
    node   {"record": …}        as many as needed, signed for both, like all that follows; or bytes
    asker  anything             meanwhile, if the question goes on
    node   {"end": ""}          or why there is no more

A message is 4 bytes of length, 32 bytes of HMAC-SHA256, and JSON, or bytes after a zero. Its position among
the messages of its side is signed as well: none can be left out, repeated or moved.

A question may bring along the modules that answer it, as most jobs are never asked it. It is signed with the
job's key, as the payload is. A node adds the modules to those of its payload (``start/modules.py``), and
leaves them in its own folder for ranks. A whole program has all modules.

A node of a cluster is asked through a process in its container (``PROGRAM``, ``pass_on``).
"""

from __future__ import annotations

import glob
import hmac
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from itertools import chain, count
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, TypeVar, Union

from nbtorchjob.runtime.facts.injected import FOLDER
from nbtorchjob.runtime.objects.wire import WireError, derived, sign

OWN = "own number"  # in a question: the asker's
MODULES = "modules"  # in a question: those that its answer needs (``add_modules``)
SOCKET = "node.sock"  # in the node's own folder
QUESTION_BYTES = 1 << 16
RECORD_BYTES = 1 << 20  # as of a fact
ANSWER_BYTES = 1 << 25  # all records of one answer

_HEAD = struct.Struct(">I32s")
_RAW = b"\0"


def node_key(key: bytes, run: str, node: int) -> bytes:
    """Return the key for messages with one node: a retry has its job's key, but its own ``run``."""
    return derived(key, "asked", run, node)


_Result = TypeVar("_Result")


def within(folder: str, name: str, act: Callable[[str], _Result]) -> _Result:
    """Call ``act`` with a path to ``name`` in the folder that is short enough for a socket (108 bytes)."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return act("/proc/self/fd/%d/%s" % (fd, name))
    finally:
        os.close(fd)


Content = Union[Dict[str, Any], bytes]


class Messages:
    """The messages of one conversation, for either side of it; the side that writes first is the node."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = ""
        self._places: Optional[Tuple[Iterator[int], Iterator[int]]] = None  # of written and of read messages

    def number(self, number: str) -> None:
        """Sign all that follows for this conversation alone: with one side's number, then with both."""
        self._number += number

    def write(self, content: Content, most: int) -> bytes:
        """Return the next message; raises ``WireError`` above ``most`` bytes."""
        body = _RAW + content if isinstance(content, bytes) else json.dumps(content).encode()
        if len(body) > most:
            raise WireError("%d bytes are more than the %d that a message may have" % (len(body), most))
        return _HEAD.pack(len(body), self._sign(body, 0)) + body

    def read(self, came: bytearray, most: int) -> Optional[Content]:
        """Take the next message off the front of ``came``; None if it is still incomplete.

        Raises ``WireError`` for an invalid message, or one of more than ``most`` bytes.
        """
        if len(came) < _HEAD.size:
            return None
        length, mark = _HEAD.unpack_from(came)
        if length > most:
            raise WireError("%d bytes are more than the %d that a message may have" % (length, most))
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
            # The node's positions, and the asker's: both may write at once.
            places = chain((1,), count(3)), chain((2,), count(-1, -1))
            self._places = places if side == 0 else places[::-1]
        return sign(b"%s %d " % (self._number.encode(), next(self._places[side])) + body, self._key)


_MODULES_FILE = "late-modules.json"  # in a node's folder


def add_modules(sources: Mapping[str, str]) -> None:
    """Make missing modules importable: ``sources`` are texts by their file's name in a payload."""
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
    """Add the modules that the node has left there."""
    with suppress(FileNotFoundError), open(os.path.join(folder, _MODULES_FILE)) as file:
        add_modules(json.load(file))


# Exit codes of ``PROGRAM``.
NO_NODE, NO_PAYLOAD, OLDER = 3, 4, 5
# The asker runs this in a node's container. ``python job.pyz ask`` would start a second node if the payload
# is of a version that doesn't know that word; this can't.
# Its arguments are where the payload is mounted, and how many seconds it may idle. The mounted file may be
# ``boot``, which only assembles the payload; that is then in the temporary folder.
PROGRAM = """
import glob, sys, tempfile
sys.path[:0] = [sys.argv[1], *glob.glob(tempfile.gettempdir() + "/nbtorchjob-*/job.pyz")]
try:
    from nbtorchjob.runtime.ask.questions import pass_on
except ImportError as exc:
    sys.exit(%d if exc.name == "nbtorchjob" else %d)
pass_on(int(sys.argv[2]))
""" % (NO_PAYLOAD, OLDER)

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 20  # that wait to be passed on, in each direction
_LAST_S = 10.0  # for a node to receive the remaining bytes
_CREDENTIALS = struct.Struct("3i")  # of a socket's other end: its process, user and group


def pass_on(seconds: int) -> None:
    """Pass bytes on between the node and the standard streams of this process, which the asker has started.

    This and the process end once either end is closed, or the asker has sent nothing for ``seconds``.
    """
    # The asker may vanish silently: the streams don't end when a connection is cut.
    signal.alarm(seconds)
    node = _node()
    if node is None:
        sys.exit(NO_NODE)
    # Pass bytes on in both directions, neither of which waits for the other.
    # A node that writes reads nothing meanwhile: waiting for it to read would never end.
    for fd in (0, 1):
        os.set_blocking(fd, False)
    node.setblocking(False)
    to_node, to_asker = bytearray(), bytearray()
    while True:
        reads = [0] if len(to_node) < _MOST_BYTES else []
        reads += [node.fileno()] if len(to_asker) < _MOST_BYTES else []
        writes = [1] if to_asker else []
        writes += [node.fileno()] if to_node else []
        ready, free, _ = select.select(reads, writes, [])
        if 1 in free:
            del to_asker[: _write(1, to_asker)]
        if node.fileno() in free:
            del to_node[: _write(node.fileno(), to_node)]
        if node.fileno() in ready:
            data = node.recv(_CHUNK)
            if not data:
                os.set_blocking(1, True)
                while to_asker:
                    del to_asker[: os.write(1, to_asker)]
                return
            to_asker += data
        if 0 in ready:
            chunk = os.read(0, _CHUNK)
            if not chunk:
                node.settimeout(_LAST_S)
                node.sendall(to_node)
                return
            signal.alarm(seconds)
            to_node += chunk


def _write(fd: int, data: bytearray) -> int:
    try:
        return os.write(fd, data)
    except BlockingIOError:  # select has reported room, but not for this much
        return 0


def _node() -> Optional[socket.socket]:
    """Return a connection to a node of this container."""
    place = os.environ.get(FOLDER) or tempfile.gettempdir()
    for path in glob.glob(os.path.join(place, "nbtorchjob-*", SOCKET)):
        node = socket.socket(socket.AF_UNIX)
        try:
            within(os.path.dirname(path), SOCKET, node.connect)
            credentials = node.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:  # of a node that has ended
            continue
        # A folder may be shared with other pods, whose processes have no id here.
        if _CREDENTIALS.unpack(credentials)[0]:
            return node
    return None
