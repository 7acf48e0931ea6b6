"""Routes of what ranks have written: their logs, lists of a job's files, and single files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict
from http import HTTPStatus
from itertools import chain
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from nbtorchjob.backends import backend_of, downloads, files
from nbtorchjob.backends.base import Backend, Stores, able
from nbtorchjob.errors import MalformedError, NBTorchJobError
from nbtorchjob.frontends.server.handlers import BYTES, TEXT, ZIP, Api, JobId, number
from nbtorchjob.frontends.server.routes import jobs
from nbtorchjob.frontends.server.routes.streams import Message, messages
from nbtorchjob.state import JobState

_MAX_PART = 4 << 20  # bytes of a log that one answer may hold in memory
_MOST_SHOWN = 80
_KNOWN = re.compile(r"([0-9]{1,9})\.([0-9]{1,12})\.([0-9]{1,15})")
_ENDED, _BROKEN = 1000, 1011  # why a websocket is closed (RFC 6455, 7.4.1)


class StreamedApi(Api):
    """A handler whose answer is sent in pieces."""

    async def stream(self, job: JobId, pieces: Iterator[bytes], type_: str) -> None:
        """Send the pieces as fast as they are read, with one of them in memory."""
        # The first is read before anything is sent: until then the answer can still be an error.
        piece = await self.ask(job.lane, lambda: next(pieces, b""))
        self.set_header("Content-Type", type_)
        try:
            while piece:
                self.write(piece)
                await self.flush()
                piece = await self.ask(job.lane, lambda: next(pieces, b""))
        except StreamClosedError:
            return  # nobody reads any more
        except (NBTorchJobError, OSError) as exc:  # the answer has begun, and can't be an error any more
            self.break_off(exc)
            return
        self.finish(set_content_type=type_)

    def break_off(self, exc: Exception) -> None:
        """End an answer that has begun, so that it isn't taken for a complete one."""
        self.detach().close()


class LogHandler(StreamedApi):
    """A rank's log, its rounds one after the other, as it was written."""

    @web.authenticated
    @authorized
    async def get(self, id: str, rank: str) -> None:
        """Return the log from byte ``offset`` on, streamed; or ``limit`` bytes of it.

        With ``limit``, ``X-Log-End`` is the offset to continue from; if fewer came, there are no more yet.
        """
        job, rank_ = JobId.parse(id), number("rank", rank)
        offset, text = number("offset", self.get_argument("offset", "0")), self.get_argument("limit", "")
        limit = number("limit", text) if text else None
        if limit is not None and limit > _MAX_PART:
            raise MalformedError(
                f"limit: got {limit}, but it must be at most {_MAX_PART}; omit it for the whole log"
            )
        pieces = await self.of(
            job, lambda at, name: jobs.window(able(at, Stores, "logs", name).log(name, rank_, offset), limit)
        )
        if limit is None:
            await self.stream(job, pieces, TEXT)
            return
        part = await self.ask(job.lane, lambda: b"".join(pieces))
        self.set_header("X-Log-End", str(offset + len(part)))
        self.finish(part, set_content_type=TEXT)

    def break_off(self, exc: Exception) -> None:
        """Write why the log isn't whole."""
        self.finish(f"\n[the rest of the log can't be read: {exc}]\n", set_content_type=TEXT)


class ArchiveHandler(StreamedApi):
    """All ranks' logs as one zip archive: ``JOB/rank-0.log`` and so on."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the logs as they were written; with ``times``, each line with its time in front."""
        job, times = JobId.parse(id), self.get_argument("times", "") == "true"

        def find(at: Backend, name: str) -> tuple[str, Iterator[bytes]]:
            state = at.snapshot(name)
            return state.info.name, downloads.zip_logs(at, state, times=times)

        name, pieces = await self.of(job, find)
        self.set_attachment_header(f"{name}-logs.zip")
        await self.stream(job, pieces, ZIP)


class ArtifactsHandler(Api):
    """Files that ranks left below ``artifacts_dir()``."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the artifacts of an ``attempt``, by default of the newest that left any."""
        attempt = _attempt(self)

        def find(at: Backend, name: str) -> list[dict[str, Any]]:
            return [asdict(artifact) for artifact in downloads.listed(at, at.snapshot(name), attempt)]

        self.finish({"artifacts": await self.of(JobId.parse(id), find)})


class ArtifactsArchiveHandler(StreamedApi):
    """A job's artifacts as one zip archive, below the job's name."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the artifacts of an ``attempt``, by default of the newest that left any; 409 for none."""
        job, attempt = JobId.parse(id), _attempt(self)

        def find(at: Backend, name: str) -> tuple[str, Iterator[bytes]]:
            state = at.snapshot(name)
            return state.info.name, downloads.zip_artifacts(at, state, attempt)

        name, pieces = await self.of(job, find)
        self.set_attachment_header(f"{name}-artifacts.zip")
        await self.stream(job, pieces, ZIP)


def _attempt(handler: Api) -> int | None:
    text = handler.get_argument("attempt", "")
    return number("attempt", text) if text else None


