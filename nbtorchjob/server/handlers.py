"""What answers each route. Handlers name what is asked; errors become answers in one place, ``Api``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, ClassVar, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web
from tornado.iostream import StreamClosedError

from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Backend
from nbtorchjob.backends.kubernetes.refusals import Refusal, Unreachable
from nbtorchjob.errors import JobNotFoundError, NBTorchJobError
from nbtorchjob.server import texts
from nbtorchjob.server.ids import JobId, MalformedError, number
from nbtorchjob.server.lanes import Lanes, NoAnswerError
from nbtorchjob.server.record import Record, record
from nbtorchjob.spec import BACKENDS

T = TypeVar("T")

_TEXT = "text/plain; charset=utf-8"
_MAX_PART = 4 << 20  # bytes of a log that one answer may hold in memory


class NotInstalledError(NBTorchJobError):
    """A backend lacks what it stands on, here: the server may run in another environment than kernels."""


# The first that fits counts.
_STATUS: Mapping[type[NBTorchJobError], HTTPStatus] = {
    MalformedError: HTTPStatus.BAD_REQUEST,
    JobNotFoundError: HTTPStatus.NOT_FOUND,
    NoAnswerError: HTTPStatus.GATEWAY_TIMEOUT,
    Unreachable: HTTPStatus.GATEWAY_TIMEOUT,
    Refusal: HTTPStatus.BAD_GATEWAY,
    NotInstalledError: HTTPStatus.NOT_IMPLEMENTED,
    NBTorchJobError: HTTPStatus.CONFLICT,
}


class Api(ExtensionHandlerMixin, APIHandler):
    """What all routes share: who may ask, where the work is done, and how an error is told."""

    auth_resource = "nbtorchjob"
    _track_activity = False  # a page that polls mustn't keep an idle server from being culled

    def set_default_headers(self) -> None:
        """Have no browser keep a log, or show a state of before."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    async def ask(self, lane: str, work: Callable[[], T]) -> T:
        """Run what blocks beside the event loop."""
        lanes: Lanes = cast("Any", self.extensionapp).lanes
        try:
            return await lanes.run(lane, work)
        except ImportError as exc:
            raise NotInstalledError(
                f"where Jupyter Server runs {exc.name} isn't installed: "
                "pip install 'nbtorchjob[kubernetes]' there"
            ) from exc

    async def of(self, job: JobId, work: Callable[[Backend, str], T]) -> T:
        """Ask a job's backend about it."""
        return await self.ask(job.lane, lambda: work(backend(job.backend), job.address))

    def finish_empty(self) -> None:
        """Say that it was done."""
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Give one of our own errors by its kind; of others Jupyter Server's answer."""
        error = kwargs.get("exc_info", (None, None))[1]
        if not isinstance(error, NBTorchJobError):
            super().write_error(status_code, **kwargs)
            return
        status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
        self.set_status(status)
        self.finish({"message": str(error), "reason": status.phrase})

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Leave an error that is an answer to the access log: our frames say nothing more."""
        if not isinstance(value, NBTorchJobError):
            super().log_exception(typ, value, tb)


class JobsHandler(Api):
    """Every job."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Give ``{"jobs": […], "notes": […]}``: records, oldest first, and why some may be missing."""
        answers = await asyncio.gather(*map(self._jobs, BACKENDS))
        found = [job for jobs, _ in answers for job in jobs]
        notes = [note for _, notes in answers for note in notes]
        self.finish({"jobs": sorted(found, key=lambda job: job["created"]), "notes": notes})

    async def _jobs(self, place: str) -> tuple[list[Record], list[str]]:
        # A lane of its own: lists that hang take no room from what is done to one job.
        try:
            return await self.ask(f"{place} (all jobs)", lambda: _records(place)), []
        except NBTorchJobError as exc:  # the jobs of other places are no less there
            return [], [str(exc)]


def _records(place: str) -> list[Record]:
    return [record(state, time.time()) for state in backend(place).jobs()]


