"""The extension as Jupyter Server sees it: its table of routes, and what an administrator can set.

The app registers the routes, and the OpenAPI 3.1 document is made from the same table.

Notices that jobs have changed are Jupyter events from the server's own ``/api/events/subscribe``. Readers of
that stream may not be allowed to see jobs, so an event carries nothing about them: its listeners request what
is new.

This user's jobs are tended while the server runs, even with every notebook closed, in a thread of its own:
importing a backend takes a second, and which ones this user uses shows only over time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.contents.filemanager import FileContentsManager
from tornado import web
from traitlets import Bool, Float, Int

from nbtorchjob.backends import ROWS, resending, tended
from nbtorchjob.backends.base import Tending
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.handlers import BYTES, TEXT, ZIP, Api, Lanes, installed
from nbtorchjob.frontends.server.routes import PARAMETERS, SHAPES, jobs, logs, ref, settings
from nbtorchjob.frontends.server.watch import Changes, Watch
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.jobspec import PLACES

Document: TypeAlias = dict[str, Any]

_BASE = "/nbtorchjob/api/"

# The errors of every route, of one that reads parameters, and of one that asks a backend.
_FAULTS = (HTTPStatus.FORBIDDEN,)
CHECKED = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.GATEWAY_TIMEOUT)
ASKED = (*CHECKED, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.BAD_GATEWAY)
OF_A_JOB = (*ASKED, HTTPStatus.NOT_FOUND)
OF_A_SOCKET = (*OF_A_JOB, HTTPStatus.UPGRADE_REQUIRED)

_MEANINGS: Mapping[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "A malformed id, number, path or profile name.",
    HTTPStatus.FORBIDDEN: "No token or session, no XSRF mark, or not allowed to this user.",
    HTTPStatus.NOT_FOUND: "There is no such job, or another one has its id now.",
    HTTPStatus.CONFLICT: "It can't be done to this job, or a file of profiles is invalid.",
    HTTPStatus.UPGRADE_REQUIRED: "It is served over a websocket only.",
    HTTPStatus.NOT_IMPLEMENTED: "The server's environment lacks a package.",
    HTTPStatus.BAD_GATEWAY: "The cluster refuses.",
    HTTPStatus.GATEWAY_TIMEOUT: "There was no answer in time.",
}

_ABOUT = """\
Torch jobs of this machine and of the clusters that the server's user can see: what a page can do with them
while a kernel is busy, or gone. Nothing here unpickles what a job holds.

An id is percent-encoded, including its slashes. Once a job was deleted, another one may have its name, and so
its id: a request with `created` is for the job that was created then, and for no other. A POST has no body; a
PUT has JSON. Changes are announced as events of Jupyter Server (`/api/events/subscribe`), schema
`https://events.nbtorchjob.dev/jobs/v1`, which carry nothing about the jobs: `GET jobs?known=MARK` returns
what is new.
"""


class Answer(FrozenDataclass):
    """The answer to a successful request: JSON of a shape, something of a media type, or nothing."""

    status: HTTPStatus = HTTPStatus.OK
    shape: str = ""
    media: str = ""

    def describe(self) -> Document:
        """Return the answer as an OpenAPI Response Object."""
        response: Document = {"description": self.status.phrase}
        if self.shape:
            response["content"] = {"application/json": {"schema": ref(self.shape)}}
        elif self.media:
            response["content"] = {self.media: {"schema": {"type": "string"} if self.media == TEXT else {}}}
        return response


PLAIN = Answer(media=TEXT)
ZIPPED = Answer(media=ZIP)
RAW = Answer(media=BYTES)
DONE = Answer(HTTPStatus.NO_CONTENT)
SOCKET = Answer(HTTPStatus.SWITCHING_PROTOCOLS)


def shaped(shape: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return an answer that is JSON of that shape."""
    return Answer(status, shape)


