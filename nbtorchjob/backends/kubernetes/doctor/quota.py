"""What the namespace's quotas leave, against what the job asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.objects.paths import QUOTAS
from nbtorchjob.backends.kubernetes.pod.resources import replicas, resources
from nbtorchjob.errors import ForbiddenError
from nbtorchjob.spec.cluster.quantities import amount
from nbtorchjob.spec.jobspec import JobSpec

# What a quota may name without distinguishing requests from limits.
_REQUESTED = ("cpu", "memory")
_GIB = 2.0**30


async def look(client: Client, namespace: str, spec: JobSpec) -> list[Finding]:
    """Report of each quota whether the job fits. Raises ``ClusterError`` and ``SpecError``."""
    try:
        quotas = (await client.list(QUOTAS, namespace)).items
    except ForbiddenError:
        return [
            Finding(
                True, "can't check whether the job fits the quota, because reading quotas isn't permitted"
            )
        ]
    wanted = asked(spec)
    return [_one(quota, wanted) for quota in quotas] or [Finding(True, "no quota limits the namespace")]


def asked(spec: JobSpec) -> dict[str, float]:
    """Return what all of the job's pods need together, as a quota names it."""
    parts = replicas(spec)
    total = {"pods": float(spec.launch.max_nodes)}
    # A master is one pod; all others are alike.
    counts = [1, spec.launch.max_nodes - 1] if len(parts) == 2 else [spec.launch.max_nodes]
    for replica, count in zip(parts, counts, strict=True):
        for kind, amounts in resources(spec.cluster, replica).items():
            for name, text in amounts.items():
                key = f"{kind}.{name}"
                total[key] = total.get(key, 0.0) + count * amount(text)
    return total


def _one(quota: Object, wanted: dict[str, float]) -> Finding:
    name = quota["metadata"]["name"]
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return Finding(True, f"quota {name} applies only to some pods and wasn't checked")
    lacking = list(_lacking(quota, wanted))
    if lacking:
        return Finding(False, f"quota {name}: {'; '.join(lacking)}")
    said = [
        f"{worded(key, wanted[_key(key)])} of {worded(key, left)} {key}"
        for key, left in _room(quota).items()
        if _key(key) in wanted
    ]
    return Finding(True, f"quota {name} has room for the job{': ' if said else ''}{', '.join(said)}")


def _lacking(quota: Object, wanted: dict[str, float]) -> Iterator[str]:
    for key, left in _room(quota).items():
        need = wanted.get(_key(key))
        if need is not None and need > left:
            yield f"the job requests {worded(key, need)} {key}, but {worded(key, left)} is left"
        elif need is None and _key(key).partition(".")[2] in _REQUESTED:
            option = _key(key).partition(".")[2]
            yield f"{key} must be set: use --{option} (unless a LimitRange or runtime does)"


def _room(quota: Object) -> dict[str, float]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    hard = status.get("hard") or quota["spec"].get("hard") or {}
    found = {}
    for key, text in hard.items():
        with suppress(ValueError):  # a number too big to limit anything
            found[key] = amount(str(text)) - amount(str(used.get(key) or "0"))
    return found


def _key(key: str) -> str:
    """Return the name that :func:`asked` uses for what a quota names."""
    return f"requests.{key}" if key in _REQUESTED else key.removeprefix("count/")


def worded(key: str, number: float) -> str:
    """Return an amount of a resource as text."""
    number = max(number, 0.0)
    return f"{number / _GIB:.3g} GiB" if "memory" in key else f"{number:g}"
