"""A connection to any cluster that a test can cut: an outage, as the client sees it."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


class Door:
    """A port of this machine that forwards to another address, unless the door is shut."""

    def __init__(self, there: tuple[str, int]) -> None:
        self._there = there
        self._ends: list[socket.socket] = []
        self._opened: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        """Let connections through again."""
        if self._opened is None:
            self._opened = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
            self.port = self._opened.getsockname()[1]
            threading.Thread(target=self._take, args=(self._opened,), daemon=True).start()

    def shut(self) -> None:
        """Break all connections, and let none through."""
        opened, self._opened = self._opened, None
        ends, self._ends = self._ends, []
        for connection in (opened, *ends):
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _take(self, opened: socket.socket) -> None:
        with suppress(OSError):  # the door is shut
            while True:
                near, _ = opened.accept()
                server = socket.create_connection(self._there)
                self._ends += [near, server]
                for source, target in ((near, server), (server, near)):
                    threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def behind_a_door(config: dict[str, Any]) -> Iterator[tuple[Path, Door]]:
    """Yield a kubeconfig that reaches the cluster of ``config`` through a door, and the door."""
    [cluster] = [entry["cluster"] for entry in config["clusters"]]
    url = urlsplit(cluster["server"])
    assert url.hostname is not None
    door = Door((url.hostname, url.port or 443))
    cluster["server"] = f"{url.scheme}://127.0.0.1:{door.port}"
    if url.scheme == "https":
        cluster["tls-server-name"] = url.hostname
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(yaml.safe_dump(config))
        try:
            yield path, door
        finally:
            door.shut()
