"""The extension as Jupyter Server sees it: its routes, and what an administrator can set.

Notices that jobs have changed, as Jupyter events from the server's own ``/api/events/subscribe``.

Readers of that stream may not be allowed to see jobs, so an event carries nothing about them: its
listeners request what is new.

Looking after this user's jobs while the server runs, with every notebook closed.

In a thread of its own: to import a backend takes a second, and which ones this user has used shows only in
time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.contents.filemanager import FileContentsManager
from traitlets import Bool, Float, Int

from nbtorchjob.backends import ROWS, resending, tended
from nbtorchjob.backends.base import Tending
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.handlers import Lanes, installed
from nbtorchjob.frontends.server.routes import table
from nbtorchjob.frontends.server.routes.table import ROUTES
from nbtorchjob.frontends.server.watch import Changes, Watch
from nbtorchjob.spec.jobspec import PLACES

SCHEMA_ID = "https://events.nbtorchjob.dev/jobs/v1"
SCHEMA = Path(__file__).with_name("events.yaml")


_FIND_S = 10.0  # between two looks whether this user has sent jobs somewhere
_log = logging.getLogger(__name__)


class Tenders:
    """What looks after jobs, one for each backend that this user has used."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbtorchjob-tending", daemon=True)

    def begin(self) -> None:
        """Begin as soon as there may be a job."""
        self._thread.start()

    def stop(self) -> None:
        """End it; may take seconds."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        begun: dict[str, Tending | None] = {}
        pools: Any = None
        while not self._stopping.is_set():
            for name in [
                name for name, row in ROWS.items() if row.tends and row.used() and name not in begun
            ]:
                try:
                    begun[name] = installed(lambda: tended().tend("Jupyter server"))
                except NBTorchJobError as exc:
                    begun[name] = None
                    _log.warning("jobs (%s) are not tended: %s", name, exc)
            if pools is None and any(resending.unfinished()):
                from nbtorchjob.pools import Sender  # late: most users have none

                pools = Sender()
            if pools is not None:
                installed(pools.look)
            self._stopping.wait(_FIND_S)
        for tending in begun.values():
            if tending is not None:
                tending.stop()


class TorchJobApp(ExtensionApp):
    """Torch jobs over HTTP, for the buttons of a job's card."""

    name = "nbtorchjob"

    # Proxies give up after 60 s without an answer (nginx's proxy_read_timeout).
    patience_s = Float(55.0, help="seconds a request waits for a backend").tag(config=True)
    at_once = Int(4, help="concurrent requests to one cluster, or to this machine").tag(config=True)

    here_s = Float(1.0, help="seconds between polls of this machine's jobs").tag(config=True)
    clusters_s = Float(10.0, help="seconds between polls of a namespace's jobs").tag(config=True)

    tend = Bool(
        default_value=True,
        help="retry and clean up the user's cluster jobs while the server runs",
    ).tag(config=True)

    lanes: Lanes
    roots: Sequence[str]
    watch: Watch
    tenders: Tenders | None = None
    document: table.Document

    def initialize_settings(self) -> None:
        """Open the lanes in which requests wait, and begin to watch jobs once somebody asks."""
        server = cast("Any", self.serverapp)
        server.event_logger.register_event_schema(SCHEMA)
        self.lanes = Lanes(self.patience_s, self.at_once)
        # The served folder, by each of its names; nothing where notebooks aren't files
        if not isinstance(server.contents_manager, FileContentsManager):
            self.roots = ()
        else:
            root = os.path.abspath(server.contents_manager.root_dir)
            self.roots = tuple(dict.fromkeys((root, os.path.realpath(root))))
        every = {name: self.clusters_s if PLACES[name].remote else self.here_s for name in ROWS}
        self.watch = Watch(self.lanes, every, self._tell, self.roots)
        self.document = table.document(ROUTES, server.base_url)
        if self.tend:
            self.tenders = Tenders()
            self.tenders.begin()

    async def stop_extension(self) -> None:
        """Stop watching, and looking after jobs."""
        await self.watch.stop()
        if self.tenders is not None:
            await asyncio.to_thread(self.tenders.stop)

    def _tell(self, _: Changes) -> None:
        cast("Any", self.serverapp).event_logger.emit(schema_id=SCHEMA_ID, data={})

    def initialize_handlers(self) -> None:
        """Register the routes."""
        self.handlers.extend(route.rule for route in ROUTES)
