"""Runs in a node's container by whoever asks it: passes bytes on between its standard streams and the node.

``PROGRAM`` starts it. ``python job.pyz ask`` would start a second node where the payload is of a version that
doesn't know that word; this can't.
"""

from __future__ import annotations

import glob
import os
import select
import signal
import socket
import struct
import sys
import tempfile
from typing import Optional

from nbtorchjob.runtime.ask.questions import SOCKET, at_socket
from nbtorchjob.runtime.facts.injected import FOLDER

# Exit codes.
NO_NODE, NO_PAYLOAD, OLDER = 3, 4, 5
# Its arguments are where the payload is mounted, and how many seconds it may take. What is mounted may only
# put the payload together (``boot``); then that lies where files do.
PROGRAM = """
import glob, sys, tempfile
sys.path[:0] = [sys.argv[1], *glob.glob(tempfile.gettempdir() + "/nbtorchjob-*/job.pyz")]
try:
    import nbtorchjob.runtime.ask.ask as ask
except ModuleNotFoundError as exc:
    sys.exit(%d if exc.name == "nbtorchjob" else %d)
ask.main(int(sys.argv[2]))
""" % (NO_PAYLOAD, OLDER)

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 20  # that wait to be passed on in a direction
_LAST_S = 10.0  # for a node to take what is left for it
_CREDENTIALS = struct.Struct("3i")  # of a socket's other end: its process, user and group


def main(seconds: int) -> None:
    """Pass on what is said, until either end is closed, or nothing is asked for so long; end this process."""
    # Whoever asks may be gone without a word: a connection that was cut is no end of its streams.
    signal.alarm(seconds)
    node = _node()
    if node is None:
        sys.exit(NO_NODE)
    # Pass bytes on in both directions, of which neither waits for the other.
    # A node that writes reads nothing meanwhile: who waits for it to read would wait for good.
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
            del to_asker[: _written(1, to_asker)]
        if node.fileno() in free:
            del to_node[: _written(node.fileno(), to_node)]
        if node.fileno() in ready:
            data = node.recv(_CHUNK)
            if not data:
                os.set_blocking(1, True)
                while to_asker:
                    del to_asker[: os.write(1, to_asker)]
                return
            to_asker += data
        if 0 in ready:
            said = os.read(0, _CHUNK)
            if not said:
                node.settimeout(_LAST_S)
                node.sendall(to_node)
                return
            signal.alarm(seconds)
            to_node += said


def _written(fd: int, data: bytearray) -> int:
    try:
        return os.write(fd, data)
    except BlockingIOError:  # select has said that there is room, if not for so much
        return 0


def _node() -> Optional[socket.socket]:
    """Return a connection to a node of this container."""
    place = os.environ.get(FOLDER) or tempfile.gettempdir()
    for path in glob.glob(os.path.join(place, "nbtorchjob-*", SOCKET)):
        node = socket.socket(socket.AF_UNIX)
        try:
            at_socket(os.path.dirname(path), node.connect)
            credentials = node.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:  # of a node that has ended
            continue
        # A folder may be shared with other pods; their processes have no number here.
        if _CREDENTIALS.unpack(credentials)[0]:
            return node
    return None
