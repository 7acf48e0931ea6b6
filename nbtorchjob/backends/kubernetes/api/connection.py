"""HTTP exchanges with one cluster, with a login that lasts, and commands in its containers.

The standard streams of a command in a container are channels of a websocket (``pods/exec``): each message's
first byte names the channel. The last message is a Status that says how the command ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from nbtorchjob.backends.kubernetes.api.errors import OpenFilesError, in_plain_words
from nbtorchjob.backends.kubernetes.api.login import Login, log_in
from nbtorchjob.errors import AnswerTooLargeError, UnreachableError
from nbtorchjob.machine import processes
from nbtorchjob.text.words import size

if TYPE_CHECKING:
    import aiohttp

    from nbtorchjob.backends.kubernetes.api.multiplex import Multiplexer

# v5, which Kubernetes serves from 1.30 on, can end stdin as well; nothing here needs that.
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MESSAGE_BYTES = 1 << 20  # an API server sends 32 KiB at most (1.36)
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_STDERR_BYTES = 4096  # of the end of stderr, which is kept


class End(NamedTuple):
    """How a command ended; no ``code`` if it didn't begin, or that is unknown. ``message`` is the API's."""

    code: int | None = None
    message: str = ""


class Remote:
    """A command that was started."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool], server: str) -> None:
        self._socket = socket
        self._server = server
        self._stderr = b""
        self._end = End()

    @property
    def end(self) -> End:
        """How the command ended."""
        return self._end

    @property
    def stderr(self) -> str:
        """The end of what the command wrote to stderr."""
        return self._stderr.decode("utf-8", "replace")

    async def send(self, data: bytes) -> None:
        """Write to the command's stdin, unless it has ended."""
        try:
            await self._socket.send_bytes(bytes([_STDIN]) + data)
        except ConnectionError:
            return

    async def receive(self) -> bytes:
        """Return what it writes to stdout next, b"" at its end; raises ``UnreachableError`` if cut off."""
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
        return End(None, "its exit status can't be read")


JSON = "application/json"
# As in kubectl: a log isn't JSON.
ACCEPT = "application/json, */*"
# Enough for two more tries by TCP after a lost first one; includes the lookup of names.
CONNECT_SECONDS = 3.5
# An API server itself gives up a request that isn't a stream after that long (1.36).
WHOLE_SECONDS = 60.0
# A server holds no object of more than 1.5 MiB (etcd), and its description of all groups fits in this, too.
OBJECT_BYTES = 8 << 20
# This many answers to ``many`` requests have their own connection: C parses these faster, by a millisecond
# per 2,000 lines. With more of them, 65 logs would take more than one descriptor per ten logs.
_APART = 4
_REFUSAL_BYTES = 1 << 16
_AGREES_S = 5.0  # by which this machine's clock may differ from a cluster's


class Request(NamedTuple):
    """One HTTP request; the server may be silent for ``silence`` seconds, and take ``whole`` in all.

    One of ``many`` may share its connection: its answer stays open for as long as a job runs.
    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Any = None
    content: str = JSON
    accept: str = ACCEPT
    many: bool = False
    silence: float = 60.0
    whole: float | None = WHOLE_SECONDS


class RefusedError(Exception):
    """A websocket wasn't opened; holds the server's answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Answer:
    """A server's answer. Reading raises ``UnreachableError`` if it breaks off or is silent for too long."""

    def __init__(
        self, status: int, headers: Mapping[str, str], part: Callable[[], Awaitable[bytes]], server: str
    ) -> None:
        self.status = status
        self.headers = headers
        self._part = part
        self._server = server

    async def read(self, most: int = OBJECT_BYTES) -> bytes:
        """Return the whole body. Raises ``AnswerTooLargeError`` above ``most`` uncompressed bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > most:
                raise AnswerTooLargeError(
                    f"the cluster at {self._server} answers with more than {size(most)}, as no Kubernetes "
                    "API does: check the kubeconfig, or a proxy"
                )
        return bytes(body)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; a slow reader limits how much is read ahead."""
        while True:
            with in_plain_words(self._server):
                chunk = await self._part()
            if not chunk:
                return
            yield chunk


