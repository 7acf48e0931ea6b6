"""One kubeconfig context: its client, and what is asked of a cluster only once."""

from __future__ import annotations

import asyncio
import os
import re
from functools import cache
from typing import Any

from nbtorchjob.backends.kubernetes.api import discovery, reflector
from nbtorchjob.backends.kubernetes.api.client import Client, shared
from nbtorchjob.backends.kubernetes.api.discovery import Served
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects.paths import OLDER, Api
from nbtorchjob.backends.kubernetes.objects.queues import Look
from nbtorchjob.backends.kubernetes.objects.submission import Runtime
from nbtorchjob.spec.jobspec import JobSpec

_GROUPS = frozenset((*(kind.api.group for kind in KINDS.values()), *OLDER))


class Session:
    """A login that lasts as long as the process. Its methods run on our own event loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._reflectors: dict[str, reflector.Reflector] = {}
        self._served: asyncio.Future[set[Served]] | None = None
        self._minor: asyncio.Future[int] | None = None
        # What hosts said of their end lately, and when they were asked.
        self.notices: dict[str, tuple[float, asyncio.Future[str]]] = {}
        # What queues said of themselves lately, by namespace and name, and when they were asked.
        self.queues: dict[tuple[str, str], tuple[float, asyncio.Future[Look]]] = {}
        self.runtimes: dict[tuple[str, str, str], Runtime] = {}  # found so far, by kind, namespace and name

    async def scope(self, spec: JobSpec) -> Scope:
        """Return where a job of ``spec`` goes."""
        cluster = spec.cluster
        return Scope(cluster.context or "", cluster.namespace or await self.client.namespace())

    async def served(self, *, anew: bool = False) -> set[Served]:
        """Return what the cluster serves of the groups that jobs are of; ``anew``: as of now."""
        if anew or _failed(self._served):
            self._served = asyncio.ensure_future(discovery.served(self.client, _GROUPS))
        assert self._served is not None
        return await asyncio.shield(self._served)

    async def newest(self, api: Api) -> Api | None:
        """Return ``api`` in a version that the cluster serves and that will do; None where there is none."""
        served = await self.served()
        versions = (api.version, *OLDER.get(api.group, ()))
        return next((api._replace(version=v) for v in versions if (api.group, v, api.plural) in served), None)

    async def kinds(self) -> list[Kind]:
        """Return the kinds of job that the cluster serves, in a version that will do."""
        served, minor = await self._both(anew=False)
        return [kind for kind in KINDS.values() if kind.api[:3] in served and kind.minor <= minor]

    async def soon(self, *, anew: bool = False) -> tuple[set[Served], int]:
        """Return what the cluster serves and its version, to a person who waits: who is away is said soon."""
        return await self.client.unless_away(self._both(anew=anew), patient=True)

    async def _both(self, *, anew: bool) -> tuple[set[Served], int]:
        return await asyncio.gather(self.served(anew=anew), self.minor())

    async def minor(self) -> int:
        """Return the server's version: 36 for Kubernetes 1.36."""
        if _failed(self._minor):
            self._minor = asyncio.ensure_future(self._asked_minor())
        assert self._minor is not None
        return await asyncio.shield(self._minor)

    async def _asked_minor(self) -> int:
        # "minor" is "20+" of some builds, and empty of others.
        found = (await discovery.version(self.client))["gitVersion"]
        return int(re.sub(r"\D.*", "", found.split(".")[1]))

    def reflector(self, namespace: str) -> reflector.Reflector:
        """Return the one reflector of a namespace: its watches serve all jobs."""
        if namespace not in self._reflectors:
            self._reflectors[namespace] = reflector.Reflector(self.client, namespace, reflector.PACE)
        return self._reflectors[namespace]


def _failed(asked: asyncio.Future[Any] | None) -> bool:
    """Whether there is no answer, nor one to come, that all who ask may share."""
    return asked is None or (asked.done() and (asked.cancelled() or asked.exception() is not None))


async def session(context: str | None) -> Session:
    """Return the session of a context (None or "": the current one); call it on our own loop."""
    return _session(shared(context or None, os.environ.get("KUBECONFIG")))


@cache
def _session(client: Client) -> Session:
    return Session(client)
