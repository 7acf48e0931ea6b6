"""The scripted server, with HTTP/2 for clients that offer it: many answers on one connection."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from tests.backends.kubernetes.scripted import CUT, HANG, Asked, Reply, Server, Stream


class MultiplexedServer(Server):
    """A server of ``streams`` concurrent answers per connection; the first ``leaving`` ones end at once."""

    def __init__(self, tls: ssl.SSLContext, streams: int = 100, leaving: int = 0) -> None:
        tls.set_alpn_protocols(["h2", "http/1.1"])
        super().__init__(tls)
        self.links: list[Link] = []
        self.streams = streams
        self.leaving = leaving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            link = Link(self, reader, writer)
            self.links.append(link)
            await super()._held(link.run(), writer)
        else:
            await super()._serve(reader, writer)


class Link:
    """The server's side of one connection."""

    def __init__(
        self, server: MultiplexedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.local_settings = Settings(
            client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: server.streams}
        )
        self._room = asyncio.Event()
        self.ended = asyncio.Event()
        self.answering: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        self.h2.initiate_connection()
        if len(self._server.links) <= self._server.leaving:
            self.h2.close_connection()  # in one segment with its settings
            self.flush()
            return
        self.flush()
        try:
            while data := await self._reader.read(1 << 16):
                for event in self.h2.receive_data(data):
                    self._take(event)
                self.flush()
        finally:
            self.ended.set()
            for task in self.answering.values():
                task.cancel()

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())

    def cut(self) -> None:
        self._writer.transport.abort()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            assert event.headers is not None
            assert event.stream_id is not None
            self.answering[event.stream_id] = asyncio.ensure_future(
                self._answer(event.stream_id, dict(event.headers))  # type: ignore[arg-type]
            )
        elif isinstance(event, events.WindowUpdated):
            self._room.set()
        elif isinstance(event, events.StreamReset) and event.stream_id in self.answering:
            self.answering.pop(event.stream_id).cancel()

    async def _answer(self, number: int, headers: dict[str, str]) -> None:
        url = urlsplit(headers[":path"])
        request = Asked(headers[":method"], url.path, dict(parse_qsl(url.query)), headers, None)
        reply: Any = self._server.reply(request)
        more = getattr(reply, "headers", {})
        if isinstance(reply, Reply):
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            reply, status = Stream([body], reply.end), reply.status
        else:
            status = 200
        self.h2.send_headers(number, [(":status", str(status)), *more.items()])
        self.flush()
        for piece in reply.pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                await self._send(number, piece)
        if reply.end == HANG:
            await asyncio.Event().wait()
        if reply.end == CUT:
            self.h2.reset_stream(number)
        else:
            self.h2.end_stream(number)
        del self.answering[number]
        self.flush()

    async def _send(self, number: int, data: bytes) -> None:
        while data:
            size = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(data))
            if size:
                self.h2.send_data(number, data[:size])
                self.flush()
                data = data[size:]
            else:
                self._room.clear()
                await self._room.wait()
