"""What all routes share: who may ask, where the work is done, and how an error is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeVar, cast

from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin

from nbtorchjob.backends import backend_of
from nbtorchjob.backends.base import Backend
from nbtorchjob.errors import (
    ClusterError,
    JobNotFoundError,
    MalformedError,
    NBTorchJobError,
    NoAnswerError,
    NotInstalledError,
    UnreachableError,
)
from nbtorchjob.frontends.server.ids import JobId
from nbtorchjob.frontends.server.limiter import Lanes
from nbtorchjob.state import JobState
from nbtorchjob.ui.record import Record, record

T = TypeVar("T")

TEXT = "text/plain; charset=utf-8"
ZIP = "application/zip"


# The first that fits counts.
_STATUS: Mapping[type[NBTorchJobError], HTTPStatus] = {
    MalformedError: HTTPStatus.BAD_REQUEST,
    JobNotFoundError: HTTPStatus.NOT_FOUND,
    NoAnswerError: HTTPStatus.GATEWAY_TIMEOUT,
    UnreachableError: HTTPStatus.GATEWAY_TIMEOUT,
    ClusterError: HTTPStatus.BAD_GATEWAY,
    NotInstalledError: HTTPStatus.NOT_IMPLEMENTED,
    NBTorchJobError: HTTPStatus.CONFLICT,
}


def installed(work: Callable[[], T]) -> T:
    """Do the work; raises ``NotInstalledError`` where a package that it needs is missing."""
    try:
        return work()
    except NotInstalledError as exc:
        raise NotInstalledError(f"where Jupyter Server runs, {exc}") from exc


class Api(ExtensionHandlerMixin, APIHandler):
    """What all routes share."""

    auth_resource = "nbtorchjob"
    _track_activity = False  # a page that polls mustn't keep an idle server from being culled

    def set_default_headers(self) -> None:
        """Keep browsers from caching a log or an outdated state."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    async def ask(self, lane: str, work: Callable[[], T]) -> T:
        """Run what blocks beside the event loop."""
        lanes: Lanes = cast("Any", self.extensionapp).lanes
        return await lanes.run(lane, lambda: installed(work))

    async def of(self, job: JobId, work: Callable[[Backend, str], T]) -> T:
        """Ask a job's backend about it."""
        return await self.ask(job.lane, lambda: work(backend_of(job.backend, job.address), job.address))

    def record(self, state: JobState) -> Record:
        """Return a job as JSON, with its notebook's path as this server serves it."""
        return record(state, time.time(), cast("Any", self.extensionapp).roots)

    def finish_empty(self) -> None:
        """Answer that it was done."""
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer one of our own errors with the status of its kind; leave others to Jupyter Server."""
        error = kwargs.get("exc_info", (None, None))[1]
        if not isinstance(error, NBTorchJobError):
            super().write_error(status_code, **kwargs)
            return
        status = next(status for type_, status in _STATUS.items() if isinstance(error, type_))
        self.set_status(status)
        self.finish({"message": str(error), "reason": status.phrase})

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Leave an error that is an answer to the access log: our frames would add nothing."""
        if not isinstance(value, NBTorchJobError):
            super().log_exception(typ, value, tb)
