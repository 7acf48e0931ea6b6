"""Ports on which something else than the test is about to listen."""

import random
import socket
from contextlib import suppress

# Below those that Linux gives to outgoing connections (32768 to 60999): such a one may be taken meanwhile.
_RANGE = range(20_000, 32_768)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses now, and hardly anybody will."""
    while True:
        port = random.choice(_RANGE)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
