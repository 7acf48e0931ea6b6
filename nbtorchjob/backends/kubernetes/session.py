"""One kubeconfig context: its client, and what the cluster serves and permits, asked once."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Collection
from functools import cache
from typing import Any

from nbtorchjob.backends.kubernetes.api import answers, reflector
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client, shared
from nbtorchjob.backends.kubernetes.kinds import KINDS, Kind
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects.reading import OLDER, REVIEWS, Api
from nbtorchjob.backends.kubernetes.objects.submission import Runtime
from nbtorchjob.backends.kubernetes.objects.workloads import Look
from nbtorchjob.spec.jobspec import JobSpec

Served = tuple[str, str, str]

KNOWN_S = 60.0  # how long an answer counts: an operator may be installed, or a permission given, meanwhile

# One request for everything, since 1.26; older servers answer with the list of groups instead.
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_ACCEPT = ",".join([_AGGREGATED.format("v2"), _AGGREGATED.format("v2beta1"), "application/json"])


async def version(client: Client) -> Object:
    """Return the server's release: "gitVersion" ("v1.36.2")."""
    return await client.document("/version", answers.VERSION)


async def served(client: Client, groups: Collection[str]) -> set[Served]:
    """Return (group, version, plural) of all that the cluster serves in those API groups.

    One request; before Kubernetes 1.26 one more for each version of an installed group.
    """
    document = await client.document("/apis", answers.SERVED, accept=_ACCEPT)
    if document.get("kind") == "APIGroupDiscoveryList":
        return {
            (group["metadata"]["name"], version["version"], resource["resource"])
            for group in document.get("items") or ()
            if group["metadata"]["name"] in groups
            for version in group["versions"]
            for resource in version.get("resources") or ()
        }
    installed = [group for group in document.get("groups") or () if group["name"] in groups]
    versions = [(group["name"], entry["version"]) for group in installed for entry in group["versions"]]

    async def resources(group: str, version: str) -> list[Served]:
        document = await client.document(f"/apis/{group}/{version}", answers.SERVED)
        names = [resource["name"] for resource in document.get("resources") or ()]
        return [(group, version, name) for name in names if "/" not in name]

    return set(itertools.chain(*await asyncio.gather(*(resources(*pair) for pair in versions))))


async def allowed(client: Client, verb: str, group: str, resource: str, namespace: str | None) -> bool:
    """Whether we may do ``verb`` on ``resource`` ("pods", "pods/log") in ``namespace`` (None: everywhere)."""
    plural, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural}
    attributes |= {"subresource": part} if part else {}
    attributes |= {"namespace": namespace} if namespace else {}
    review = {
        "apiVersion": REVIEWS.group_version,
        "kind": REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }
    return bool((await client.create(REVIEWS, None, review))["status"].get("allowed"))


_GROUPS = frozenset((*(kind.api.group for kind in KINDS.values()), *OLDER))


class Session:
    """A login that lasts as long as the process. Its methods run on our own event loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._reflectors: dict[str, reflector.Reflector] = {}
        self._served: asyncio.Future[set[Served]] | None = None
        self._served_until = 0.0  # by time.monotonic
        self._minor: asyncio.Future[int] | None = None
        # Recent answers about the end of hosts, and when they were requested.
        self.notices: dict[str, tuple[float, asyncio.Future[str]]] = {}
        # Recent answers about queues, by namespace and name, and when they were requested.
        self.queues: dict[tuple[str, str], tuple[float, asyncio.Future[Look]]] = {}
        # Runtimes by kind, namespace and name, and until when they are valid
        self.runtimes: dict[tuple[str, str, str], tuple[float, Runtime]] = {}

    async def scope(self, spec: JobSpec) -> Scope:
        """Return where a job of ``spec`` goes."""
        cluster = spec.cluster
        return Scope(cluster.context or "", cluster.namespace or await self.client.namespace())

    async def served(self, *, anew: bool = False) -> set[Served]:
        """Return what the cluster serves in the API groups of jobs; with ``anew``, as of now."""
        now = time.monotonic()
        if anew or _failed(self._served) or now > self._served_until:
            self._served = asyncio.ensure_future(served(self.client, _GROUPS))
            self._served_until = now + KNOWN_S
        assert self._served is not None
        return await asyncio.shield(self._served)

    async def newest(self, api: Api) -> Api | None:
        """Return ``api`` in a version that the cluster serves and that will do; None if there is none."""
        served = await self.served()
        versions = (api.version, *OLDER.get(api.group, ()))
        return next((api._replace(version=v) for v in versions if (api.group, v, api.plural) in served), None)

    async def kinds(self) -> list[Kind]:
        """Return the kinds of job that the cluster serves, in a version that will do."""
        served, minor = await self._both(anew=False)
        return [kind for kind in KINDS.values() if kind.api[:3] in served and kind.minor <= minor]

    async def soon(self, *, anew: bool = False) -> tuple[set[Served], int]:
        """Return what the cluster serves, and its version; gives up soon if the server is away."""
        return await self.client.unless_away(self._both(anew=anew), patient=True)

    async def _both(self, *, anew: bool) -> tuple[set[Served], int]:
        return await asyncio.gather(self.served(anew=anew), self.minor())

    async def minor(self) -> int:
        """Return the server's version: 36 for Kubernetes 1.36."""

        async def ask() -> int:
            # "minor" is "20+" of some builds, and empty of others.
            release = (await version(self.client))["gitVersion"]
            return int(re.sub(r"\D.*", "", release.split(".")[1]))

        if _failed(self._minor):
            self._minor = asyncio.ensure_future(ask())
        assert self._minor is not None
        return await asyncio.shield(self._minor)

    def reflector(self, namespace: str) -> reflector.Reflector:
        """Return the one reflector of a namespace: its watches serve all jobs."""
        if namespace not in self._reflectors:
            self._reflectors[namespace] = reflector.Reflector(self.client, namespace, reflector.PACE)
        return self._reflectors[namespace]


def _failed(future: asyncio.Future[Any] | None) -> bool:
    """Whether there is neither an answer nor a pending request that all callers may share."""
    return future is None or (future.done() and (future.cancelled() or future.exception() is not None))


async def session(context: str | None) -> Session:
    """Return the session of a context (None or "": the current one); call it on our own loop."""
    return _of_client(shared(context or None, os.environ.get("KUBECONFIG")))


_of_client = cache(Session)
