"""Who looks after the jobs of a namespace: a Lease, which one tender at a time holds, and keeps renewing.

It says whom to ask (``describe``), and keeps further tenders from watching the same. Nothing rests on it:
what two of them do at a time is done once. So where a user may not have Leases, all is done without.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from datetime import datetime, timezone
from typing import Any

from nbtorchjob.backends.base import Tended
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.objects.paths import LEASES, Target
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.errors import AlreadyExistsError, ApiError, NotFoundError
from nbtorchjob.payload.identity import user
from nbtorchjob.spec.cluster.names import MANAGED_BY
from nbtorchjob.spec.jobspec import JobSpec

NAME = "nbtorchjob-tender"
BEAT_S = 20.0  # between two beats
HOLD_S = 60.0  # without one, until another tender takes over


def here(what: str) -> str:
    """Return what this process is called as a holder."""
    return f"{what} on {socket.gethostname()} (process {os.getpid()})"


class Lease:
    """A namespace's Lease for one user's jobs (``whose``), or with None for everybody's, held by ``who``."""

    def __init__(self, client: Client, namespace: str, whose: str | None, who: str) -> None:
        suffix = "" if whose is None else "-" + re.sub(r"[^a-z0-9-]+", "-", whose.lower()).strip("-")
        name = f"{NAME}{suffix}"[:63].rstrip("-")
        self._target = Target(LEASES, namespace, name)
        self._client = client
        self._who = who
        label = {} if whose is None else {labelling.USER: whose}
        self._labels = {MANAGED_BY: labelling.MANAGER, **label}
        self._others: tuple[Any, float] | None = None  # another one's last beat, and when we first saw it
        self._version = ""  # while we hold it
        self._asked: asyncio.Future[bool] | None = None

    async def take(self) -> bool:
        """Take or renew it; False where another tender holds it. Raises ``ClusterError``."""
        # Never cut: of a request that is, nobody knows what it has done.
        self._asked = asyncio.ensure_future(self._take())
        return await asyncio.shield(self._asked)

    async def leave(self) -> None:
        """Give it back, for another one to take at once. Raises ``ClusterError``."""
        if self._asked is not None:
            await asyncio.gather(self._asked, return_exceptions=True)
        held, self._version = self._version, ""
        if held:
            await self._write(held, {"holderIdentity": ""})

    async def _take(self) -> bool:
        held, self._version = self._version, ""
        try:
            found = await (self._renewed(held) if held else self._taken())
        except (AlreadyExistsError, NotFoundError):
            found = None
        except ApiError as exc:
            if not exc.conflict:
                raise
            found = None
        self._version = str(found["metadata"].get("resourceVersion") or "") if found is not None else ""
        return found is not None

    async def _renewed(self, version: str) -> Object:
        return await self._write(version, {"renewTime": _now()})

    async def _taken(self) -> Object | None:
        try:
            found = await self._client.get(self._target)
        except NotFoundError:
            return await self._client.create(LEASES, self._target.namespace, self._new())
        spec = found.get("spec") or {}
        if spec.get("holderIdentity") not in (None, "", self._who) and not self._stale(spec):
            return None
        return await self._write(str(found["metadata"].get("resourceVersion") or ""), self._new()["spec"])

    async def _write(self, version: str, spec: Object) -> Object:
        # Where another one was faster it is of another version.
        return await self._client.patch(
            self._target, {"metadata": {"resourceVersion": version}, "spec": spec}
        )

    def _stale(self, spec: Object) -> bool:
        """Whether another one's beat hasn't changed for long, by our own clock: theirs may differ."""
        now, beat = time.monotonic(), (spec.get("holderIdentity"), spec.get("renewTime"))
        if self._others is None or self._others[0] != beat:
            self._others = beat, now
        return now - self._others[1] > HOLD_S

    def _new(self) -> Object:
        spec = {
            "holderIdentity": self._who,
            "leaseDurationSeconds": int(HOLD_S),
            "acquireTime": _now(),
            "renewTime": _now(),
        }
        metadata = {"name": self._target.name, "namespace": self._target.namespace, "labels": self._labels}
        return {"apiVersion": LEASES.group_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


async def holder(client: Client, namespace: str, whose: str) -> Tended | None:
    """Return who looks after a user's jobs now: the first by time; None where nobody does.

    Raises ``ClusterError``.
    """
    found = (await client.list(LEASES, namespace, labels=labelling.OURS)).items
    seen = [each for each in map(_read, (obj for obj in found if _for(obj, whose))) if each is not None]
    return min(seen, key=lambda each: each.since, default=None)


async def tended(job: JobRef) -> Tended:
    """Return who looks after a job: a tender, or somebody on this machine who follows it.

    Raises ``ClusterError``.
    """
    whose = (job.root["metadata"].get("labels") or {}).get(labelling.USER, "")
    found = await holder(job.session.client, job.scope.namespace, whose)
    if found is not None:
        return found
    since = job.cache.followed() if job.mine else None
    return (
        Tended() if since is None else Tended("a session on this machine that follows it", since, time.time())
    )


async def tends(spec: JobSpec) -> bool:
    """Whether a tender looks after what this user sends with such a spec. Raises ``ClusterError``."""
    here = await session(spec.cluster.context)
    return await holder(here.client, (await here.scope(spec)).namespace, user()) is not None


def _for(obj: Object, user_: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    whose = labels.get(labelling.USER)
    return str(obj["metadata"].get("name")).startswith(NAME) and whose in (None, labelling.word(user_))


def _read(obj: Object) -> Tended | None:
    spec = obj.get("spec") or {}
    who, beat = spec.get("holderIdentity"), reading.seconds(spec.get("renewTime"))
    hold = spec.get("leaseDurationSeconds")
    if not who or time.time() - beat > (hold if isinstance(hold, int) else HOLD_S):
        return None
    return Tended(str(who), reading.seconds(spec.get("acquireTime")) or beat, beat)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
