"""A command that runs in a container: its standard streams as channels of a websocket (``pods/exec``).

Each message's first byte names the channel. The last one is a Status that says how the command ended.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtorchjob.errors import UnreachableError

if TYPE_CHECKING:
    import aiohttp

# v5, which Kubernetes serves from 1.30 on, can end stdin as well; nothing here needs that.
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MESSAGE_BYTES = 1 << 20  # an API server sends 32 KiB at most (1.36)
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_STDERR_BYTES = 4096  # of it the end is kept


class End(NamedTuple):
    """How a command ended; without a ``code`` it didn't begin, or nobody says. ``said`` is the API's word."""

    code: int | None = None
    said: str = ""


class Remote:
    """A command that was begun."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool], server: str) -> None:
        self._socket = socket
        self._server = server
        self._stderr = b""
        self._end = End()

    @property
    def end(self) -> End:
        """How it ended."""
        return self._end

    @property
    def stderr(self) -> str:
        """The end of what it wrote there."""
        return self._stderr.decode("utf-8", "replace")

    async def send(self, data: bytes) -> None:
        """Write to its stdin; one that has ended reads no more."""
        try:
            await self._socket.send_bytes(bytes([_STDIN]) + data)
        except ConnectionError:
            return

    async def receive(self) -> bytes:
        """Return what it writes to stdout, b"" at its end; raises ``UnreachableError`` if that is cut."""
        import aiohttp

        types = aiohttp.WSMsgType
        while True:
            message = await self._socket.receive()
            if message.type is types.BINARY and message.data:
                data: bytes = message.data[1:]
                if message.data[0] == _STDOUT and data:
                    return data
                if message.data[0] == _STDERR:
                    self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
                elif message.data[0] == _STATUS:
                    self._end = _end(data)
            elif message.type is types.ERROR:
                raise UnreachableError(f"the cluster at {self._server} broke off: {message.data}")
            elif message.type in (types.CLOSE, types.CLOSING, types.CLOSED):
                return b""


def _end(data: bytes) -> End:
    try:
        status = json.loads(data)
        if status["status"] == "Success":
            return End(0)
        causes: list[Any] = (status.get("details") or {}).get("causes") or []
        codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
        return End(codes[0] if codes else None, str(status.get("message") or ""))
    except (ValueError, OverflowError, RecursionError, LookupError, TypeError, AttributeError):
        return End(None, "it says no end that can be read")
