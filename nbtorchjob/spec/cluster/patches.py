"""A pod patch: a mapping, the JSON or YAML of one, or the path of a file that holds it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from nbtorchjob.errors import SpecError

_KEYS = ("metadata", "spec")


def patch(field: str, value: object) -> str:
    """Return the patch as JSON; it is read now, so a file may change afterwards. Raises ``SpecError``."""
    found = _read(field, value) if isinstance(value, str) else value
    if not _is_pods(found):
        allowed = "a mapping with metadata or spec, as a pod has them, as JSON, YAML or a file's path"
        raise SpecError(field, value, allowed)
    try:
        return json.dumps(found, sort_keys=True)
    except (TypeError, ValueError) as exc:
        raise SpecError(field, value, f"what JSON can hold ({exc})") from None


def _is_pods(found: object) -> bool:
    if not isinstance(found, Mapping) or not found or set(found) - set(_KEYS):
        return False
    parts = [part for part in found.values() if part is not None]
    if not all(isinstance(part, Mapping) for part in parts):
        return False
    containers = (found.get("spec") or {}).get("containers", [])
    return isinstance(containers, list) and all(isinstance(each, Mapping) for each in containers)


def _read(field: str, text: str) -> Any:
    path = os.path.expanduser(text.strip())
    # Not Path.is_file, which raises for a text too long for a path (before Python 3.14).
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as exc:
            raise SpecError(field, text, f"a file that can be read ({exc})") from None
    try:
        return json.loads(text)
    except ValueError:
        return _yaml(field, text)


def _yaml(field: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:  # it comes with the kubernetes package
        raise SpecError(field, text, "JSON: YAML can't be read here, PyYAML isn't installed") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        said = " ".join(str(exc).split())
        raise SpecError(field, text, f"JSON or YAML, or a file's path ({said})") from None
