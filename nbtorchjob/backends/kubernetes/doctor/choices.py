"""What a job can name on a cluster, the types of hosts included: all lists are requested at once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping

from nbtorchjob.backends.base import Choice
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.api.login import contexts
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.paths import (
    ACCOUNTS,
    CLAIMS,
    HOSTS,
    LOCAL_QUEUES,
    NAMESPACES,
    PODS,
    PRIORITIES,
    WORKLOAD_PRIORITIES,
    Api,
)
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.errors import ClusterError
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.text import words

_TYPE = "node.kubernetes.io/instance-type"
_UNENDED = "status.phase!=Succeeded,status.phase!=Failed"
_GIB = 2.0**30
# Every host has some of these; nobody chooses a host by them.
_DULL = ("pods", "ephemeral-storage", "hugepages-", "attachable-volumes-")

Amounts = dict[str, float]  # by resource


async def choices(client: Client) -> list[Choice]:
    """Return a selector for each type of host, with what is free of it. Raises ``ClusterError``.

    Without permission to list all pods it shows what the hosts have, not what is free.
    """
    hosts = (await client.list(HOSTS, None)).items
    try:
        used: Mapping[str, Amounts] | None = _used((await client.list(PODS, None, fields=_UNENDED)).items)
    except ClusterError:
        used = None
    types: dict[str, list[Object]] = defaultdict(list)
    for host in hosts:
        if not (host.get("spec") or {}).get("unschedulable"):
            types[(host["metadata"].get("labels") or {}).get(_TYPE, "")].append(host)
    return [Choice(f"{_TYPE}={name}", _note(types[name], used)) for name in sorted(types) if name]


def _used(pods: Iterable[Object]) -> dict[str, Amounts]:
    """Return what each host has reserved for its pods."""
    used: dict[str, Amounts] = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        for container in (pod.get("spec") or {}).get("containers") or ():
            requests = (container.get("resources") or {}).get("requests") or {}
            for name, number in _amounts(requests):
                used[(pod.get("spec") or {}).get("nodeName") or ""][name] += number
    return used


def _note(hosts: list[Object], used: Mapping[str, Amounts] | None) -> str:
    total: Amounts = defaultdict(float)
    taken: Amounts = defaultdict(float)
    for host in hosts:
        for name, number in _amounts((host.get("status") or {}).get("allocatable") or {}):
            total[name] += number
            taken[name] += (used or {}).get(host["metadata"]["name"], {}).get(name, 0.0)
    said = [_said(name, total[name], None if used is None else taken[name]) for name in sorted(total)]
    return ", ".join([words.count(len(hosts), "host"), *said])


def _said(name: str, total: float, taken: float | None) -> str:
    unit, scale = (" GiB", _GIB) if name == "memory" else ("", 1.0)
    free = "" if taken is None else f"{max(0.0, total - taken) / scale:.3g} of "
    return f"{free}{total / scale:.3g}{unit} {name}" + ("" if taken is None else " free")


def _amounts(texts: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, text in texts.items():
        if not name.startswith(_DULL):
            yield name, amount(str(text))


async def look(spec: JobSpec) -> dict[str, list[Choice]]:
    """Return the choices of ``spec``'s context and namespace by the option's key, as far as permitted."""
    by_key = {"context": [Choice(name) for name in contexts()]}
    try:
        here = await session(spec.cluster.context)
        namespace = (await here.scope(spec)).namespace
        client = here.client
        wanted = {
            "namespace": _names(client, NAMESPACES, None),
            "kind": _kinds(here),
            "runtime": _runtimes(client, namespace),
            "queue": _queues(here, namespace),
            "workload-priority": _priorities(here),
            "priority-class": _names(client, PRIORITIES, None),
            "service-account": _names(client, ACCOUNTS, namespace),
            "mount": _claims(client, namespace),
            "node-selector": choices(client),
        }
    except ClusterError:
        wanted = {}
    answers = await asyncio.gather(*map(_permitted, wanted.values()))
    by_key |= dict(zip(wanted, answers, strict=True))
    return {key: choices for key, choices in by_key.items() if choices}


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
    per_kind = await asyncio.gather(*(attempts.listed(client, runtimes, namespace) for runtimes in own))
    return [Choice(name, runs) for part in per_kind for name, runs in part.items()]


async def _queues(here: Session, namespace: str) -> list[Choice]:
    own = [kind.queues for kind in KINDS.values() if kind.queues is not None]
    api = await here.newest(LOCAL_QUEUES)
    whose = {queues.owner: _names(here.client, queues.api, None) for queues in own}
    if api is not None:
        whose["Kueue"] = _names(here.client, api, namespace)
    per_kind = await asyncio.gather(*map(_permitted, whose.values()))
    return [Choice(queue.value, name) for name, part in zip(whose, per_kind, strict=True) for queue in part]


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
