"""A tender as a process, or as a part of one: its namespaces, its Lease, its health and metrics.

A Lease says which tender looks after the jobs of a namespace: one tender at a time holds and renews it.

``describe`` shows its holder, and it keeps other tenders from watching the same jobs. Nothing else depends on
it: what two tenders do at a time is done once. So if a user may not use Leases, tenders work without them.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from nbtorchjob.backends.base import TenderStatus
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.control import actions
from nbtorchjob.backends.kubernetes.control.actions import LOG
from nbtorchjob.backends.kubernetes.control.tending import Tender
from nbtorchjob.backends.kubernetes.jobs import JobRef
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.reading import LEASES, Target
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import (
    AlreadyExistsError,
    ApiError,
    ClusterError,
    ForbiddenError,
    NBTorchJobError,
    NotFoundError,
)
from nbtorchjob.machine import loop
from nbtorchjob.spec.cluster.grammars import MANAGED_BY
from nbtorchjob.spec.jobspec import JobSpec

NAME = "nbtorchjob-tender"
BEAT_S = 20.0  # between two beats
HOLD_S = 60.0  # without a beat, until another tender takes over
_NAME = 63  # letters of a Lease's name
_DIGITS = 8  # of a user's digest, in it


def holder_name(program: str) -> str:
    """Return the name of this process as the holder of a Lease."""
    return f"{program} on {socket.gethostname()} (process {os.getpid()})"


class Lease:
    """A namespace's Lease for the jobs of one user (``username``) or, with None, of all, held by ``who``."""

    def __init__(self, client: Client, namespace: str, username: str | None, who: str) -> None:
        self._target = Target(LEASES, namespace, NAME if username is None else _name(username))
        self._client = client
        self._who = who
        label = {} if username is None else {labelling.USER: username}
        self._labels = {MANAGED_BY: labelling.MANAGER, **label}
        self._others: tuple[Any, float] | None = None  # another holder's last beat, and when we first saw it
        self._version = ""  # while we hold it
        self._request: asyncio.Future[bool] | None = None

    async def take(self) -> bool:
        """Take or renew the Lease; False if another tender holds it. Raises ``ClusterError``."""
        # Never cancelled: it is unknown what a cancelled request has done.
        self._request = asyncio.ensure_future(self._take())
        return await asyncio.shield(self._request)

    async def leave(self) -> None:
        """Release the Lease, so that another tender can take it at once. Raises ``ClusterError``."""
        if self._request is not None:
            await asyncio.gather(self._request, return_exceptions=True)
        version, self._version = self._version, ""
        if version:
            await self._write(version, {"holderIdentity": ""})

    async def _take(self) -> bool:
        version, self._version = self._version, ""
        try:
            lease = await (self._write(version, {"renewTime": self._stamp()}) if version else self._acquire())
        except (AlreadyExistsError, NotFoundError):
            lease = None
        except ApiError as exc:
            if not exc.conflict:
                raise
            lease = None
        self._version = str(lease["metadata"].get("resourceVersion") or "") if lease is not None else ""
        return lease is not None

    async def _acquire(self) -> Object | None:
        try:
            lease = await self._client.get(self._target)
        except NotFoundError:
            return await self._client.create(LEASES, self._target.namespace, self._new())
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") not in (None, "", self._who):
            # Whether the holder's beat hasn't changed for long, by our own clock: the holder's may differ
            now, beat = time.monotonic(), (spec.get("holderIdentity"), spec.get("renewTime"))
            if self._others is None or self._others[0] != beat:
                self._others = beat, now
            if not (now - self._others[1] > HOLD_S):
                return None
        return await self._write(str(lease["metadata"].get("resourceVersion") or ""), self._new()["spec"])

    async def _write(self, version: str, spec: Object) -> Object:
        # If another tender was faster, the version differs, and the patch is refused.
        return await self._client.patch(
            self._target, {"metadata": {"resourceVersion": version}, "spec": spec}
        )

    def _stamp(self) -> str:
        now = datetime.fromtimestamp(self._client.now(), timezone.utc)
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _new(self) -> Object:
        spec = {
            "holderIdentity": self._who,
            "leaseDurationSeconds": int(HOLD_S),
            "acquireTime": self._stamp(),
            "renewTime": self._stamp(),
        }
        metadata = {"name": self._target.name, "namespace": self._target.namespace, "labels": self._labels}
        return {"apiVersion": LEASES.group_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def _name(username: str) -> str:
    """Return the name of a user's Lease, another one for each user."""
    name = f"{NAME}-{re.sub(r'[^a-z0-9-]+', '-', username.lower()).strip('-')}"[:_NAME].rstrip("-")
    if name == f"{NAME}-{username}":
        return name
    # Other users' names may look the same in the letters that an object's name may have.
    return f"{name[: _NAME - _DIGITS - 1]}-{sha256(username.encode()).hexdigest()[:_DIGITS]}"


async def holder(client: Client, namespace: str, username: str) -> TenderStatus | None:
    """Return which tender looks after a user's jobs now, the earliest of several; None if there is none.

    Raises ``ClusterError``.
    """
    leases = (await client.list(LEASES, namespace, labels=labelling.OURS)).items
    tenders, now = [], client.now()
    for obj in leases:
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        looks_after = (metadata.get("labels") or {}).get(labelling.USER) in (None, labelling.word(username))
        if not looks_after or not str(metadata.get("name")).startswith(NAME):
            continue
        who, beat = spec.get("holderIdentity"), reading.seconds(spec.get("renewTime"))
        hold = spec.get("leaseDurationSeconds")
        if who and now - beat <= (hold if isinstance(hold, int) else HOLD_S):
            tenders.append(TenderStatus(str(who), reading.seconds(spec.get("acquireTime")) or beat, beat))
    return min(tenders, key=lambda tender: tender.since, default=None)


async def tended(job: JobRef) -> TenderStatus:
    """Return what looks after a job: a tender, or a session on this machine that follows it.

    Raises ``ClusterError``.
    """
    username = (job.root["metadata"].get("labels") or {}).get(labelling.USER, "")
    tender = await holder(job.session.client, job.scope.namespace, username)
    if tender is not None:
        return tender
    since = job.cache.followed() if job.mine else None
    return (
        TenderStatus()
        if since is None
        else TenderStatus("a session on this machine that follows it", since, time.time())
    )


async def tends(spec: JobSpec) -> bool:
    """Whether a tender looks after jobs that this user sends with such a spec. Raises ``ClusterError``."""
    cluster_session = await session(spec.cluster.context)
    return (
        await holder(cluster_session.client, (await cluster_session.scope(spec)).namespace, user())
        is not None
    )


_FIND_S = 30.0  # between two checks for new namespaces that jobs were sent to
_AGAIN_S = 15.0  # between two tries at a cluster that refuses, or doesn't answer
_STOP_S = 5.0  # to finish what is under way, and to release Leases
_REQUEST = 4096  # bytes of a request for health or metrics


class Service:
    """Looks after this user's or ``everyone``'s jobs in ``scopes``, which may grow; ``who`` is its name."""

    def __init__(self, scopes: Callable[[], Sequence[Scope]], who: str, *, everyone: bool = False) -> None:
        self._scopes = scopes
        self._who = holder_name(who)
        self._everyone = everyone
        self._began = time.time()
        self._places: dict[Scope, _Place] = {}

    async def run(self) -> None:
        """Look after the jobs until cancelled; then release the Leases."""
        tasks: dict[Scope, asyncio.Task[None]] = {}
        trouble = ""
        try:
            while True:
                scopes: Sequence[Scope] = ()
                try:
                    scopes = self._scopes()
                except Exception as exc:  # whatever it is, jobs in the known ones are looked after
                    why = str(exc)
                    if trouble != why:  # not every time
                        LOG.warning("can't look for other namespaces with jobs: %s", why)
                    trouble = why
                for scope in scopes:
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
        """Whether the service works: no namespace has trouble."""
        return not any(place.trouble for place in self._places.values())

    def figures(self) -> dict[str, Any]:
        """Return the service's condition, in numbers and words, as a JSON object."""
        places = {str(scope): place.figures() for scope, place in self._places.items()}
        return {
            "who": self._who,
            "since": self._began,
            "well": self.well,
            "done": dict(actions.deeds),
            "namespaces": places,
        }

    def metrics(self) -> str:
        """Return the numbers of :meth:`figures` in Prometheus' text format."""
        lines = ["# TYPE nbtorchjob_tend_done_total counter"]
        lines += [
            f"nbtorchjob_tend_done_total{{what={json.dumps(deed)}}} {n}" for deed, n in actions.deeds.items()
        ]
        for name in ("jobs", "visits", "tending", "requests"):  # requests: of all namespaces of a cluster
            lines.append(f"# TYPE nbtorchjob_tend_{name} {'counter' if name == 'requests' else 'gauge'}")
            lines += [
                f"nbtorchjob_tend_{name}{{namespace={json.dumps(str(scope))}}} {int(place.figures()[name])}"
                for scope, place in self._places.items()
            ]
        return "\n".join([*lines, f"nbtorchjob_tend_up {int(self.well)}", ""])

    async def listen(self, where: str) -> asyncio.Server:
        """Serve /healthz and /metrics over HTTP at ``HOST:PORT``, or at the path of a Unix socket.

        Raises ``OSError``, also if another process listens there, or the path is another file's.
        """
        host, _, port = where.rpartition(":")
        if port.isdigit() and "/" not in where:
            return await asyncio.start_server(self._answer, host, int(port), limit=_REQUEST)
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(where).st_mode):
                raise OSError(errno.EEXIST, "it is a file, and no socket")
            # Replace the socket of a tender that was killed
            with suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_unix_connection(where)
                writer.close()
                raise OSError(errno.EADDRINUSE, "another process listens there")
            os.unlink(where)
        return await asyncio.start_unix_server(self._answer, where, limit=_REQUEST)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            words = (await reader.readuntil(b"\r\n")).split()
            path = words[1].partition(b"?")[0] if len(words) > 1 else b""
            if path == b"/metrics":
                code, body = "200 OK", self.metrics().encode()
            elif path in (b"/", b"/healthz"):
                code = "200 OK" if self.well else "503 Service Unavailable"
                body = (json.dumps(self.figures(), indent=1) + "\n").encode()
            else:
                code, body = "404 Not Found", b"there are /healthz and /metrics\n"
            head = f"HTTP/1.0 {code}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()


