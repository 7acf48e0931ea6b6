"""Ports on which a process other than the test will listen."""

import random
import socket
from contextlib import suppress

# Below the ports that Linux gives to outgoing connections (32768 to 60999), which may be taken meanwhile.
_RANGE = range(20_000, 32_768)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing uses now, and hardly anything will."""
    while True:
        port = random.choice(_RANGE)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
