"""What all routes share: who may ask, where the work is done, and how an error is reported.

A job's id in a URL is its backend and its address, as in ``local:NAME``.

Blocking work runs in threads beside the server's event loop, which serves everybody's kernels and files.

Each lane runs a limited number of requests at once, so that a cluster that hangs delays neither this machine
nor another cluster, and doesn't use up endless threads. Requests that wait for room hold no thread.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin

from nbtorchjob.backends import FORMS, ROWS, backend_of, naming
from nbtorchjob.backends.base import Backend
from nbtorchjob.errors import (
    ClusterError,
    DamagedError,
    JobNotFoundError,
    MalformedError,
    NBTorchJobError,
    NoAnswerError,
    NotInstalledError,
    UnreachableError,
)
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import loop
from nbtorchjob.state import JobState
from nbtorchjob.state.info import run_at
from nbtorchjob.ui.record import Record, below, record

_NUMBER = re.compile(r"[0-9]{1,15}")
CREATED = r"[0-9]{1,15}(\.[0-9]{1,9})?"
_MOST_SHOWN = 80


class JobId(FrozenDataclass):
    """A job by its backend and its address there (``JobInfo.address``)."""

    backend: str
    address: str

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Parse what ``JobInfo.id`` returned; raises ``MalformedError``."""
        name, _, address = text.partition(":")
        if name not in ROWS or not re.fullmatch(ROWS[name].address, address):
            raise MalformedError(
                f"{text[:_MOST_SHOWN]!r} isn't a job's id: it must be {FORMS}, percent-encoded"
            )
        return cls(name, address)

    @property
    def lane(self) -> str:
        """The lane of requests about it: this machine's, or one cluster's."""
        return lane(self.backend, "/".join(self.address.split("/")[:-2]))

    @property
    def scope(self) -> str:
        """The one of its backend's ``scopes`` in which it is listed."""
        return self.address.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.backend}:{self.address}"


def lane(backend: str, context: str | None) -> str:
    """Name the lane of this machine, or of one cluster; without a context it is the current one's."""
    return f"{backend}:{context}" if context else backend


def number(name: str, text: str) -> int:
    """Parse a whole number, 0 or more; raises ``MalformedError``."""
    if not _NUMBER.fullmatch(text):
        raise MalformedError(f"{name}: got {text[:_MOST_SHOWN]!r}, but it must be a whole number, 0 or more")
    return int(text)


def run_of(created: str) -> str:
    """Return ``JobInfo.run`` of the job created then, ``""`` for ``""``; raises ``MalformedError``."""
    if created and not re.fullmatch(CREATED, created):
        raise MalformedError(
            f"created: got {created[:_MOST_SHOWN]!r}, but it must be a job's, in seconds since the epoch"
        )
    return run_at(float(created)) if created else ""


T = TypeVar("T")

TEXT = "text/plain; charset=utf-8"
ZIP = "application/zip"
BYTES = "application/octet-stream"


# The first matching type counts.
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
    """Do the work; raises ``NotInstalledError`` if a package that it needs is missing."""
    try:
        return work()
    except NotInstalledError as exc:
        raise NotInstalledError(f"where Jupyter Server runs, {exc}") from exc


class Api(ExtensionHandlerMixin, APIHandler):
    """The base of all routes' handlers."""

    auth_resource = "nbtorchjob"
    _track_activity = False  # a page that polls mustn't keep an idle server from being culled

    def set_default_headers(self) -> None:
        """Keep browsers from caching a log or an outdated state."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    async def ask(self, lane: str, work: Callable[[], T], once: str = "") -> T:
        """Run blocking work beside the event loop; see :meth:`Lanes.run`."""
        lanes: Lanes = cast("Any", self.extensionapp).lanes
        return await lanes.run(lane, lambda: installed(work), once)

    async def of(
        self, job: JobId, work: Callable[[Backend, str], T], once: str = "", run: str | None = None
    ) -> T:
        """Do work on a job with its backend; raises ``JobNotFoundError`` if another job has the id now.

        ``run`` is which of the jobs that had the id is meant, by default the request's.
        """
        run = self.run if run is None else run

        def ask() -> T:
            at = backend_of(job.backend, job.address)
            if run:
                with suppress(DamagedError):  # a damaged job can be deleted all the same
                    info = at.info(job.address)
                    # When a lab's turn was accepted may be known only later.
                    if info.run != run and not info.of_lab:
                        raise naming.replaced(info)
            return work(at, job.address)

        return await self.ask(job.lane, ask, once)

    @property
    def run(self) -> str:
        """Which of the jobs that had the id one after the other is meant; ``""`` for the present one."""
        return run_of(self.get_argument("created", ""))

    def record(self, state: JobState) -> Record:
        """Return a job as JSON, with its notebook's path as this server serves it."""
        return below(record(state, time.time()), cast("Any", self.extensionapp).roots)

    def finish_empty(self) -> None:
        """Answer 204: it was done."""
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer one of our own errors with the status of its type; leave others to Jupyter Server."""
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
        """Leave errors that are answers to the access log: a traceback of our frames would add nothing."""
        if not isinstance(value, NBTorchJobError):
            super().log_exception(typ, value, tb)


class Lanes:
    """Runs work for at most ``patience`` seconds a call, ``width`` at a time in each lane."""

    def __init__(self, patience: float, width: int) -> None:
        self._patience = patience
        self._width = width
        # A lane exists only while it is used: a URL may name any.
        self._room: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._under_way: dict[str, Future[Any]] = {}

    async def run(self, lane: str, work: Callable[[], T], once: str = "") -> T:
        """Return what ``work`` returns, or raise what it raises; ``NoAnswerError`` if it takes too long.

        Work that gets no room in time is never begun; once begun, it keeps its room until it ends. While
        work named ``once`` is under way, even if nobody waits for it any more, no other work of that name
        begins: this call waits for that work instead.
        """
        room = self._room.setdefault(lane, asyncio.Semaphore(self._width))
        try:
            async with loop.timeout(self._patience):
                return await self._run(room, work, once)
        except asyncio.TimeoutError:  # the builtin TimeoutError only from Python 3.11 on
            raise NoAnswerError(
                f"{lane} didn't answer within {self._patience:g} s; the request may still take effect: "
                "check again later"
            ) from None

    async def _run(self, room: asyncio.Semaphore, work: Callable[[], T], once: str) -> T:
        if once in self._under_way:
            return cast("T", await asyncio.wrap_future(self._under_way[once]))
        done: Future[T] = Future()
        # Else a request that gives up would cancel it, and release the room that its thread still takes.
        done.set_running_or_notify_cancel()
        if once:
            self._under_way[once] = done
        try:
            await room.acquire()
        except BaseException:
            self._under_way.pop(once, None)
            done.set_exception(asyncio.TimeoutError())
            raise
        loop = asyncio.get_running_loop()

        def leave() -> None:
            self._under_way.pop(once, None)
            room.release()

        def end(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the server has stopped, and its loop is closed
                loop.call_soon_threadsafe(leave)

        done.add_done_callback(end)
        # No ThreadPoolExecutor: Python waits for its threads at exit, and so for a cluster that hangs.
        thread = threading.Thread(target=_finish, args=(done, work), name="nbtorchjob-server", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # no more threads can be started
            done.set_exception(exc)
        return await asyncio.wrap_future(done)


def _finish(done: Future[T], work: Callable[[], T]) -> None:
    try:
        value = work()
    except BaseException as exc:
        done.set_exception(exc)
    else:
        done.set_result(value)
