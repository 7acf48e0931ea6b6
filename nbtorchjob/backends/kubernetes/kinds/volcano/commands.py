"""How a Volcano Job is suspended: it has no field for it, but its controller obeys Commands (1.15)."""

from __future__ import annotations

from typing import Any

from nbtorchjob.backends.kubernetes.kinds.volcano.manifest import API
from nbtorchjob.backends.kubernetes.objects.paths import COMMANDS
from nbtorchjob.backends.kubernetes.objects.reading import Object


def command(obj: Object, suspended: bool) -> dict[str, Any]:
    """Return the Command that suspends a job, or resumes it."""
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
