"""An HTTP server that answers, and breaks connections, as its test scripts it.

For rare failures of an API server. Its texts are those of real servers (recordings, or texts
taken from them).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import yaml

from nbtorchjob.backends.kubernetes.api.client import Client

SHARED = Path(__file__).resolve().parents[4] / "shared"
CLEAN, CUT, HANG = "clean", "cut", "hang"


class Asked(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Reply(NamedTuple):
    """A whole answer; ``body`` is bytes, or is sent as JSON. With ``CUT`` the connection breaks instead."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = MappingProxyType({})
    end: str = CLEAN


class Stream(NamedTuple):
    """An answer in pieces, with events to wait for in between, and its end."""

    pieces: Iterable[bytes | asyncio.Event]
    end: str = CLEAN


Answer = Reply | Stream | Callable[[Asked], Reply | Stream]


def status(code: int, message: str, reason: str = "", **details: Any) -> Reply:
    """Return a refusal by the API server: a Status object."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return Reply(code, {**body, "reason": reason, "details": details})


def event(type_: str, item: Any) -> bytes:
    """Return a line of a watch."""
    return json.dumps({"type": type_, "object": item}).encode() + b"\n"


class Server:
    """A server that answers each path with its replies in order; the last one stays."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.asked: list[Asked] = []
        self.replies: dict[str, list[Answer]] = {}
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    def on(self, path: str, *replies: Answer) -> None:
        """Set the replies for ``path``, from the next request on; a function gets the request."""
        self.replies[path] = list(replies)

    def paths(self) -> list[str]:
        """Return the requests' methods and paths, in order."""
        return [f"{request.method} {request.path}" for request in self.asked]

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        # A connection that was accepted but isn't set up when its server closes stays open (Python 3.11).
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        await _settled()  # sets up the connections just accepted, to end them like all others
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()
        await _settled()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve() -> None:
            while True:
                await self._answer(await _read(reader), writer)

        await self._held(serve(), writer)

    async def _held(self, serving: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that ends as cancelled would be reported as an error by asyncio's server.
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serving
        finally:
            writer.transport.abort()

    def reply(self, asked: Asked) -> Reply | Stream:
        """Record a request; return its reply."""
        self.asked.append(asked)
        replies = self.replies.get(asked.path) or [Reply(404, b"404 page not found\n")]
        answer = replies.pop(0) if len(replies) > 1 else replies[0]
        return answer(asked) if callable(answer) else answer

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        reply = self.reply(asked)
        if isinstance(reply, Stream):
            await _stream(reply, writer)
            return
        if reply.end == CUT:
            raise ConnectionAbortedError
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        head = {"Content-Length": str(len(body)), **reply.headers}
        writer.write(_head(reply.status, head) + body)
        await writer.drain()


async def _settled() -> None:
    """Run the loop as often as it takes to set up a connection, or to close one."""
    for _ in range(8):
        await asyncio.sleep(0)


async def _stream(reply: Stream, writer: asyncio.StreamWriter) -> None:
    writer.write(_head(200, {"Transfer-Encoding": "chunked"}))
    for piece in reply.pieces:
        if isinstance(piece, asyncio.Event):
            await piece.wait()
        else:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
    if reply.end == HANG:
        await asyncio.Event().wait()
    if reply.end == CUT:
        raise ConnectionAbortedError
    writer.write(b"0\r\n\r\n")


def _head(code: int, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {code} As told\r\n{lines}\r\n".encode()


async def _read(reader: asyncio.StreamReader) -> Asked:
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = first.split()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return Asked(method, url.path, dict(parse_qsl(url.query)), headers, json.loads(body) if body else None)


def kubeconfig(path: Path, server: str, *, name: str = "main", **user: Any) -> str:
    """Write a kubeconfig with one context, called ``name``; return its path."""
    context = {"cluster": name, "user": name, "namespace": f"{name}-ns"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "contexts": [{"name": name, "context": context}],
        "users": [{"name": name, "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def scripted(test: Any) -> Any:
    """Run the coroutine function ``test`` with a ``server``, a ``client`` for it, and fixtures as usual."""
    parameters = list(inspect.signature(test).parameters.values())
    fixtures = [parameter for parameter in parameters if parameter.name not in ("server", "client")]
    own = [name for name in ("monkeypatch", "tmp_path") if name not in {fixture.name for fixture in fixtures}]
    extra = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in own]

    async def work(arguments: dict[str, Any], kept: set[str]) -> None:
        async with Server() as server:
            path = kubeconfig(arguments["tmp_path"] / "kubeconfig", server.url, token="first")
            arguments["monkeypatch"].setenv("KUBECONFIG", path)
            client = Client(pause=0.001)
            try:
                passed = {name: value for name, value in arguments.items() if name in kept}
                await asyncio.wait_for(test(server=server, client=client, **passed), 20)
            finally:
                await client.close()

    @functools.wraps(test)
    def wrapper(**arguments: Any) -> None:
        asyncio.run(work(arguments, {fixture.name for fixture in fixtures}))

    keyword = [fixture.replace(kind=inspect.Parameter.KEYWORD_ONLY) for fixture in fixtures]
    wrapper.__signature__ = inspect.Signature([*keyword, *extra])  # type: ignore[attr-defined]
    return wrapper
