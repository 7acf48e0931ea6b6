"""The types of a cluster's hosts, and what is free on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from nbtorchjob.backends.base import Choice
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.objects.paths import HOSTS, PODS
from nbtorchjob.errors import ClusterError
from nbtorchjob.spec.cluster.quantities import amount
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
    found = (await client.list(HOSTS, None)).items
    try:
        used: Mapping[str, Amounts] | None = _used((await client.list(PODS, None, fields=_UNENDED)).items)
    except ClusterError:
        used = None
    types: dict[str, list[Object]] = defaultdict(list)
    for host in found:
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


def _amounts(found: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, text in found.items():
        if not name.startswith(_DULL):
            yield name, amount(str(text))
