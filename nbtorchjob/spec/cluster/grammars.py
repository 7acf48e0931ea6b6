"""The small grammars of a cluster's settings, and of Kubernetes' names, labels and annotations.

amounts      ``500m``, ``2Gi``, ``1e3``: Kubernetes' own
tolerations  ``key=value:Effect``, ``key:Effect``, ``key``, as ``kubectl taint`` writes taints
users        ``UID[:GID]``, as numbers: a name has a meaning only inside the image
patches      a mapping, its JSON or YAML, or the path of a file that holds it
mounts       ``type=bind|volume|device,src=…,dst=…,readonly,perm=…``, TorchX's (torchx 0.7)

A text may hold several mounts, each starting with ``type``. Unlike in TorchX, ``readonly=false`` isn't
read-only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec import Frozen, texts

# Labels and annotations of this domain are nbtorchjob's own.
DOMAIN = "nbtorchjob.dev"
MANAGED_BY = "app.kubernetes.io/managed-by"

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
# The grammar of image names (distribution/reference): only the registry's host may have capitals.
_LABELS = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_HOST = rf"(?:{_LABELS}|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"@[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
_IMAGE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?:{_TAG})?(?:{_DIGEST})?")
# An object may have 256 KiB of annotations (Kubernetes 1.36), part of which nbtorchjob needs itself.
_ANNOTATIONS = 128 * 1024


def image(field: str, value: object) -> str:
    """Return ``value`` if it is an image's name, else raise ``SpecError``."""
    if isinstance(value, str) and _IMAGE.fullmatch(value):
        return value
    raise SpecError(field, value, "an image's name: [HOST[:PORT]/]PATH[:TAG], the path in lower case")


def label(field: str, value: object) -> str:
    """Return ``value`` if it is a DNS label, as a namespace is, else raise ``SpecError``."""
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    raise SpecError(field, value, "at most 63 of a-z, 0-9 and '-', with no '-' first or last")


def subdomain(field: str, value: object) -> str:
    """Return ``value`` if it is a DNS subdomain, as most objects' names are, else raise ``SpecError``."""
    if _is_subdomain(value):
        return str(value)
    raise SpecError(field, value, "a name of a-z, 0-9, '-' and '.'")


def subdomains(field: str, value: tuple[str, ...]) -> tuple[str, ...]:
    """Check several names; see :func:`subdomain`."""
    return tuple(subdomain(field, name) for name in value)


def secrets(field: str, value: tuple[str, ...]) -> tuple[str, ...]:
    """Check the sources of variables: ``secret/NAME``."""
    for source in value:
        kind, _, name = source.partition("/")
        if kind != "secret" or not _is_subdomain(name):
            raise SpecError(field, source, "secret/NAME, a Secret in the job's namespace")
    return value


def qualified(field: str, key: str) -> str:
    """Return ``key`` if it is ``name`` or ``domain/name``, else raise ``SpecError``."""
    prefix, slash, name = key.rpartition("/")
    if _WORD.fullmatch(name) and (_is_subdomain(prefix) if slash else True):
        return key
    raise SpecError(field, key, "NAME or DOMAIN/NAME, with at most 63 of A-Z, a-z, 0-9, '-', '_' and '.'")


def word(field: str, value: str) -> str:
    """Return ``value`` if it can be a label's value, else raise ``SpecError``."""
    if value == "" or _WORD.fullmatch(value):
        return value
    raise SpecError(
        field, value, "at most 63 of A-Z, a-z, 0-9, '-', '_' and '.', a letter or digit first and last"
    )


def user_labels(field: str, value: object) -> Frozen[str]:
    """Return the labels if a user may set them, else raise ``SpecError``."""
    labels = _free(field, texts(field, value))
    for text in labels.values():
        word(field, text)
    return labels


def selector(field: str, value: object) -> Frozen[str]:
    """Return the labels that a host must have, else raise ``SpecError``."""
    labels = texts(field, value)
    for key, text in labels.items():
        qualified(field, key)
        word(field, text)
    return labels


def user_annotations(field: str, value: object) -> Frozen[str]:
    """Return the annotations if a user may set them, else raise ``SpecError``."""
    annotations = _free(field, texts(field, value))
    try:
        size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    except UnicodeEncodeError as exc:
        raise SpecError(field, exc.object, "text that UTF-8 can represent") from None
    if size > _ANNOTATIONS:
        raise SpecError(field, f"{size} bytes", f"at most {_ANNOTATIONS} bytes in all")
    return annotations