class Route(FrozenDataclass):
    """A path below the server's base URL, its handler, and the answer to each method."""

    path: str
    handler: type[web.RequestHandler]
    answers: Mapping[str, Answer]
    faults: tuple[HTTPStatus, ...] = ()
    query: tuple[str, ...] = ()
    takes: str = ""  # the shape of a request's body

    @property
    def rule(self) -> tuple[str, type[web.RequestHandler]]:
        """The rule that Jupyter Server registers."""
        return _BASE + re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(self.path)), self.handler

    def describe(self) -> Document:
        """Return the route as an OpenAPI Path Item Object."""
        parameters = [*self._parameters("path", re.findall(r"{(\w+)}", self.path))]
        created = ("created",) if self.path.startswith(_JOB) else ()
        parameters += self._parameters("query", (*created, *self.query))
        item: Document = {"parameters": parameters} if parameters else {}
        return {**item, **{method.lower(): self._operation(method) for method in self.answers}}

    def _parameters(self, part: str, names: Iterable[str]) -> Iterator[Document]:
        for name in names:
            yield {"name": name, "in": part, "required": part == "path", **PARAMETERS[name]}

    def _operation(self, method: str) -> Document:
        title, _, more = _words(self.handler).partition("\n\n")
        words = _words(getattr(self.handler, method.lower()))
        answer = self.answers[method]
        faults = [str(status.value) for status in sorted((*_FAULTS, *self.faults))]
        body = (
            {"requestBody": {"required": True, "content": {"application/json": {"schema": ref(self.takes)}}}}
            if self.takes
            else {}
        )
        return {
            **body,
            "operationId": method.lower() + self.handler.__name__.removesuffix("Handler"),
            "summary": title,
            "description": f"{more}\n\n{words}".strip(),
            "responses": {
                str(answer.status.value): answer.describe(),
                **{status: {"$ref": f"#/components/responses/{status}"} for status in faults},
            },
        }


def _words(subject: object) -> str:
    """Return a docstring as Markdown."""
    return (inspect.getdoc(subject) or "").replace("``", "`")


def document(routes: Iterable[Route], base_url: str) -> Document:
    """Return the OpenAPI document of these routes on the server with that base URL."""
    error = {"application/json": {"schema": ref("Error")}}
    errors = {
        str(status.value): {"description": text, "content": error} for status, text in _MEANINGS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nbtorchjob",
            "version": version("nbtorchjob"),
            "description": _ABOUT,
        },
        "servers": [{"url": base_url.rstrip("/") + _BASE.rstrip("/")}],
        "security": [{"token": []}, {"session": [], "xsrf": []}],
        "paths": {f"/{route.path}": route.describe() for route in routes},
        "components": {"schemas": dict(SHAPES), "responses": errors, "securitySchemes": _SECURITY},
    }


_SECURITY: Document = {
    "token": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "`token TOKEN`, with the Jupyter server's token or the hub's.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "username",
        "description": "A browser's session with the Jupyter server, which chooses the cookie's name.",
    },
    "xsrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-XSRFToken",
        "description": "The value of the cookie `_xsrf`; required of a session that POSTs or DELETEs.",
    },
}


class OpenApiHandler(Api):
    """This document."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the OpenAPI document of all routes."""
        self.finish(cast("Any", self.extensionapp).document)


_JOB = "jobs/{id}"

