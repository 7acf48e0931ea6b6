"""What a pod mounts: the payload, shared memory, and what the spec asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nbtorchjob.spec.cluster.mounts import Mount

PAYLOAD = "/etc/nbtorchjob"
# Every volume's name begins with this, as a TrainJob's are merged with its runtime's by name.
_PREFIX = "nbtorchjob-"


class Volume(NamedTuple):
    """An entry of a pod's ``volumes`` and the container's entry of ``volumeMounts`` for it."""

    volume: dict[str, Any]
    mount: dict[str, Any]


def payload(secrets: Sequence[str]) -> Volume:
    """Return the volume that holds all of the payload's Secrets in one folder."""
    return _volume("payload", {"projected": {"sources": _sources(secrets)}}, PAYLOAD, readonly=True)


def mounted(part: Any) -> list[str]:
    """Return the names of the payload's Secrets, in order, of a job object or a part of one.

    It is searched for the volume, as each kind has its pods elsewhere.
    """
    if isinstance(part, dict) and part.get("name") == f"{_PREFIX}payload" and "projected" in part:
        return [source["secret"]["name"] for source in part["projected"]["sources"]]
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return next(filter(None, map(mounted, parts)), [])


def shared_memory(size: str) -> Volume:
    """Return ``/dev/shm``, of that size at most."""
    return _volume("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm")


def asked(mounts: Iterable[Mount]) -> list[Volume]:
    """Return the volumes that the spec asks for, as TorchX makes them (0.7)."""
    return [
        _volume(f"mount-{i}", _source(mount), mount.dst, readonly=mount.readonly)
        for i, mount in enumerate(mounts)
    ]


def privileged(mounts: Iterable[Mount]) -> bool:
    """Return whether the container must be privileged: only then may it use a host's device."""
    return any(mount.type == "device" for mount in mounts)


def _sources(secrets: Iterable[str]) -> list[dict[str, Any]]:
    return [{"secret": {"name": name}} for name in secrets]


def _source(mount: Mount) -> dict[str, Any]:
    if mount.type == "volume":
        return {"persistentVolumeClaim": {"claimName": mount.src}}
    return {"hostPath": {"path": mount.src}}


def _volume(name: str, source: dict[str, Any], path: str, *, readonly: bool = False) -> Volume:
    mount: dict[str, Any] = {"name": _PREFIX + name, "mountPath": path}
    if readonly:
        mount["readOnly"] = True
    return Volume({"name": _PREFIX + name, **source}, mount)
