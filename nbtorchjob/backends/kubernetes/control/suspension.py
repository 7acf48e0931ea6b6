"""Taking the pods of a job object away, for a while or for good."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.control import holding
from nbtorchjob.backends.kubernetes.kinds.base import Commands, Kind
from nbtorchjob.backends.kubernetes.objects.paths import WORKLOADS, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import NotFoundError, UnheededError
from nbtorchjob.state import events as ev

# While a job restarts, as long as its pods take to end, Volcano (1.15) takes a Command off its bus and
# forgets it: it is given again, until it shows.
_SHOWS_WITHIN_S = 2.0
_LOOK_S = 0.1


async def halt(
    session: Session,
    kind: Kind,
    target: Target,
    mark: str,
    text: str,
    *,
    within: float,
    last: holding.Last | None = None,
) -> None:
    """Take its pods away for good, where nothing holds by the ``last`` means; ``mark`` says why.

    Raises ``ClusterError``; an ``UnheededError`` where the operator doesn't begin to in ``within`` seconds.
    """
    client = session.client
    patch: dict[str, Any] = {"metadata": {"annotations": {mark: text}}}
    queued = kind.suspend and await _queued(session, kind, target)
    if kind.suspend and not queued:
        patch |= kind.suspended(suspended=True)
    # What is to be is written down first: whoever comes later does what a killed kernel didn't.
    obj = await client.patch(target, patch)
    if queued:
        with suppress(NotFoundError):  # what somebody has deleted meanwhile runs no more
            await holding.hold(session, kind, target, for_good=True, within=within, last=last)
    if kind.commands is not None:
        await _command(client, kind, kind.commands, target, obj, within, suspended=True)


async def suspend(
    session: Session, kind: Kind, target: Target, obj: Object, *, suspended: bool, within: float
) -> None:
    """Take the pods away, or have them made again. Raises as :func:`halt` does."""
    client = session.client
    if await holding.decides(session, kind, obj):
        if suspended:
            await holding.hold(session, kind, target, for_good=False, within=within)
        else:
            await holding.release(session, kind, target, obj)
    elif kind.commands is None:
        await client.patch(target, kind.suspended(suspended=suspended))
    else:
        await _command(client, kind, kind.commands, target, obj, within, suspended=suspended)


async def _queued(session: Session, kind: Kind, target: Target) -> bool:
    """Whether the job is in a queue of Kueue's; nobody is asked where the cluster has none."""
    if await session.newest(WORKLOADS) is None:
        return False
    return await holding.decides(session, kind, await session.client.get(target))


async def _command(
    client: Client,
    kind: Kind,
    commands: Commands,
    target: Target,
    obj: Object,
    within: float,
    *,
    suspended: bool,
) -> None:
    until = time.monotonic() + within
    while time.monotonic() < until:
        await client.create(commands.api, target.namespace, commands.command(obj, suspended))
        if await _shows(client, kind, target, suspended=suspended):
            return
    raise UnheededError(
        f"{target.name}: its pods don't end, and its operator heeds nothing before that; try again"
    )


async def _shows(client: Client, kind: Kind, target: Target, *, suspended: bool) -> bool:
    """Whether the job comes to show what a Command asks for."""
    until = time.monotonic() + _SHOWS_WITHIN_S
    while time.monotonic() < until:
        try:
            facts = kind.facts(await client.get(target))
        except NotFoundError:
            return suspended  # somebody has deleted it meanwhile
        paused = any(isinstance(fact, ev.Suspended) and fact.suspended for fact in facts)
        ended = any(isinstance(fact, ev.Verdict) for fact in facts)
        if (paused or ended) if suspended else not paused:
            return True
        await asyncio.sleep(_LOOK_S)
    return False
