"""Where a job's data comes from (``--data NAME=WHERE``): the kinds of places, and what each may look like."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from nbtorchjob.errors import SpecError
from nbtorchjob.runtime.facts.described import has_password
from nbtorchjob.spec.validation import Frozen

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_STORES = ("s3", "gs", "gcs", "az", "abfs")
_SCHEMES = ("hf", *_STORES, "https", "http", "pvc")
_FORMS = "hf://datasets/ORG/NAME, hf://ORG/MODEL, s3://…, gs://…, https://…, pvc://CLAIM/PATH or ./FOLDER"
CLAIMS = "/nbtorchjob-data"  # in a pod, where claims with data are mounted


class Where(NamedTuple):
    """A place that data comes from: ``scheme`` is "" for a path of this machine."""

    scheme: str
    text: str

    @property
    def claim(self) -> str:
        """The claim of ``pvc://CLAIM/PATH``."""
        return urlsplit(self.text).netloc

    def mounted(self, name: str) -> str:
        """Return where its data lies in a pod."""
        return f"{CLAIMS}/{name}{urlsplit(self.text).path}".rstrip("/")


def where(text: str) -> Where:
    """Return the place that a valid text names."""
    scheme = urlsplit(text).scheme if "://" in text else ""
    return Where(scheme, text)


def places(value: object) -> Frozen[str]:
    """Return places by the names of their data; raises ``SpecError``."""
    if not isinstance(value, Mapping):
        raise SpecError("data", value, "a mapping of names to places")
    for name, text in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError("data", name, "NAME=WHERE, with a name of letters, digits, '-', '_' and '.'")
        if not isinstance(text, str) or not text or not text.isprintable():
            raise SpecError("data", text, _FORMS)
        if "://" in text:
            _check(text)
    return Frozen({name: os.fspath(text) for name, text in value.items()})


def _check(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise SpecError("data", text, _FORMS)
    if has_password(text) or parts.password:
        raise SpecError("data", text.replace(parts.password or text, "…"), "a place without a password in it")
    words = [*filter(None, (parts.netloc + parts.path).split("/"))]
    if ".." in words:
        raise SpecError("data", text, "a place without '..'")
    if parts.scheme == "pvc" and not _CLAIM.fullmatch(parts.netloc):
        raise SpecError("data", text, "pvc://CLAIM/PATH, with the name of a PersistentVolumeClaim")
    if parts.scheme == "hf" and words[0] in ("datasets", "models", "spaces") and len(words) < 2:
        raise SpecError("data", text, f"hf://{words[0]}/ORG/NAME")
