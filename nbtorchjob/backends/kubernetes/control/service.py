"""A tender as a process, or as a part of one: its namespaces, who of several does it, and how it is."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.control import journal, leases
from nbtorchjob.backends.kubernetes.control.journal import LOG
from nbtorchjob.backends.kubernetes.control.leases import Lease
from nbtorchjob.backends.kubernetes.control.tending import Tender
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.errors import ClusterError, ForbiddenError, NBTorchJobError
from nbtorchjob.machine import loop
from nbtorchjob.payload.identity import user

_FIND_S = 30.0  # between two looks for namespaces that jobs were newly sent to
_AGAIN_S = 15.0  # between two tries at a cluster that refuses, or doesn't answer
_STOP_S = 5.0  # for what is under way, and for giving back Leases
_REQUEST = 4096  # bytes of a question about how it is


class Service:
    """Looks after jobs in ``scopes``, which may grow: this user's, or ``everyone``'s; ``who`` says it."""

    def __init__(self, scopes: Callable[[], Sequence[Scope]], who: str, *, everyone: bool = False) -> None:
        self._scopes = scopes
        self._who = leases.here(who)
        self._everyone = everyone
        self._began = time.time()
        self._places: dict[Scope, _Place] = {}

    async def run(self) -> None:
        """Look after them until it is cancelled; then give back what says so."""
        tasks: dict[Scope, asyncio.Task[None]] = {}
        try:
            while True:
                for scope in self._scopes():
                    if scope not in tasks:
                        place = self._places[scope] = _Place(scope, self._who, everyone=self._everyone)
                        tasks[scope] = asyncio.ensure_future(place.run())
                await asyncio.sleep(_FIND_S)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    @property
    def well(self) -> bool:
        """Whether it does what it is for: nowhere there is trouble."""
        return not any(place.trouble for place in self._places.values())

    def figures(self) -> dict[str, Any]:
        """Return how it is, in numbers and words, as JSON has them."""
        places = {str(scope): place.figures() for scope, place in self._places.items()}
        return {
            "who": self._who,
            "since": self._began,
            "well": self.well,
            "done": dict(journal.done),
            "namespaces": places,
        }

    def metrics(self) -> str:
        """Return the numbers of :meth:`figures` in Prometheus' words."""
        lines = ["# TYPE nbtorchjob_tend_done_total counter"]
        lines += [
            f"nbtorchjob_tend_done_total{{what={json.dumps(what)}}} {n}" for what, n in journal.done.items()
        ]
        for name in ("jobs", "visits", "tending", "requests"):  # of a cluster, those for all its namespaces
            lines.append(f"# TYPE nbtorchjob_tend_{name} {'counter' if name == 'requests' else 'gauge'}")
            lines += [
                f"nbtorchjob_tend_{name}{{namespace={json.dumps(str(scope))}}} {int(place.figures()[name])}"
                for scope, place in self._places.items()
            ]
        return "\n".join([*lines, f"nbtorchjob_tend_up {int(self.well)}", ""])

    async def listen(self, where: str) -> asyncio.Server:
        """Say how it is to whoever asks at ``HOST:PORT``, or at the path of a socket: /healthz, /metrics."""
        host, _, port = where.rpartition(":")
        if port.isdigit() and "/" not in where:
            return await asyncio.start_server(self._answer, host, int(port), limit=_REQUEST)
        with suppress(FileNotFoundError):  # a socket of a tender that was killed
            os.unlink(where)
        return await asyncio.start_unix_server(self._answer, where, limit=_REQUEST)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            words = (await reader.readuntil(b"\r\n")).split()
            path = words[1].partition(b"?")[0] if len(words) > 1 else b""
            code, body = self._said(path)
            head = f"HTTP/1.0 {code}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    def _said(self, path: bytes) -> tuple[str, bytes]:
        if path == b"/metrics":
            return "200 OK", self.metrics().encode()
        if path in (b"/", b"/healthz"):
            code = "200 OK" if self.well else "503 Service Unavailable"
            return code, (json.dumps(self.figures(), indent=1) + "\n").encode()
        return "404 Not Found", b"there are /healthz and /metrics\n"


class Background:
    """A service on the background loop, until it is stopped."""

    def __init__(self, service: Service, listen: str = "") -> None:
        self._listen = listen
        self._server = loop.run(service.listen(listen)) if listen else None
        self._over = threading.Event()
        self._running = loop.start(self._run(service))

    async def _run(self, service: Service) -> None:
        try:
            await service.run()
        finally:
            if self._server is not None:
                self._server.close()
                with suppress(OSError):
                    os.unlink(self._listen)
            self._over.set()

    def stop(self) -> None:
        """Give back what it holds."""
        self._running.cancel()
        self._over.wait(_STOP_S)


class _Place:
    """One namespace: whether it is ours to look after, and what is done there."""

    def __init__(self, scope: Scope, who: str, *, everyone: bool) -> None:
        self._scope, self._who, self._everyone = scope, who, everyone
        self._client: Client | None = None
        self._tender: Tender | None = None
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""

    def figures(self) -> dict[str, Any]:
        """Return how it is there."""
        tender = self._tender
        return {
            "tending": tender is not None,
            "jobs": tender.jobs if tender else 0,
            "visits": tender.visits if tender else 0,
            "requests": self._client.requests if self._client is not None else 0,
            "trouble": self.trouble,
        }

    async def run(self) -> None:
        """Look after the namespace's jobs while no other tender does."""
        mine = None if self._everyone else labelling.word(user())
        lease: Lease | None = None
        try:
            while True:
                try:
                    here = await session(self._scope.context)
                    self._client = here.client
                    lease = lease or Lease(here.client, self._scope.namespace, mine, self._who)
                    await self._tend(wanted=await self._may(lease))
                except NBTorchJobError as exc:
                    self._worry(str(exc))
                    await self._tend(wanted=False)
                    await asyncio.sleep(_AGAIN_S)
                else:
                    await self._wait()
        finally:
            await self._tend(wanted=False)
            if lease is not None:
                with suppress(ClusterError):
                    await lease.leave()

    async def _may(self, lease: Lease) -> bool:
        try:
            return await lease.take()
        except ForbiddenError as exc:
            if not self._task:
                LOG.warning("%s: nobody can be told who looks after its jobs: %s", self._scope, exc)
            return True

    async def _tend(self, *, wanted: bool) -> None:
        if wanted and self._task is None:
            self._tender = Tender(await session(self._scope.context), self._scope, everyone=self._everyone)
            self._task = asyncio.ensure_future(self._tender.run())
            LOG.info("%s: looking after %s jobs", self._scope, "all" if self._everyone else "your")
        elif not wanted and self._task is not None:
            task, self._task, self._tender = self._task, None, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            LOG.info("%s: no longer looking after its jobs", self._scope)

    async def _wait(self) -> None:
        """Wait for the next beat, or until looking after jobs fails. Raises what it failed with."""
        if self._task is None:
            await asyncio.sleep(leases.BEAT_S)
            return
        await asyncio.wait([self._task], timeout=leases.BEAT_S)
        if self._task.done():
            task, self._task, self._tender = self._task, None, None
            task.result()
        elif self._tender is not None and self._tender.listed:
            self.trouble = ""

    def _worry(self, why: str) -> None:
        if self.trouble != why:  # not each time
            LOG.warning("%s: %s", self._scope, why)
        self.trouble = why
