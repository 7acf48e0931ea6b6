"""What ranks have written: a list of a job's files, and one of them, as the verbs ``files`` and ``get``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbtorchjob.backends import files
from nbtorchjob.backends.base import Backend
from nbtorchjob.errors import MalformedError
from nbtorchjob.frontends.server.handlers import BYTES, Api, JobId, number
from nbtorchjob.frontends.server.routes import texts
from nbtorchjob.frontends.server.routes.logs import Streamed

MOST_LISTED = 20_000  # files in an answer
MOST_SHOWN = 8 << 20  # bytes of a file that one answer may hold in memory


class FilesHandler(Api):
    """What ranks have written below ``artifacts_dir()`` and ``checkpoint_dir()``."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return what there is at or below ``file`` now; of an ended job what came home."""
        path = self.get_argument("file", "")

        def find(at: Backend, name: str) -> dict[str, Any]:
            listing = files.listed(at, at.known(name), path)
            return {
                "files": [asdict(file) for file in listing.files[:MOST_LISTED]],
                "trouble": [f"node {node}: {why}" for node, why in listing.trouble.items()],
                "more": listing.more or len(listing.files) > MOST_LISTED,
            }

        self.finish(await self.of(JobId.parse(id), find))


class FileHandler(Streamed):
    """One of these files, as bytes that no browser opens."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the ``file``, of the first node that has it unless a ``node`` is named.

        All of it is streamed as a download. With ``limit`` so many bytes of it are returned, and
        ``X-File-Size`` is the size of all.
        """
        job, path = JobId.parse(id), self.get_argument("file", "")
        node_text, limit_text = self.get_argument("node", ""), self.get_argument("limit", "")
        node = number("node", node_text) if node_text else None
        limit = number("limit", limit_text) if limit_text else None
        if limit is not None and limit > MOST_SHOWN:
            raise MalformedError(
                f"limit: got {limit}, but it must be at most {MOST_SHOWN}; omit it for the whole file"
            )

        def find(at: Backend, name: str) -> tuple[files.Content, bytes]:
            content = files.content(at, at.known(name), path, node)
            if limit is None:
                return content, next(content.pieces, b"")
            try:
                return content, b"".join(texts.window(content.pieces, limit))
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
