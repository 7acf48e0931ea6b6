"""Suspending a Volcano Job, which has no field for it: its controller acts on Commands (Volcano 1.15)."""

from __future__ import annotations

from typing import Any

from nbtorchjob.backends.kubernetes.kinds.volcano.manifest import API
from nbtorchjob.backends.kubernetes.objects.paths import COMMANDS
from nbtorchjob.backends.kubernetes.objects.reading import Object


def command(obj: Object, suspended: bool) -> dict[str, Any]:
    """Return the Command that has a job suspended, or resumed."""
    meta = obj["metadata"]
    about = {
        "apiVersion": API.group_version,
        "kind": API.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": COMMANDS.group_version,
        "kind": COMMANDS.kind,
        "metadata": {"generateName": f"{meta['name']}-", "ownerReferences": [about]},
        "action": "AbortJob" if suspended else "ResumeJob",
        "target": about,
    }
