"""A user's patch laid over a pod template, much as ``kubectl patch`` would.

Mappings are merged, and null removes a key. Lists of mappings are merged by ``name`` (volume mounts by
``mountPath``); entries without one are appended, and so are tolerations. Other lists are replaced. A
container without a name is the job's own, whatever the kind calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {"volumeMounts": "mountPath"}


def patched(template: Mapping[str, Any], patch: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return the template with the patch laid over it; ``container`` is the job's own."""
    return _merged(template, _named(patch, container))


def _named(patch: Mapping[str, Any], container: str) -> dict[str, Any]:
    spec = patch.get("spec") or {}
    if not isinstance(spec.get("containers"), list):
        return dict(patch)
    containers = [{"name": container, **entry} for entry in spec["containers"]]
    return {**patch, "spec": {**spec, "containers": containers}}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in old.items() if new.get(key, value) is not None}
    for key, value in new.items():
        if value is not None:
            merged[key] = _value(key, old.get(key), value)
    return merged


def _value(key: str, old: Any, new: Any) -> Any:
    if isinstance(new, Mapping):
        return _merged(old if isinstance(old, Mapping) else {}, new)
    if isinstance(old, list) and isinstance(new, list) and all(isinstance(e, Mapping) for e in (*old, *new)):
        return _list(_KEYS.get(key, "name"), old, new)
    return new


def _list(key: str, old: list[Any], new: list[Any]) -> list[Any]:
    merged = list(old)
    at = {entry[key]: i for i, entry in enumerate(old) if key in entry}
    for entry in new:
        index = at.get(entry.get(key))
        if index is None:
            merged.append(_merged({}, entry))
        else:
            merged[index] = _merged(merged[index], entry)
    return merged
