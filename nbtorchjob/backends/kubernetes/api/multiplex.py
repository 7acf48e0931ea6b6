"""Many long answers over few connections: HTTP/2 where the server speaks it, as in kubectl.

aiohttp speaks only HTTP/1.1 (3.14), where each log that is followed holds a connection of its own: a
thousand pods take a thousand descriptors. Here a pump for each connection reads what arrives and sorts it by
stream; the library h2 implements the protocol itself.

A stream that isn't read holds up only itself: the server may send ``_WINDOW`` bytes ahead of its reader, and
the window of the connection has room for all of its streams.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from nbtorchjob.machine import loop

_WINDOW = (1 << 16) - 1  # bytes of one stream that wait for their reader
_STREAMS = 100  # of one connection, as Kubernetes' own limit is since 1.29
_ROOM = _WINDOW * (_STREAMS + 1)
_READ = 1 << 18
# As in client-go: a connection that is silent for _SILENT_S is pinged, and must answer within _PONG_S.
_SILENT_S, _PONG_S = 30.0, 15.0
_PING = b"follower"
# RFC 9113: a frame's head is its length, in three bytes, its type and five more.
_HEAD, _GOAWAY, _LAST = 9, 7, (1 << 31) - 1


class UnspokenError(Exception):
    """The server doesn't speak HTTP/2."""


class Stream:
    """One answer: its head, and its body as it arrives."""

    def __init__(self, link: _Link, number: int) -> None:
        self.number = number
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._link = link
        self._body = bytearray()
        self._unread = 0  # bytes to give back to the server's window of this stream
        self._over = False
        self._trouble: OSError | None = None
        self._stirred = asyncio.Event()

    async def head(self, seconds: float) -> None:
        """Wait for status and headers. Raises ``OSError``."""
        while not self.status:
            await self._news(seconds)

    async def part(self, seconds: float) -> bytes:
        """Return what has come since the last part; b"" at the end.

        Raises ``OSError`` if it breaks off, ``asyncio.TimeoutError`` if nothing comes for ``seconds``.
        """
        while not self._body and not self._over:
            await self._news(seconds)
        part = bytes(self._body)
        self._body.clear()
        if self._unread > _WINDOW // 4 and not self._over:
            self._link.make_room(self.number, self._unread)
            self._unread = 0
        return part

    async def _news(self, seconds: float) -> None:
        if self._trouble is not None:
            raise self._trouble
        self._stirred.clear()
        async with loop.timeout(seconds):
            await self._stirred.wait()

    def hear_head(self, headers: Mapping[str, str]) -> None:
        """Take status and headers."""
        self.status, self.headers = int(headers[":status"]), headers
        self._stirred.set()

    def hear(self, data: bytes, size: int) -> None:
        """Take a part of the body; ``size`` counts its padding, too."""
        self._body += data
        self._unread += size
        self._stirred.set()

    def end(self, trouble: OSError | None = None) -> None:
        """End the body; ``trouble`` says why if it isn't whole."""
        self._over = trouble is None
        self._trouble = trouble
        self._stirred.set()


