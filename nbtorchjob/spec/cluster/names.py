"""What Kubernetes allows as a name, a label, an annotation."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.validation import Frozen, texts

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
    """Check what variables are taken from: ``secret/NAME``."""
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
    size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
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