class ServerClock:
    """A cluster's time, to compare its records with: this machine's clock may be wrong, or be set.

    The ``Date`` of an answer has whole seconds; this machine's clock is finer, if it agrees with it.
    """

    def __init__(self) -> None:
        self._date: tuple[float, float] | None = None  # a time, and when it arrived, by the monotonic clock

    def hear(self, date: str) -> None:
        """Record an answer's ``Date``, if it is a valid one."""
        with suppress(TypeError, ValueError, OverflowError):
            self._date = parsedate_to_datetime(date).timestamp(), time.monotonic()

    def at(self, local_time: float) -> float:
        """Return a time of this machine's clock by the cluster's; 0 where the clocks agree."""
        ahead = self.now() - time.time()
        return local_time + ahead if abs(ahead) > 1.0 else 0.0

    def now(self) -> float:
        """Return the seconds since the epoch; before the first answer, by this machine's clock."""
        local_time = time.time()
        if self._date is None:
            return local_time
        servers_time = self._date[0] + time.monotonic() - self._date[1]
        return servers_time if abs(servers_time - local_time) > _AGREES_S else local_time


class Connection:
    """The pool of connections of one kubeconfig context (None: the current one), made when first needed."""

    def __init__(self, context: str | None) -> None:
        self.requests = 0
        self.answered = False
        self.clock = ServerClock()
        self.context = context  # of the first login on: the current context may become another cluster's
        self._logins: list[Login] = []  # the newest last; before it, those that are still used
        self._uses: Counter[Login] = Counter()
        self._lock = asyncio.Lock()
        self._single = 0  # answers to ``many`` requests that have their own connection
        self._multiplexers: dict[Login, Multiplexer] = {}

    async def namespace(self) -> str:
        """Return the context's namespace."""
        async with AsyncExitStack() as stack:
            return (await self._login(stack)).namespace

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        """Send ``request``; if the server rejects the credentials (401), load them again, once.

        Raises ``UnreachableError`` without an answer, ``ClusterError`` if the kubeconfig can't be used.
        """
        async with AsyncExitStack() as stack:
            login = await self._login(stack)
            answer = await self._answer(stack, login, request)
            if answer.status == HTTPStatus.UNAUTHORIZED:
                await stack.aclose()
                answer = await self._answer(stack, await self._login(stack, refused=login), request)
            yield answer

    async def _answer(self, stack: AsyncExitStack, login: Login, request: Request) -> Answer:
        if request.many and self._single >= _APART and (answer := await self._shared(stack, login, request)):
            return answer
        if request.many:
            # The other half is left for the rest of this process: it may be a user's kernel.
            if self._single >= max(_APART, processes.most_open_files() // 2):
                raise OpenFilesError

            def ended() -> None:
                self._single -= 1

            self._single += 1
            stack.callback(ended)
        import aiohttp

        headers = {"Accept": request.accept, "Content-Type": request.content}
        await login.api.update_params_for_auth(
            headers, [], ["BearerToken"], request.path, request.method, None
        )
        url = login.server + request.path + ("?" + urlencode(request.query) if request.query else "")
        timeout = aiohttp.ClientTimeout(
            total=request.whole,
            connect=CONNECT_SECONDS,
            sock_connect=CONNECT_SECONDS,
            sock_read=request.silence,
        )
        self.requests += 1
        with in_plain_words(login.server, login.api.rest_client.proxy):
            sent = await login.api.rest_client.request(
                request.method, url, headers=headers, body=request.body, _request_timeout=timeout
            )
        self.answered = True
        response: aiohttp.ClientResponse = sent.response
        self.clock.hear(response.headers.get("Date", ""))
        # Gives the connection back if the body has been read, and cuts it otherwise.
        stack.callback(response.release)
        return Answer(response.status, response.headers, response.content.readany, login.server)

    @asynccontextmanager
    async def channels(self, path: str, query: Sequence[tuple[str, str]]) -> AsyncIterator[Remote]:
        """Open a websocket to a command; raises as :meth:`exchange` does, and ``RefusedError``."""
        async with AsyncExitStack() as stack:
            login = await self._login(stack)
            try:
                websocket = await self._upgraded(stack, login, path, query)
            except RefusedError as refused:
                if refused.status != HTTPStatus.UNAUTHORIZED:
                    raise
                await stack.aclose()
                login = await self._login(stack, refused=login)
                websocket = await self._upgraded(stack, login, path, query)
            with in_plain_words(login.server):
                yield Remote(websocket, login.server)

    async def _shared(self, stack: AsyncExitStack, login: Login, request: Request) -> Answer | None:
        """Return an answer that shares its connection; None if the server or a proxy can't do that."""
        try:
            from nbtorchjob.backends.kubernetes.api import multiplex
        except ImportError:  # a tender's pod has few libraries
            return None
        if login not in self._multiplexers:
            name = login.api.configuration.tls_server_name
            self._multiplexers[login] = multiplex.Multiplexer(login.server, login.tls, name, CONNECT_SECONDS)
        multiplexer = self._multiplexers[login]
        if login.api.rest_client.proxy or not multiplexer.spoken:
            return None
        headers = {"accept": request.accept}
        await login.api.update_params_for_auth(
            headers, [], ["BearerToken"], request.path, request.method, None
        )
        # A server's address may have a path, as with Rancher.
        target = request.path + ("?" + urlencode(request.query) if request.query else "")
        path = urlsplit(login.server).path + target
        self.requests += 1
        try:
            with in_plain_words(login.server):
                stream = await stack.enter_async_context(multiplexer.get(path, headers, request.silence))
        except multiplex.UnspokenError:
            return None
        self.answered = True
        self.clock.hear(stream.headers.get("date", ""))
        return Answer(stream.status, stream.headers, partial(stream.part, request.silence), login.server)

    async def _upgraded(
        self, stack: AsyncExitStack, login: Login, path: str, query: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        import aiohttp

        headers: dict[str, str] = {}
        await login.api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        rest = login.api.rest_client

        async def refused(response: aiohttp.ClientResponse) -> None:
            if response.status != HTTPStatus.SWITCHING_PROTOCOLS:
                body = await response.content.read(_REFUSAL_BYTES)
                response.close()
                raise RefusedError(response.status, body)

        # A separate session: a connection that became a websocket can't be reused, and only a session can be
        # told to look at a refusal, whose text aiohttp throws away (3.14).
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=rest.ssl_context),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            raise_for_status=refused,
        )
        await stack.enter_async_context(session)
        self.requests += 1
        with in_plain_words(login.server, login.api.rest_client.proxy):
            websocket = await session.ws_connect(
                f"{login.server}{path}?{urlencode(query, quote_via=quote)}",
                protocols=PROTOCOLS,
                headers=headers,
                max_msg_size=MESSAGE_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                proxy=rest.proxy,
                proxy_headers=rest.proxy_headers,
                server_hostname=login.api.configuration.tls_server_name,
            )
        self.answered = True
        stack.push_async_callback(websocket.close)
        return websocket

    async def close(self) -> None:
        """Cut every connection."""
        for login in self._logins:
            await login.api.close()
        self._logins.clear()
        self._uses.clear()
        for multiplexer in self._multiplexers.values():
            multiplexer.close()
        self._multiplexers.clear()

    async def _login(self, stack: AsyncExitStack, refused: Login | None = None) -> Login:
        """Return the newest login, or a new one if that was ``refused``; it stays until the stack's end."""
        async with self._lock:
            if not self._logins or self._logins[-1] is refused:
                login = await log_in(self.context)
                self.context = login.context
                self._logins.append(login)
                await self._close_unused()
            login = self._logins[-1]
            self._uses[login] += 1

        async def leave() -> None:
            self._uses[login] -= 1
            await self._close_unused()

        stack.push_async_callback(leave)
        return login

    async def _close_unused(self) -> None:
        # An old login's streams go on: the server checks credentials only when a stream starts.
        while (
            old := next((login for login in self._logins[:-1] if not self._uses[login]), None)
        ) is not None:
            self._logins.remove(old)
            del self._uses[old]
            if (multiplexer := self._multiplexers.pop(old, None)) is not None:
                multiplexer.close()
            await old.api.close()