def _free(field: str, labels: Mapping[str, str]) -> Frozen[str]:
    for key in labels:
        domain = qualified(field, key).rpartition("/")[0]
        if key == MANAGED_BY or domain == DOMAIN:
            raise SpecError(field, key, f"another name: {DOMAIN}/… and {MANAGED_BY} are reserved")
    return Frozen(labels)


def _is_subdomain(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 253 and all(map(_LABEL.fullmatch, value.split(".")))


EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def tolerations(field: str, value: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts back if each is a toleration, else raise ``SpecError``."""
    for text in value:
        toleration(text, field)
    return value


def toleration(text: str, field: str = "toleration") -> dict[str, str]:
    """Return the toleration for a pod's spec; without a value it matches any, without an effect all."""
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or (colon and effect not in EFFECTS):
        raise SpecError(field, text, f"KEY[=VALUE][:EFFECT] with an effect of {', '.join(EFFECTS)}")
    parsed = {"key": qualified(field, key), "operator": "Equal" if equals else "Exists"}
    if equals:
        parsed["value"] = word(field, value)
    return {**parsed, "effect": effect} if colon else parsed


_MOST = 2**31 - 1  # Kubernetes' limit (1.36)


class User(NamedTuple):
    """A user and their group."""

    uid: int
    gid: int


def user(field: str, value: object) -> str:
    """Return ``value`` as text if it names a user other than root, else raise ``SpecError``."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,10}(:[0-9]{1,10})?", text):
        uid, gid = parse_user(text)
        if 0 < uid <= _MOST and gid <= _MOST:
            return text
    raise SpecError(field, value, "UID or UID:GID as numbers, with a UID above 0: 0 is root")


def parse_user(text: str) -> User:
    """Return the user; an omitted group has the user's number."""
    uid, _, gid = text.partition(":")
    return User(int(uid), int(gid or uid))


_KEYS = ("metadata", "spec")


def patch(field: str, value: object) -> str:
    """Return the patch as JSON; it is read now, so a file may change afterwards. Raises ``SpecError``."""
    mapping = _read(field, value) if isinstance(value, str) else value
    if not isinstance(mapping, Mapping) or not mapping or set(mapping) - set(_KEYS):
        is_pods = False
    else:
        parts = [part for part in mapping.values() if part is not None]
        if not all(isinstance(part, Mapping) for part in parts):
            is_pods = False
        else:
            containers = (mapping.get("spec") or {}).get("containers", [])
            is_pods = isinstance(containers, list) and all(
                isinstance(container, Mapping) for container in containers
            )
    if not is_pods:
        allowed = "a mapping with metadata or spec, as a pod has them, as JSON, YAML or a file's path"
        raise SpecError(field, value, allowed)
    try:
        return json.dumps(mapping, sort_keys=True)
    except (TypeError, ValueError) as exc:
        raise SpecError(field, value, f"a value that JSON can represent ({exc})") from None


def _read(field: str, text: str) -> Any:
    path = os.path.expanduser(text.strip())
    # Not Path.is_file, which raises for a text too long for a path (before Python 3.14).
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as exc:
            raise SpecError(field, text, f"a readable file ({exc})") from None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:  # it comes with the kubernetes package
        raise SpecError(field, text, "JSON, because PyYAML isn't installed") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as exc:  # the latter for an impossible date or number
        reason = " ".join(str(exc).split())
        raise SpecError(field, text, f"JSON or YAML, or a file's path ({reason})") from None


_QUANTITY = re.compile(
    r"([0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_SUFFIX = {
    **{suffix: 1000.0**power for power, suffix in enumerate(("n", "u", "m", "", "k", *"MGTPE"), start=-3)},
    **{suffix + "i": 1024.0**power for power, suffix in enumerate("KMGTPE", start=1)},
}
# The standard resources; all others belong to a domain, such as nvidia.com/gpu.
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_BYTES = ("memory", "ephemeral-storage", "shm")
# flytekit's names; ``storage`` in its older versions is for volumes: no container requests it.
_ALSO = {"mem": "memory", "ephemeral_storage": "ephemeral-storage"}
_FLYTE = ("cpu", "mem", "gpu", "ephemeral_storage", "storage")
_FLYTE_GPU = "nvidia.com/gpu"  # unless its administrators name another one
_LEAST_BYTES = 4_000_000  # no container starts with less; 512m is half a byte


def amount(text: str) -> float:
    """Return the number that ``text`` stands for: cores, bytes, pieces. Raises ``ValueError``."""
    parts = _QUANTITY.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    number, suffix, exponent = parts.groups()
    return float(number) * _SUFFIX[suffix or ""] * 10.0 ** int(exponent or 0)


def quantity(field: str, value: object) -> str:
    """Return the amount as text; a plain number is accepted. Raises ``SpecError``."""
    return _of(field, field, value)


def quantities(field: str, value: object) -> Frozen[str]:
    """Return amounts by resource as texts; flytekit's ``Resources`` are accepted. Raises ``SpecError``."""
    amounts: dict[str, str] = {}
    if isinstance(value, Mapping):
        by_name = value
    else:
        if not all(hasattr(value, name) for name in ("cpu", "mem")):
            raise SpecError(field, value, "a mapping of resources to amounts")
        resources = {name: getattr(value, name, None) for name in _FLYTE}
        by_name = {
            _FLYTE_GPU if name == "gpu" else name: requested
            for name, requested in resources.items()
            if requested is not None
        }
    for name, text in by_name.items():
        full_name = resource(field, _ALSO.get(name, name))
        if full_name in amounts:
            raise SpecError(field, name, f"given once: it is {full_name}")
        amounts[full_name] = _of(field, full_name, text)
    return Frozen(amounts)


def resource(field: str, name: object) -> str:
    """Return ``name`` if it is a valid name of a resource, else raise ``SpecError``."""
    if isinstance(name, str) and (name in _PLAIN or name.startswith("hugepages-")):
        return name
    if not isinstance(name, str) or "/" not in name:
        raise SpecError(field, name, f"{', '.join(_PLAIN)} or a name with a domain, like nvidia.com/gpu")
    return qualified(field, name)


def _of(field: str, name: str, value: object) -> str:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    try:
        number = amount(text) if isinstance(text, str) else 0.0
    except ValueError:
        number = 0.0
    if not (isinstance(text, str) and number > 0):
        raise SpecError(field, value, "an amount above 0, such as 2, 500m or 8Gi")
    if name in _BYTES and number < _LEAST_BYTES:
        raise SpecError(field, value, "4M or more: it counts bytes, so write M, Mi, G or Gi")
    return text


_TYPES = ("bind", "volume", "device")
_ALIASES = {"source": "src", "destination": "dst", "target": "dst", "read_only": "readonly"}
_MOUNT_KEYS = ("type", "src", "dst", "readonly", "perm")
_SWITCH = {"": True, "true": True, "false": False}
# The pod's own mounts: the payload, the termination message, and shared memory (--shm).
_TAKEN = ("/etc/nbtorchjob", "/dev/termination-log", "/dev/shm")


class Mount(FrozenDataclass):
    """A host's folder (bind), a claim (volume) or a host's device at a path of the container.

    ``perm`` is what a device may be used for: some of r(ead), w(rite), m(ake nodes).
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
    """Return each mount as a text, written out. Raises ``SpecError``."""
    parsed = parse_mounts(value, field)
    targets = [mount.dst for mount in parsed]
    for target in targets:
        if targets.count(target) > 1:
            raise SpecError(field, target, "mounted only once")
    return tuple(map(str, parsed))


def parse_mounts(value: Iterable[str], field: str = "mount") -> tuple[Mount, ...]:
    """Return the mounts that the texts describe. Raises ``SpecError``."""
    # The same mount given twice, by a profile and by a line, counts once.
    return tuple(dict.fromkeys(_mount(field, group) for text in value for group in _groups(field, text)))


def _groups(field: str, text: str) -> Iterator[dict[str, str]]:
    group: dict[str, str] = {}
    for token in text.split(","):
        key, _, value = token.partition("=")
        key = _ALIASES.get(key, key)
        if key not in _MOUNT_KEYS:
            raise SpecError(field, token, f"one of {', '.join(_MOUNT_KEYS)}: type=volume,src=CLAIM,dst=/data")
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
        raise SpecError(field, f"type={type_}", " or ".join(f"type={mount_type}" for mount_type in _TYPES))
    if type_ == "volume":
        if not src:
            raise SpecError(field, "", "given a src: the PersistentVolumeClaim's name")
        subdomain(field, src)
    else:
        # TorchX does the same: home folders are often the same on all hosts.
        src = os.path.expanduser(src) if type_ == "bind" else src
        if not src.startswith("/"):
            raise SpecError(field, f"src={src}", f"an absolute path on the host, for type={type_}")
    dst = group.get("dst", src if type_ == "device" else "")
    path = dst.rstrip("/")
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise SpecError(field, f"dst={dst}", "an absolute path in the container, other than /")
    for mount in _TAKEN:
        if path == mount or path.startswith(mount + "/"):
            raise SpecError(field, f"dst={dst}", f"another path: {mount} is reserved for the job (see --shm)")
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
    return Mount(type_, src, path, not set(perm) & set("wm") if device else _SWITCH[readonly], perm)
