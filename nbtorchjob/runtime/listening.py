"""The stores that a node serves, each on one address: torch's own listen on all of the machine's (2.13)."""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

ADDRESS = "NBTORCHJOB_ADDRESS"  # the pod's own
_BACKLOG = 2048  # all nodes of a job may come at once


def serve(address: str, port: int = 0, timeout: timedelta = timedelta(minutes=5)) -> Any:
    """Open a ``TCPStore`` at ``address``, or at any of this machine's where that is ""; 0 is any free port.

    Raises ``OSError`` where it can't be had.
    """
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    port = listener.getsockname()[1]
    return TCPStore(
        address or "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )


def said() -> str:
    """Return this node's own address, where the cluster tells it; else ""."""
    return os.environ.get(ADDRESS, "")


def own_address(host: str) -> str:
    """Return the address at which others reach this node, known to them as ``host``; "" if there is none."""
    if said():
        return said()
    try:
        found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        with socket.create_server((found, 0), family=socket.AF_INET6 if ":" in found else socket.AF_INET):
            pass
    except (
        OSError
    ):  # nobody knows the name yet, or it stands for this machine without being one of its addresses
        return ""
    # Many a machine calls itself so in its own /etc/hosts, and nobody else does.
    hidden = ipaddress.ip_address(found).is_loopback and host not in (found, "localhost")
    return "" if hidden else found
