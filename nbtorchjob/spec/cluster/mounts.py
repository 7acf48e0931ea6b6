"""Mounts in TorchX's grammar (torchx 0.7): ``type=bind|volume|device,src=…,dst=…,readonly,perm=…``.

A text may hold several, each starting with ``type``. Unlike in TorchX, ``readonly=false`` isn't read-only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.cluster.names import subdomain

_TYPES = ("bind", "volume", "device")
_ALIASES = {"source": "src", "destination": "dst", "target": "dst", "read_only": "readonly"}
_KEYS = ("type", "src", "dst", "readonly", "perm")
_SWITCH = {"": True, "true": True, "false": False}
# The pod's own mounts: the payload, the termination message, and shared memory (--shm).
_TAKEN = ("/etc/nbtorchjob", "/dev/termination-log", "/dev/shm")


class Mount(FrozenDataclass):
    """A host's folder (bind), a claim (volume) or a host's device at a path of the container.

    ``perm`` is what a device may be used for: of r(ead), w(rite), m(ake nodes).
    """

    type: str
    src: str
    dst: str
    readonly: bool = False
    perm: str = "rwm"

    def __str__(self) -> str:
        readonly = ",readonly" if self.readonly and self.type != "device" else ""
        perm = f",perm={self.perm}" if self.type == "device" else ""
        return f"type={self.type},src={self.src},dst={self.dst}{readonly}{perm}"


def mounts(field: str, value: Iterable[str]) -> tuple[str, ...]:
    """Return the mounts as texts, one each, written out. Raises ``SpecError``."""
    parsed = parse(value, field)
    targets = [mount.dst for mount in parsed]
    for target in targets:
        if targets.count(target) > 1:
            raise SpecError(field, target, "mounted only once")
    return tuple(map(str, parsed))


def parse(value: Iterable[str], field: str = "mount") -> tuple[Mount, ...]:
    """Return the mounts that the texts describe. Raises ``SpecError``."""
    # The same mount given twice, by a profile and by a line, counts once.
    return tuple(dict.fromkeys(_mount(field, group) for text in value for group in _groups(field, text)))


def _groups(field: str, text: str) -> Iterator[dict[str, str]]:
    group: dict[str, str] = {}
    for token in text.split(","):
        key, _, value = token.partition("=")
        key = _ALIASES.get(key, key)
        if key not in _KEYS:
            raise SpecError(field, token, f"one of {', '.join(_KEYS)}: type=volume,src=CLAIM,dst=/data")
        if key == "type" and group:
            yield group
            group = {}
        if key in group or (key != "type" and not group):
            raise SpecError(field, text, "type= first and each key once: type=volume,src=…,dst=…")
        group[key] = value
    yield group


def _mount(field: str, group: Mapping[str, str]) -> Mount:
    type_, src = group["type"], group.get("src", "")
    if type_ not in _TYPES:
        raise SpecError(field, f"type={type_}", " or ".join(f"type={known}" for known in _TYPES))
    if type_ == "volume":
        if not src:
            raise SpecError(field, "", "given a src: the PersistentVolumeClaim's name")
        subdomain(field, src)
    else:
        # TorchX does the same: home folders are often the same on all hosts.
        src = os.path.expanduser(src) if type_ == "bind" else src
        if not src.startswith("/"):
            raise SpecError(field, f"src={src}", f"an absolute path on the host, for type={type_}")
    dst = _destination(field, group.get("dst", src if type_ == "device" else ""))
    perm, readonly = _rights(field, group)
    return Mount(type_, src, dst, readonly, perm)


def _destination(field: str, dst: str) -> str:
    path = dst.rstrip("/")
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise SpecError(field, f"dst={dst}", "an absolute path in the container, other than /")
    for taken in _TAKEN:
        if path == taken or path.startswith(taken + "/"):
            raise SpecError(field, f"dst={dst}", f"another path: {taken} is reserved for the job (see --shm)")
    return path


def _rights(field: str, group: Mapping[str, str]) -> tuple[str, bool]:
    readonly, device = group.get("readonly", "false"), group["type"] == "device"
    perm = group.get("perm", "rwm")
    if readonly not in _SWITCH:
        raise SpecError(field, f"readonly={readonly}", "readonly, readonly=true or readonly=false")
    if "perm" in group and not device:
        raise SpecError(field, f"perm={perm}", "omitted: only type=device has permissions")
    if "readonly" in group and device:
        raise SpecError(field, "readonly", "omitted for type=device: use perm=r")
    if not perm or set(perm) - set("rwm") or len(set(perm)) != len(perm):
        raise SpecError(field, f"perm={perm}", "some of r, w and m")
    return perm, not set(perm) & set("wm") if device else _SWITCH[readonly]
