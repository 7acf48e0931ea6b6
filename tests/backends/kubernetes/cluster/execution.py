"""The exec subresource of pods: a command in a container's environment, its streams over a websocket."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable

from aiohttp import WSMsgType, web

from tests.backends.kubernetes.cluster.access import Access, Attempt
from tests.backends.kubernetes.cluster.container import Container
from tests.backends.kubernetes.cluster.faults import Faults
from tests.backends.kubernetes.cluster.images import program
from tests.backends.kubernetes.cluster.logserver import named_container
from tests.backends.kubernetes.cluster.refusals import Refusal, forbidden
from tests.backends.kubernetes.cluster.resources import PODS, Object
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Store

# In the server's order of preference. The emulator doesn't serve the variants in base64.
V5, V4, V1 = "v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"
PROTOCOLS = (V5, V4, V1)
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
CHUNK = 32768

FindContainer = Callable[[str, str], "Container | None"]


class ExecEndpoint:
    """GET pods/NAME/exec. `find` returns the running container of a pod uid and a container name."""

    def __init__(self, store: Store, access: Access, faults: Faults, find: FindContainer) -> None:
        self._store, self._access, self._faults, self._find = store, access, faults, find

    async def serve(self, call: Call) -> web.StreamResponse:
        """Run the command, or refuse it."""
        more = Attempt("create", "", "pods/exec", call.namespace, call.name)
        self._access.attempts[call.user].append(more)
        if not self._access.allows(call.user, more):
            raise forbidden(PODS, call.name, "")
        if call.http.headers.get("Upgrade", "").lower() != "websocket":
            raise Refusal(400, "Upgrade request required")
        pod = self._store.get(PODS, call.namespace, call.name)
        name = named_container(call, pod)
        if not pod["spec"].get("nodeName"):
            raise Refusal(400, f"pod {call.name} does not have a host assigned")
        container = self._find(pod["metadata"]["uid"], name)
        if container is None:
            return web.Response(status=500, text=f'container not found ("{name}")')
        streams = {stream for stream in ("stdin", "stdout", "stderr") if call.flag(stream)}
        if not streams:
            return web.Response(status=400, text="you must specify at least 1 of stdin, stdout, stderr")
        offered = call.http.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(",")
        protocol = next((protocol for protocol in PROTOCOLS if protocol in offered), "")
        if not protocol and any(offered):
            return web.Response(status=403, headers={"Connection": "close"})
        socket = web.WebSocketResponse(protocols=(protocol,) if protocol else (), compress=False)
        await socket.prepare(call.http)
        words = call.http.query.getall("command", [])
        with self._faults.stream(call.http):
            status = await _Execution(socket, container, streams, protocol).run(words)
            with contextlib.suppress(ConnectionError):
                if protocol in (V5, V4):
                    await _send(socket, STATUS, json.dumps(status, separators=(",", ":")).encode())
                await socket.close(code=1000)
        return socket


class _Execution:
    """One run of a command."""

    def __init__(
        self, socket: web.WebSocketResponse, container: Container, streams: set[str], protocol: str
    ) -> None:
        self._socket, self._container = socket, container
        self._streams, self._protocol = streams, protocol

    async def run(self, words: list[str]) -> Object:
        """Run the command to its end; return the Status of its end."""
        with contextlib.suppress(ConnectionError):
            await _send(self._socket, STDOUT, b"")
        command = self._container.command
        argv = [command.localised(word) for word in words]
        try:
            if not argv:
                raise FileNotFoundError("args must not be empty")
            argv[0] = program(argv, command.environment["PATH"])
        except OSError as error:
            return self._not_begun(str(error), argv)
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=command.environment,
            cwd=command.folder,
            stdin=asyncio.subprocess.PIPE if "stdin" in self._streams else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if "stdout" in self._streams else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE if "stderr" in self._streams else asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        feed = asyncio.ensure_future(self._hear(process.stdin))
        over = asyncio.ensure_future(self._container.over.wait())
        output = asyncio.gather(self._tell(STDOUT, process.stdout), self._tell(STDERR, process.stderr))
        try:
            await asyncio.wait({asyncio.ensure_future(process.wait()), over}, return_when="FIRST_COMPLETED")
            # All processes of a container end with its first.
            with contextlib.suppress(ProcessLookupError):
                if over.done():
                    os.killpg(process.pid, signal.SIGKILL)
            code = await process.wait()
            await output
        finally:
            for task in (feed, over, output):
                task.cancel()
        return self._ended(128 - code if code < 0 else code, words)

    async def _hear(self, stdin: asyncio.StreamWriter | None) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or stdin is None:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                stdin.write(data)
            elif (channel, data) == (CLOSE, bytes([STDIN])) and self._protocol == V5:
                stdin.close()
        # A client that leaves closes stdin; the command runs on.
        if stdin is not None:
            stdin.close()

    async def _tell(self, channel: int, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (data := await stream.read(CHUNK)):
            with contextlib.suppress(ConnectionError):
                await _send(self._socket, channel, data)

    def _ended(self, code: int, words: list[str]) -> Object:
        if code == 0:
            return {"metadata": {}, "status": "Success"}
        how = f"command terminated with exit code {code}"
        if self._protocol == V4:
            how = f"error executing command [{' '.join(words)}], exit code {code}"
        return {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: {how}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }

    def _not_begun(self, why: str, argv: list[str]) -> Object:
        doing = "unable to start container process: " if argv else ""
        text = (
            "error executing command in container: failed to exec in container: failed to start exec "
            f'"{self._container.id}": OCI runtime exec failed: exec failed: {doing}{why}'
        )
        if self._protocol == V5:
            text = f"Internal error occurred: {text}"
        return {
            "metadata": {},
            "status": "Failure",
            "message": f"Internal error occurred: {text}",
            "reason": "InternalError",
            "details": {"causes": [{"message": text}]},
            "code": 500,
        }


async def _send(socket: web.WebSocketResponse, channel: int, data: bytes) -> None:
    await socket.send_bytes(bytes([channel]) + data)
