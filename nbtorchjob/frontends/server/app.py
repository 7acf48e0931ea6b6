"""The extension as Jupyter Server sees it: its routes, and what an administrator can set."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, cast

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.contents.filemanager import FileContentsManager
from traitlets import Bool, Float, Int

from nbtorchjob.backends import ROWS
from nbtorchjob.frontends.server import events
from nbtorchjob.frontends.server.limiter import Lanes
from nbtorchjob.frontends.server.routes import openapi
from nbtorchjob.frontends.server.routes.table import ROUTES
from nbtorchjob.frontends.server.tending import Tenders
from nbtorchjob.frontends.server.updates.changes import Changes
from nbtorchjob.frontends.server.updates.watch import Watch


class TorchJobApp(ExtensionApp):
    """Torch jobs over HTTP, for the buttons of a job's card."""

    name = "nbtorchjob"

    # Proxies give up after 60 s without an answer (nginx's proxy_read_timeout).
    patience_s = Float(55.0, help="seconds a request waits for a backend").tag(config=True)
    at_once = Int(4, help="requests that ask one cluster, or this machine, at a time").tag(config=True)

    here_s = Float(1.0, help="seconds between two looks at this machine's jobs").tag(config=True)
    clusters_s = Float(10.0, help="seconds between two looks at a namespace's jobs").tag(config=True)

    tend = Bool(
        default_value=True,
        help="look after the user's jobs on clusters while the server runs, as whoever follows them does",
    ).tag(config=True)

    lanes: Lanes
    roots: Sequence[str]
    watch: Watch
    tenders: Tenders | None = None
    document: openapi.Document

    def initialize_settings(self) -> None:
        """Open the lanes in which requests wait, and begin to watch jobs once somebody asks."""
        server = cast("Any", self.serverapp)
        server.event_logger.register_event_schema(events.SCHEMA)
        self.lanes = Lanes(self.patience_s, self.at_once)
        self.roots = _roots(server.contents_manager)
        every = {name: self.here_s if row.here else self.clusters_s for name, row in ROWS.items()}
        self.watch = Watch(self.lanes, every, self._tell, self.roots)
        self.document = openapi.document(ROUTES, server.base_url)
        if self.tend:
            self.tenders = Tenders()
            self.tenders.begin()

    async def stop_extension(self) -> None:
        """Stop watching, and looking after jobs."""
        await self.watch.stop()
        if self.tenders is not None:
            await asyncio.to_thread(self.tenders.stop)

    def _tell(self, _: Changes) -> None:
        cast("Any", self.serverapp).event_logger.emit(schema_id=events.SCHEMA_ID, data={})

    def initialize_handlers(self) -> None:
        """Register the routes."""
        self.handlers.extend(route.rule for route in ROUTES)


def _roots(contents: object) -> Sequence[str]:
    """Return the served folder, by each of its names; nothing where notebooks aren't files."""
    if not isinstance(contents, FileContentsManager):
        return ()
    root = os.path.abspath(contents.root_dir)
    return tuple(dict.fromkeys((root, os.path.realpath(root))))