# If two match a path, the first one counts.
ROUTES = (
    Route("jobs", jobs.JobsHandler, {"GET": shaped("Jobs")}, (HTTPStatus.BAD_REQUEST,), ("known",)),
    Route(_JOB, jobs.JobHandler, {"GET": shaped("Job"), "DELETE": DONE}, OF_A_JOB),
    Route(f"{_JOB}/card", jobs.CardHandler, {"GET": PLAIN}, OF_A_JOB),
    Route(f"{_JOB}/describe", jobs.DescriptionHandler, {"GET": PLAIN}, OF_A_JOB),
    Route(f"{_JOB}/page", jobs.PageHandler, {"GET": shaped("Page")}, OF_A_JOB),
    Route(f"{_JOB}/manifests", jobs.ManifestsHandler, {"GET": PLAIN}, OF_A_JOB),
    Route(f"{_JOB}/logs", logs.LogsSocket, {"GET": SOCKET}, OF_A_SOCKET, ("since", "ranks")),
    Route(f"{_JOB}/logs/{{rank}}", logs.LogHandler, {"GET": PLAIN}, OF_A_JOB, ("offset", "limit")),
    Route(f"{_JOB}/logs.zip", logs.ArchiveHandler, {"GET": ZIPPED}, OF_A_JOB, ("times",)),
    Route(f"{_JOB}/artifacts", logs.ArtifactsHandler, {"GET": shaped("Artifacts")}, OF_A_JOB, ("attempt",)),
    Route(f"{_JOB}/artifacts.zip", logs.ArtifactsArchiveHandler, {"GET": ZIPPED}, OF_A_JOB, ("attempt",)),
    Route(
        f"{_JOB}/values", jobs.ValuesHandler, {"GET": shaped("Values"), "POST": PLAIN}, OF_A_JOB, ("value",)
    ),
    Route(f"{_JOB}/note", jobs.NoteHandler, {"PUT": DONE}, OF_A_JOB, takes="Note"),
    Route(f"{_JOB}/files", logs.FilesHandler, {"GET": shaped("Files")}, OF_A_JOB, ("file",)),
    Route(f"{_JOB}/file", logs.FileHandler, {"GET": RAW}, OF_A_JOB, ("file", "node", "limit")),
    Route(f"{_JOB}/retry", jobs.RetryHandler, {"POST": shaped("Job", HTTPStatus.CREATED)}, OF_A_JOB),
    Route(f"{_JOB}/continue", jobs.ContinueHandler, {"POST": shaped("Job", HTTPStatus.CREATED)}, OF_A_JOB),
    Route(f"{_JOB}/{{verb}}", jobs.VerbHandler, {"POST": DONE}, OF_A_JOB),
    Route("compare", jobs.CompareHandler, {"GET": shaped("Page")}, OF_A_JOB, ("job",)),
    Route("options", settings.OptionsHandler, {"GET": shaped("Document")}),
    Route("profiles", settings.ProfilesHandler, {"GET": shaped("Profiles")}, CHECKED, ("path",)),
    Route("doctor", settings.DoctorHandler, {"POST": shaped("Findings")}, ASKED, ("profile", "path")),
    Route("openapi.json", OpenApiHandler, {"GET": shaped("Document")}),
)


SCHEMA_ID = "https://events.nbtorchjob.dev/jobs/v1"
SCHEMA = Path(__file__).with_name("events.yaml")


_FIND_S = 10.0  # between two checks for backends that this user has sent jobs to
_log = logging.getLogger(__name__)


class Tenders:
    """The tenders of this user's jobs, one for each backend that the user has used."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbtorchjob-tending", daemon=True)

    def begin(self) -> None:
        """Begin to tend as soon as there may be a job."""
        self._thread.start()

    def stop(self) -> None:
        """Stop tending; may take seconds."""
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
    document: Document

    def initialize_settings(self) -> None:
        """Create the lanes and the watch, which begins once a page asks; begin to tend jobs if enabled."""
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

        def tell(_: Changes) -> None:
            server.event_logger.emit(schema_id=SCHEMA_ID, data={})

        self.watch = Watch(self.lanes, every, tell, self.roots)
        self.document = document(ROUTES, server.base_url)
        if self.tend:
            self.tenders = Tenders()
            self.tenders.begin()

    async def stop_extension(self) -> None:
        """Stop watching and tending jobs."""
        await self.watch.stop()
        if self.tenders is not None:
            await asyncio.to_thread(self.tenders.stop)

    def initialize_handlers(self) -> None:
        """Register the routes."""
        self.handlers.extend(route.rule for route in ROUTES)