class Background:
    """A service on the background loop, until it is stopped."""

    def __init__(self, service: Service, listen: str = "") -> None:
        server = loop.run(service.listen(listen)) if listen else None
        path = listen if server is not None and server.sockets[0].family == socket.AF_UNIX else ""
        self._over = threading.Event()

        async def run() -> None:
            try:
                await service.run()
            finally:
                if server is not None:
                    server.close()
                if path:
                    with suppress(OSError):
                        os.unlink(path)
                self._over.set()

        self._running = loop.start(run())

    def stop(self) -> None:
        """Stop the service, and wait until it has released its Leases."""
        self._running.cancel()
        self._over.wait(_STOP_S)


class _Place:
    """One namespace: whether this process looks after it, and the tender that does."""

    def __init__(self, scope: Scope, who: str, *, everyone: bool) -> None:
        self._scope, self._everyone = scope, everyone
        # Several contexts may lead to one namespace: only one of their places is to hold its Lease.
        self._who = f"{who}, by context {scope.context}" if scope.context else who
        self._client: Client | None = None
        self._tender: Tender | None = None
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""

    def figures(self) -> dict[str, Any]:
        """Return the namespace's condition."""
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
        username = None if self._everyone else labelling.word(user())
        lease: Lease | None = None
        try:
            while True:
                try:
                    cluster_session = await session(self._scope.context)
                    self._client = cluster_session.client
                    lease = lease or Lease(cluster_session.client, self._scope.namespace, username, self._who)
                    try:
                        may_tend = await lease.take()
                    except ForbiddenError as exc:
                        if not self._task:
                            LOG.warning("%s: can't announce who looks after its jobs: %s", self._scope, exc)
                        may_tend = True
                    if self._tender is not None and await self._tender.outdated():
                        await self._tend(active=False)
                    await self._tend(active=may_tend)
                except NBTorchJobError as exc:
                    why = str(exc)
                    if self.trouble != why:  # not every time
                        LOG.warning("%s: %s", self._scope, why)
                    self.trouble = why
                    await self._tend(active=False)
                    await asyncio.sleep(_AGAIN_S)
                else:
                    await self._wait()
        finally:
            await self._tend(active=False)
            if lease is not None:
                with suppress(ClusterError):
                    await lease.leave()

    async def _tend(self, *, active: bool) -> None:
        if active and self._task is None:
            self._tender = Tender(await session(self._scope.context), self._scope, everyone=self._everyone)
            self._task = asyncio.ensure_future(self._tender.run())
            LOG.info("%s: looking after %s jobs", self._scope, "all" if self._everyone else "your")
        elif not active and self._task is not None:
            task, self._task, self._tender = self._task, None, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            LOG.info("%s: no longer looking after its jobs", self._scope)

    async def _wait(self) -> None:
        """Wait for the next beat, or until the tender fails; raise its error."""
        if self._task is None:
            self.trouble = ""  # another tender looks after the jobs
            await asyncio.sleep(BEAT_S)
            return
        await asyncio.wait([self._task], timeout=BEAT_S)
        if self._task.done():
            task, self._task, self._tender = self._task, None, None
            task.result()
        elif self._tender is not None and self._tender.listed:
            self.trouble = ""