class JobHandler(Api):
    """One job."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Give its record."""
        job = JobId.parse(id)
        self.finish(await self.of(job, lambda place, name: record(place.snapshot(name), time.time())))

    @web.authenticated
    @authorized
    async def delete(self, id: str) -> None:
        """End it if it runs, and remove all that is kept of it; 204 once that is done."""
        await self.of(JobId.parse(id), _on_job(lambda place, name: place.delete(name)))
        self.finish_empty()


class VerbHandler(Api):
    """What is done to a job that stays."""

    VERBS: ClassVar[Mapping[str, Callable[[Backend, str], None]]] = {
        "cancel": lambda place, name: place.cancel(name),
        "suspend": lambda place, name: place.suspend(name),
        "resume": lambda place, name: place.resume(name),
    }

    @web.authenticated
    @authorized
    async def post(self, id: str, verb: str) -> None:
        """Cancel, suspend or resume it; 204 once that was asked for. Repeated, it changes nothing."""
        if verb not in self.VERBS:
            raise web.HTTPError(HTTPStatus.NOT_FOUND, f"a job can be asked to {', '.join(self.VERBS)}")
        await self.of(JobId.parse(id), _on_job(self.VERBS[verb]))
        self.finish_empty()


def _on_job(verb: Callable[[Backend, str], None]) -> Callable[[Backend, str], None]:
    """Give the verb for a job that exists: to end what isn't there changes nothing, and says nothing."""

    def act(place: Backend, name: str) -> None:
        place.info(name)
        verb(place, name)

    return act


class DescriptionHandler(Api):
    """A job in words."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Give what ``%torchjob describe`` shows, as plain text."""
        self.finish(await self.of(JobId.parse(id), texts.description), set_content_type=_TEXT)


class ManifestsHandler(Api):
    """What runs a job on a cluster."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Give the YAML of its objects but for Secrets; 409 for a job that has none."""
        self.finish(await self.of(JobId.parse(id), texts.manifests), set_content_type=_TEXT)


class LogHandler(Api):
    """A rank's log, its rounds one after the other, as it was written."""

    @web.authenticated
    @authorized
    async def get(self, id: str, rank: str) -> None:
        """Give the log from byte ``offset`` on, streamed; or ``limit`` bytes of it.

        With ``limit``, ``X-Log-End`` is the offset to go on from; where less came, there is no more as yet.
        """
        job, rank_ = JobId.parse(id), number("rank", rank)
        offset, limit = number("offset", self.get_argument("offset", "0")), self._limit()
        found = await self.of(job, lambda place, name: texts.window(place.log(name, rank_), offset, limit))
        if limit is None:
            await self._stream(job, found)
            return
        part = await self.ask(job.lane, lambda: b"".join(found))
        self.set_header("X-Log-End", str(offset + len(part)))
        self.finish(part, set_content_type=_TEXT)

    async def _stream(self, job: JobId, pieces: Iterator[bytes]) -> None:
        """Send the pieces as fast as they are taken, with one of them in memory."""
        # The first before anything is sent: until then an error can still be the answer.
        piece = await self.ask(job.lane, lambda: next(pieces, b""))
        self.set_header("Content-Type", _TEXT)
        try:
            while piece:
                self.write(piece)
                await self.flush()
                piece = await self.ask(job.lane, lambda: next(pieces, b""))
        except StreamClosedError:
            return  # nobody reads any more
        except (NBTorchJobError, OSError) as exc:  # the answer has begun, and is no error any more
            self.write(f"\n[the rest of the log can't be read: {exc}]\n")
        self.finish(set_content_type=_TEXT)

    def _limit(self) -> int | None:
        text = self.get_argument("limit", "")
        limit = number("limit", text) if text else None
        if limit is not None and limit > _MAX_PART:
            raise MalformedError(
                f"limit: got {limit}, but it must be at most {_MAX_PART}; without it all is sent"
            )
        return limit