class LogsSocket(WebSocketMixin, WebSocketHandler, Api):
    """A job and its logs, over a websocket.

    Text messages are JSON: ``{"job": RECORD, "failed": {"rank", "round"} or null}`` first and as it changes,
    ``{"loaded": true}`` once everything written before the request was sent and more may come,
    ``{"end": true}`` last, or ``{"message": …}`` if something went wrong on the way; ``{}`` is sent when
    nothing else was for half a minute. Binary messages are parts of logs: ``RANK.ROUND.OFFSET``, a space and
    ``BYTES:TIME,…`` (when that many bytes were written: in milliseconds since the epoch, then since the
    previous item), a newline and the bytes from that offset on. Each byte is sent once, except those already
    known according to ``since``. The client sends nothing.
    """

    _events: AsyncGenerator[Message, None]
    _sending: asyncio.Task[None] | None = None

    async def prepare(self, *, _redirect_to_login: bool = False) -> None:
        """Act as the other routes do: the mixin would pass on an argument that they don't take."""
        await Api.prepare(self)

    @ws_authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Follow the job's logs over a websocket; 426 for a plain request."""
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPError(
                HTTPStatus.UPGRADE_REQUIRED, "following logs needs a websocket; GET logs/RANK returns one log"
            )
        job, since = JobId.parse(id), _since(self.get_argument("since", ""))
        text = self.get_argument("ranks", "")
        ranks = frozenset(number("ranks", part) for part in text.split(",")) if text else None

        def show(state: JobState) -> dict[str, Any]:
            failure, failed = state.failure, None
            if failure is not None and failure.rank is not None:
                failed = {"rank": failure.rank, "round": failure.round}
            return {"job": self.record(state), "failed": failed}

        info = await self.of(job, lambda backend, name: backend.info(name))
        self._events = messages(
            info, backend_of(job.backend, job.address).follow(job.address, since=since), ranks, show
        )
        await super().get(id=id)

    def open(self, id: str) -> None:
        """Start sending."""
        super().open(id=id)
        self._sending = asyncio.ensure_future(self._send())

    def on_message(self, message: str | bytes) -> None:
        """Ignore it: the URL has requested everything."""

    def on_close(self) -> None:
        """Stop following the job."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        """Send everything, as fast as it is read."""
        try:
            async with aclosing(self._events) as events:
                async for message in events:
                    await self.write_message(message, binary=isinstance(message, bytes))
            self.close(_ENDED)
        except WebSocketClosedError:
            return  # nobody reads any more
        except (NBTorchJobError, OSError) as exc:
            await self._break_off(str(exc))
        except Exception:
            self.log.exception("the logs of %s can't be followed", self.request.path)
            await self._break_off("the logs can no longer be followed: see the Jupyter server's log")

    async def _break_off(self, message: str) -> None:
        try:
            await self.write_message({"message": message})
        except WebSocketClosedError:
            return
        self.close(_BROKEN)


def _since(text: str) -> Mapping[tuple[int, int], int]:
    """Parse which bytes are known, by rank and round; raises ``MalformedError``."""
    offsets = {}
    for part in filter(None, text.split(",")):
        match = _KNOWN.fullmatch(part)
        if match is None:
            raise MalformedError(
                f"since: got {part[:_MOST_SHOWN]!r}, but it must be RANK.ROUND.OFFSET, separated by commas"
            )
        rank, round_, offset = map(int, match.groups())
        offsets[rank, round_] = offset
    return offsets


MOST_LISTED = 20_000  # files in an answer
MOST_SHOWN = 8 << 20  # bytes of a file that one answer may hold in memory


class FilesHandler(Api):
    """Files that ranks have written below ``artifacts_dir()`` and ``checkpoint_dir()``."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the files at or below ``file`` now; for an ended job, those that came home."""
        path = self.get_argument("file", "", strip=False)

        def find(at: Backend, name: str) -> dict[str, Any]:
            listing = files.listed(at, at.brief_state(name), path)
            return {
                "files": [asdict(file) for file in listing.files[:MOST_LISTED]],
                "trouble": [f"node {node}: {why}" for node, why in listing.trouble.items()],
                "more": listing.more or len(listing.files) > MOST_LISTED,
            }

        self.finish(await self.of(JobId.parse(id), find))


class FileHandler(StreamedApi):
    """A file that ranks have written, as bytes that no browser opens."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the ``file``, from the first node that has it unless a ``node`` is named.

        The whole file is streamed as a download. With ``limit``, that many bytes of it are returned, and
        ``X-File-Size`` is the size of the whole file.
        """
        job, path = JobId.parse(id), self.get_argument("file", "", strip=False)
        node_text, limit_text = self.get_argument("node", ""), self.get_argument("limit", "")
        node = number("node", node_text) if node_text else None
        limit = number("limit", limit_text) if limit_text else None
        if limit is not None and limit > MOST_SHOWN:
            raise MalformedError(
                f"limit: got {limit}, but it must be at most {MOST_SHOWN}; omit it for the whole file"
            )

        def find(at: Backend, name: str) -> tuple[files.Content, bytes]:
            content = files.content(at, at.brief_state(name), path, node)
            if limit is None:
                return content, next(content.pieces, b"")
            try:
                return content, b"".join(jobs.window(content.pieces, limit))
            finally:
                close(content.pieces)

        content, first = await self.of(job, find)
        self.set_header("X-File-Size", str(content.file.size))
        if limit is not None:
            self.finish(first, set_content_type=BYTES)
            return
        self.set_attachment_header(content.file.path.rpartition("/")[2])
        try:
            await self.stream(job, chain((first,), content.pieces), BYTES)
        finally:
            await self.ask(job.lane, lambda: close(content.pieces))


def close(pieces: Iterator[bytes]) -> None:
    """Leave the node that the pieces come from, unless a request that gave up still reads them."""
    with suppress(ValueError):
        getattr(pieces, "close", lambda: None)()