class _Link:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._streams: dict[int, Stream] = {}
        self._came = bytearray()  # of a frame that isn't whole yet
        self._owed = 0  # bytes to give back to the server's window of the connection
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW}
        self._h2.local_settings = Settings(client=True, initial_values=settings)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_ROOM)
        self._leaves = False  # whether the server wants no more requests here
        self._settings_event = asyncio.Event()  # the server's own settings
        self._flush()
        self._pump = asyncio.ensure_future(self._run())

    async def wait_for_settings(self, seconds: float) -> None:
        """Wait until it is known how many streams the server allows. Raises ``OSError`` if it shuts down."""
        async with loop.timeout(seconds):
            await self._settings_event.wait()
        if self._leaves:
            raise ConnectionResetError

    @property
    def ended(self) -> bool:
        """Whether nothing arrives on it any more."""
        return self._pump.done()

    @property
    def room(self) -> int:
        """How many more streams it can carry."""
        if self._leaves:
            return 0
        return min(_STREAMS, self._h2.remote_settings.max_concurrent_streams) - len(self._streams)

    def open(self, headers: list[tuple[str, str]]) -> Stream:
        """Send a request without a body; raises ``OSError`` where no more can be sent."""
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers, end_stream=True)
        except ProtocolError as exc:  # all numbers are used, or the server now wants fewer streams
            raise ConnectionResetError from exc
        self._flush()
        stream = self._streams[number] = Stream(self, number)
        return stream

    def leave(self, stream: Stream) -> None:
        """Drop a stream; close the connection if it was the last one."""
        if self._streams.pop(stream.number, None) is not None:
            with suppress(ProtocolError):
                self._h2.reset_stream(stream.number, ErrorCodes.CANCEL)
                self._flush()
        if not self._streams:
            self.close()

    def make_room(self, number: int, size: int) -> None:
        """Let the server send ``size`` more bytes of a stream."""
        if number in self._streams:
            self._h2.increment_flow_control_window(size, number)
            self._flush()

    def close(self) -> None:
        """Cut the connection."""
        self._leaves = True
        self._pump.cancel()
        self._writer.close()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._writer.is_closing():
            self._writer.write(data)

    async def _run(self) -> None:
        trouble: OSError = ConnectionResetError()
        try:
            while True:
                try:
                    async with loop.timeout(_SILENT_S):
                        data = await self._reader.read(_READ)
                except asyncio.TimeoutError:
                    self._h2.ping(_PING)
                    self._flush()
                    async with loop.timeout(_PONG_S):
                        data = await self._reader.read(_READ)
                if not data:
                    break
                for frames in self._frames(data):
                    for event in self._h2.receive_data(frames):
                        self._take(event)
                if self._owed > _ROOM // 4:
                    self._h2.increment_flow_control_window(self._owed)
                    self._owed = 0
                self._flush()
        except OSError as exc:
            trouble = exc
        except (ProtocolError, asyncio.TimeoutError):
            pass
        finally:
            self._leaves = True
            self._settings_event.set()
            for stream in self._streams.values():
                stream.end(trouble)
            self._streams.clear()
            self._writer.close()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            self._owed += event.flow_controlled_length
        if isinstance(event, events.RemoteSettingsChanged):
            self._settings_event.set()
        elif (stream := self._streams.get(getattr(event, "stream_id", None) or 0)) is None:
            pass  # of a stream that isn't read any more, or of none
        elif isinstance(event, events.ResponseReceived):
            stream.hear_head({str(name): str(value) for name, value in event.headers})
        elif isinstance(event, events.DataReceived):
            stream.hear(event.data, event.flow_controlled_length)
        elif isinstance(event, events.StreamEnded):
            del self._streams[stream.number]
            stream.end()
        elif isinstance(event, events.StreamReset):
            del self._streams[stream.number]
            stream.end(ConnectionResetError())

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Yield whole frames except GOAWAY: h2 takes anything that follows it for an error (4.4).

        A server that shuts down sends it, accepts no more streams, and goes on with those that it has.
        """
        self._came += data
        came, start, at = bytes(self._came), 0, 0
        while at + _HEAD <= len(came):
            size = int.from_bytes(came[at : at + 3], "big")
            end = at + _HEAD + size
            if end > len(came) and size <= self._h2.max_inbound_frame_size:  # else h2 says what is wrong
                break
            if came[at + 3] == _GOAWAY:
                yield came[start:at]
                start = end
                self._leaves = True
                last = int.from_bytes(came[at + _HEAD : at + _HEAD + 4], "big") & _LAST
                for number in [number for number in self._streams if number > last]:
                    self._streams.pop(number).end(ConnectionResetError())
            at = end
        yield came[start:at]
        del self._came[:at]


class Multiplexer:
    """The shared connections to one server; ``tls`` makes an SSL context for each."""

    def __init__(self, server: str, tls: Callable[[], ssl.SSLContext], name: str | None, wait: float) -> None:
        parts = urlsplit(server)
        self._authority = parts.netloc
        self._host, self._port, self._name = parts.hostname or "", parts.port or 443, name
        self._tls = tls
        self._wait = wait
        self._links: list[_Link] = []
        self._connecting: asyncio.Future[None] | None = None
        self.spoken = parts.scheme == "https"  # as far as is known

    @asynccontextmanager
    async def get(self, path: str, headers: Mapping[str, str], seconds: float) -> AsyncIterator[Stream]:
        """Send a request and yield its answer, whose head may take ``seconds``.

        Raises ``UnspokenError`` (``spoken`` is False from then on), ``OSError`` and ``asyncio.TimeoutError``.
        """
        while (link := next((link for link in self._links if link.room > 0), None)) is None:
            # All callers share one try: they wait for a server that is away once, not one after the other.
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._connect())
                self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._connecting)
        own = {":method": "GET", ":scheme": "https", ":authority": self._authority, ":path": path}
        stream = link.open([*own.items(), *((name.lower(), value) for name, value in headers.items())])
        try:
            await stream.head(seconds)
            yield stream
        finally:
            link.leave(stream)

    async def _connect(self) -> None:
        tls = self._tls()
        tls.set_alpn_protocols(["h2", "http/1.1"])
        async with loop.timeout(self._wait):
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=tls, server_hostname=self._name or self._host, limit=_READ
            )
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self.spoken = False
            writer.close()
            raise UnspokenError
        link = _Link(reader, writer)
        try:
            await link.wait_for_settings(self._wait)
            if link.room <= 0:
                self.spoken = False
                raise UnspokenError
        except BaseException:
            link.close()
            raise
        self._links = [*(link for link in self._links if not link.ended), link]

    def close(self) -> None:
        """Cut every connection."""
        if self._connecting is not None:
            self._connecting.cancel()
        for link in self._links:
            link.close()
        self._links.clear()
