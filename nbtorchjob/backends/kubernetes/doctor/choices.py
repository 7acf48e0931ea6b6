"""What a job can name on a cluster: all that may be listed, requested at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from nbtorchjob.backends.base import Choice
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.api.login import contexts
from nbtorchjob.backends.kubernetes.doctor import hosts
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.paths import (
    ACCOUNTS,
    CLAIMS,
    LOCAL_QUEUES,
    NAMESPACES,
    PRIORITIES,
    WORKLOAD_PRIORITIES,
    Api,
)
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.backends.kubernetes.submit import runtimes
from nbtorchjob.errors import ClusterError
from nbtorchjob.spec.jobspec import JobSpec


async def look(spec: JobSpec) -> dict[str, list[Choice]]:
    """Return the choices of ``spec``'s context and namespace by the option's key, as far as permitted."""
    found = {"context": [Choice(name) for name in contexts()]}
    try:
        here = await session(spec.cluster.context)
        wanted = _wanted(here, (await here.scope(spec)).namespace)
    except ClusterError:
        wanted = {}
    answers = await asyncio.gather(*map(_permitted, wanted.values()))
    found |= dict(zip(wanted, answers, strict=True))
    return {key: choices for key, choices in found.items() if choices}


def _wanted(here: Session, namespace: str) -> dict[str, Awaitable[list[Choice]]]:
    client = here.client
    return {
        "namespace": _names(client, NAMESPACES, None),
        "kind": _kinds(here),
        "runtime": _runtimes(client, namespace),
        "queue": _queues(here, namespace),
        "workload-priority": _priorities(here),
        "priority-class": _names(client, PRIORITIES, None),
        "service-account": _names(client, ACCOUNTS, namespace),
        "mount": _claims(client, namespace),
        "node-selector": hosts.choices(client),
    }


async def _permitted(work: Awaitable[list[Choice]]) -> list[Choice]:
    try:
        return await work
    except ClusterError:  # forbidden, not installed, or not there: a name can still be typed
        return []


async def _names(client: Client, api: Api, namespace: str | None) -> list[Choice]:
    items = (await client.list(api, namespace)).items
    return [Choice(name) for name in sorted(item["metadata"]["name"] for item in items)]


async def _kinds(here: Session) -> list[Choice]:
    return [Choice(kind.name, "served here") for kind in await here.kinds()]


async def _runtimes(client: Client, namespace: str) -> list[Choice]:
    own = [kind.runtimes for kind in KINDS.values() if kind.runtimes is not None]
    found = await asyncio.gather(*(runtimes.listed(client, each, namespace) for each in own))
    return [Choice(name, runs) for part in found for name, runs in part.items()]


async def _queues(here: Session, namespace: str) -> list[Choice]:
    own = [kind.queues for kind in KINDS.values() if kind.queues is not None]
    api = await here.newest(LOCAL_QUEUES)
    whose = {queues.owner: _names(here.client, queues.api, None) for queues in own}
    if api is not None:
        whose["Kueue"] = _names(here.client, api, namespace)
    found = await asyncio.gather(*map(_permitted, whose.values()))
    return [Choice(each.value, name) for name, part in zip(whose, found, strict=True) for each in part]


async def _priorities(here: Session) -> list[Choice]:
    api = await here.newest(WORKLOAD_PRIORITIES)
    return await _names(here.client, api, None) if api is not None else []


async def _claims(client: Client, namespace: str) -> list[Choice]:
    items = (await client.list(CLAIMS, namespace)).items
    return [_claim(item) for item in sorted(items, key=lambda item: str(item["metadata"]["name"]))]


def _claim(item: Object) -> Choice:
    name, spec = item["metadata"]["name"], item["spec"]
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "")
    note = ", ".join(filter(None, [size, *(spec.get("accessModes") or ())]))
    return Choice(f"type=volume,src={name},dst=/mnt/{name}", note)
