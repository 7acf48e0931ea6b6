"""The stores that a node serves, each on one address: torch's own listen on all of the machine's."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

from nbtorchjob.runtime import torch_versions

ADDRESS = "NBTORCHJOB_ADDRESS"  # the pod's own
ITSELF = "this machine can't connect to itself"
_FILES = 16  # that a store takes, and some to spare
_REACH_S = 5.0  # for a connection from this machine to itself
_BACKLOG = 2048  # all nodes of a job may come at once


def serve(address: str, port: int = 0, timeout: timedelta = timedelta(minutes=5)) -> Any:
    """Open a ``TCPStore`` at ``address``, or at any of this machine's where that is ""; 0 is any free port.

    Raises ``OSError`` where it can't be had.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    return store(listener, address or "127.0.0.1", timeout=timeout)


def store(listener: socket.socket, host: str, **options: Any) -> Any:
    """Open a ``TCPStore`` that ``listener`` listens for; this process reaches it at ``host``.

    Raises ``OSError`` where it can't be had.
    """
    from torch.distributed import TCPStore

    check(listener, host)
    port, options = listener.getsockname()[1], {**torch_versions.listening_options(), **options}
    fd = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd, **options)


def check(listener: socket.socket, address: str) -> None:
    """Make sure that a ``TCPStore`` can serve at ``address``, and be reached there by this process.

    Raises ``OSError`` where it can't, as where the loopback interface is down or no more files may be open.
    torch itself then tries again for minutes, without a word, or ends the process.
    """
    files = []
    try:
        for _ in range(_FILES):
            files.append(os.dup(listener.fileno()))
    finally:
        for file in files:
            os.close(file)
    port = listener.getsockname()[1]
    try:
        socket.create_connection((address, port), timeout=_REACH_S).close()
    except OSError as exc:
        text = "%s: %s at %s:%d" % (exc.strerror or exc, ITSELF, address, port)
        raise OSError(exc.errno or errno.ETIMEDOUT, text) from None


def said() -> str:
    """Return this node's own address, where the cluster tells it; else ""."""
    return os.environ.get(ADDRESS, "")


def own_address(host: str) -> str:
    """Return the address at which others reach this node, known to them as ``host``; "" if there is none."""
    if said():
        return said()
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
            pass
    except (
        OSError
    ):  # nobody knows the name yet, or it stands for this machine without being one of its addresses
        return ""
    # Many a machine calls itself so in its own /etc/hosts, and nobody else does.
    hidden = ipaddress.ip_address(address).is_loopback and host not in (address, "localhost")
    return "" if hidden else address
