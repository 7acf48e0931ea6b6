"""What listed and watched objects are relieved of, so that a thousand jobs stay small (pure)."""

from __future__ import annotations

from typing import Any

from nbtorchjob.backends.kubernetes.objects.paths import CLUSTER_RUNTIMES, RUNTIMES, Api

Object = dict[str, Any]

_BULK = {"template", "volumes", "volumeMounts", "env", "command", "args", "tolerations"}


def slim(found: Object, api: Api) -> Object:
    """Take away, in place, what nothing reads: who manages which field, and what only a pod's start needs."""
    # Of built-in kinds, the items of a list say neither.
    found.setdefault("kind", api.kind)
    found.setdefault("apiVersion", api.group_version)
    found["metadata"].pop("managedFields", None)
    if api not in (RUNTIMES, CLUSTER_RUNTIMES):  # which are templates, and a few
        _prune(found.get("spec"))
    return found


def _prune(part: Any) -> None:
    if isinstance(part, dict):
        for key in _BULK & part.keys():
            del part[key]
        for value in part.values():
            _prune(value)
    elif isinstance(part, list):
        for value in part:
            _prune(value)
