"""Taking the pods of a job object away, for a while or for good."""

from __future__ import annotations

from typing import Any

from nbtorchjob.backends.kubernetes.client import Client, Object
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import Api, Target

# Volcano's job has no field for it; its controller acts on Commands (bus.volcano.sh, Volcano 1.15).
_COMMANDS = Api("bus.volcano.sh", "v1alpha1", "commands", "Command")


async def halt(client: Client, kind: Kind, target: Target, mark: str, text: str) -> None:
    """Take its pods away for good; the annotation ``mark`` says why. Raises ``Refusal``."""
    patch: dict[str, Any] = {"metadata": {"annotations": {mark: text}}}
    if kind.suspend:
        patch |= kind.suspended(suspended=True)
    obj = await client.patch(target, patch)
    if not kind.suspend:
        await _command(client, kind, target, obj, "AbortJob")


async def suspend(client: Client, kind: Kind, target: Target, obj: Object, *, suspended: bool) -> None:
    """Take the pods away, or have them made again. Raises ``Refusal``."""
    if kind.suspend:
        await client.patch(target, kind.suspended(suspended=suspended))
    else:
        await _command(client, kind, target, obj, "AbortJob" if suspended else "ResumeJob")


async def _command(client: Client, kind: Kind, target: Target, obj: Object, action: str) -> None:
    meta = obj["metadata"]
    about = {
        "apiVersion": kind.api.group_version,
        "kind": kind.api.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    body = {
        "apiVersion": _COMMANDS.group_version,
        "kind": _COMMANDS.kind,
        "metadata": {"generateName": f"{meta['name']}-", "ownerReferences": [about]},
        "action": action,
        "target": about,
    }
    await client.create(_COMMANDS, target.namespace, body)
