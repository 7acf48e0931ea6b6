"""Taking the pods of a job object away, for a while or for good."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from nbtorchjob import events as ev
from nbtorchjob.backends.kubernetes.client import Client, Object
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import COMMANDS, Target

# Volcano's job has no field for it; its controller acts on Commands (bus.volcano.sh, Volcano 1.15).
_ABORT, _RESUME = "AbortJob", "ResumeJob"
# While a job restarts a Command is taken off its bus and forgotten (1.15): it is given again, until it shows.
_TRIES = 6
_SHOWS_WITHIN_S = 2.0
_LOOK_S = 0.1


async def halt(client: Client, kind: Kind, target: Target, mark: str, text: str) -> None:
    """Take its pods away for good; the annotation ``mark`` says why. Raises ``Refusal``."""
    patch: dict[str, Any] = {"metadata": {"annotations": {mark: text}}}
    if kind.suspend:
        patch |= kind.suspended(suspended=True)
    obj = await client.patch(target, patch)
    if not kind.suspend:
        await _command(client, kind, target, obj, _ABORT)


async def suspend(client: Client, kind: Kind, target: Target, obj: Object, *, suspended: bool) -> None:
    """Take the pods away, or have them made again. Raises ``Refusal``."""
    if kind.suspend:
        await client.patch(target, kind.suspended(suspended=suspended))
    else:
        await _command(client, kind, target, obj, _ABORT if suspended else _RESUME)


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
        "apiVersion": COMMANDS.group_version,
        "kind": COMMANDS.kind,
        "metadata": {"generateName": f"{meta['name']}-", "ownerReferences": [about]},
        "action": action,
        "target": about,
    }
    for _ in range(_TRIES):
        await client.create(COMMANDS, target.namespace, body)
        if await _shows(client, kind, target, action):
            return


async def _shows(client: Client, kind: Kind, target: Target, action: str) -> bool:
    """Whether the job comes to what a Command asks for."""
    until = time.monotonic() + _SHOWS_WITHIN_S
    while time.monotonic() < until:
        facts = kind.facts(await client.get(target))
        paused = any(isinstance(fact, ev.Suspended) and fact.suspended for fact in facts)
        ended = any(isinstance(fact, ev.Verdict) for fact in facts)
        if (paused or ended) if action == _ABORT else not paused:
            return True
        await asyncio.sleep(_LOOK_S)
    return False
