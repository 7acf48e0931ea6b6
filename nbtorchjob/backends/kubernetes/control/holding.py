"""Keeping a job that is in a queue from running: what holds against Kueue, which takes suspensions back.

Theory of operation
===================

While a job's Workload is admitted, Kueue sets the job's own field for a suspension back, within 0.3 s. What
holds depends on where the job stands, and on what its user may do (Kueue 0.19; its stock roles let users read
Workloads, and change none):

    what is done                             holds                            recorded in
    ---------------------------------------  -------------------------------  ----------------------------
    its Workload is deactivated, and then    until it is activated: wherever  kueue-suspend-and-deactivate
    the job suspended                        one may patch Workloads
    the job suspended alone                  not at all                       kueue-suspend-admitted
    its label names a queue that nobody has  while it is queued; for one that kueue-queued-to-absent-queue
                                             was admitted it does nothing     (kueue-suspend-and-to-...)
    it gets a deadline that has passed       for good, once it was admitted   kueue-deadline-admitted
    it is deleted, with its record, logs     for good                         kueue-delete-admitted
    and value kept here

Deleting is for a job that was cancelled, where nothing else is left: a TrainJob keeps a deadline that it has
(trainer 2.3). Each is looked at until it shows. A job may be admitted at any moment meanwhile: then the
next one is tried. Doing any of it twice changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeAlias

from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.jobs import queueing
from nbtorchjob.backends.kubernetes.kinds import Commands, Kind
from nbtorchjob.backends.kubernetes.objects import labelling, reading, workloads
from nbtorchjob.backends.kubernetes.objects.reading import WORKLOADS, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import (
    ApiError,
    ClusterError,
    ForbiddenError,
    NBTorchJobError,
    NotFoundError,
    UnheededError,
)
from nbtorchjob.state.facts import events as ev
from nbtorchjob.text.hints import hint

# Ends a job for good whatever its queue does.
Last: TypeAlias = Callable[[], Awaitable[None]]

_LOOK_S = 0.1
_UNSEEN_S = 2.0  # for Kueue to show what it makes of a change, where nobody may read its Workload
_AGAIN_S = 2.0  # a PyTorchJob's operator looks at the clock only as something changes (1.9)


def applies(kind: Kind, obj: Object) -> bool:
    """Whether Kueue decides when a job runs, where the cluster has it."""
    return bool(kind.suspend and workloads.queue(obj))


async def decides(session: Session, kind: Kind, obj: Object) -> bool:
    """Whether Kueue decides when a job runs; nobody is asked for a job that names no queue."""
    return applies(kind, obj) and await session.newest(WORKLOADS) is not None


async def hold(
    session: Session,
    kind: Kind,
    target: Target,
    *,
    for_good: bool,
    within: float,
    last: Last | None = None,
) -> None:
    """Keep a job from running: until it is released, or ``for_good``; by the ``last`` means, if one is given.

    Raises ``ClusterError``; ``ForbiddenError`` where nothing that is permitted holds for a while only, an
    ``UnheededError`` where nothing shows in ``within`` seconds.
    """
    until = time.monotonic() + within
    if await _deactivated(session, kind, target, until):
        return
    moved = await _moved(session, kind, target, until)
    if moved:
        return
    if not for_good:
        raise ForbiddenError(
            f"{target.name} runs: its queue takes a suspension back, and deactivating its Workload isn't "
            f"permitted here (patch workloads): {hint('cancel', target.name or '')} ends it for good"
        )
    # End an admitted job by a deadline that has passed, or by the last means
    try:
        await session.client.patch(target, dict(kind.ended))
    except ApiError as exc:
        if exc.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        if last is not None:
            await last()
            return
        raise ClusterError(
            f"{target.name} runs, and its queue takes a suspension back; its deadline can't be changed, and "
            f"deactivating its Workload isn't permitted: {hint('delete', target.name or '')} ends it"
        ) from exc
    look = time.monotonic() + _AGAIN_S
    while time.monotonic() < until:
        obj = await session.client.get(target)
        if _over(kind, obj) or (kind.suspends(obj) and _inactive(await _workload(session, target, obj))):
            return  # or somebody else, who may, has deactivated it meanwhile
        if time.monotonic() > look:
            look += _AGAIN_S
            note = {labelling.POKED: labelling.mark(session.client.now())}
            await session.client.patch(target, {"metadata": {"annotations": note}})
        await asyncio.sleep(_LOOK_S)
    raise UnheededError(f"{target.name}: its operator doesn't end it; try again")


async def release(session: Session, target: Target, obj: Object) -> None:
    """Let a job be admitted again that was held. Raises ``ClusterError``."""
    if back := labelling.returned(obj):
        if not back["labels"][labelling.QUEUE]:
            raise NBTorchJobError(
                f"{target.name}: nobody wrote down which queue it goes back to; run it again"
            )
        await session.client.patch(target, {"metadata": back})
    workload = await _workload(session, target, obj)
    if workload is not None and _inactive(workload):
        await _set_active(session, workload, active=True)


async def _deactivated(session: Session, kind: Kind, target: Target, until: float) -> bool:
    """Deactivate the Workload and suspend the job; False where that isn't permitted, or there is none."""
    obj = await session.client.get(target)
    workload = await _workload(session, target, obj)
    if workload is None:
        return False
    try:
        await _set_active(session, workload, active=False)
    except (ForbiddenError, NotFoundError):
        return False
    await session.client.patch(target, kind.suspended(suspended=True))
    while time.monotonic() < until:
        obj = await session.client.get(target)
        workload = await _workload(session, target, obj)
        # Kueue has taken note that a Workload is deactivated, and starts its job no more.
        noted = (
            workload is None
            or reading.condition(workload, "Evicted") is not None
            or reading.condition(workload, "QuotaReserved") is None
        )
        if workload is None or _over(kind, obj) or (kind.suspends(obj) and noted):
            return True
        await asyncio.sleep(_LOOK_S)
    raise UnheededError(f"{target.name}: Kueue takes no note of its Workload's end; try again")


async def _moved(session: Session, kind: Kind, target: Target, until: float) -> bool:
    """Move a queued job to a queue that nobody has; False for one that is admitted, or has ended."""
    obj = await session.client.get(target)
    if not kind.suspends(obj) or _over(kind, obj):
        return _over(kind, obj)
    if workloads.queue(obj) != labelling.HELD:
        try:
            await session.client.patch(target, {"metadata": labelling.parked(workloads.queue(obj))})
        except ForbiddenError:
            if kind.suspends(await session.client.get(target)):
                raise
            return False  # it has just been admitted: then its label can't be changed
    unseen = time.monotonic() + _UNSEEN_S
    while time.monotonic() < until:
        obj = await session.client.get(target)
        if not kind.suspends(obj):
            return False
        workload = await _workload(session, target, obj)
        if workload is None and time.monotonic() > unseen:
            return True
        if workload is not None:
            moved = (workload.get("spec") or {}).get("queueName") == labelling.HELD
            if moved and reading.condition(workload, "QuotaReserved") is None:
                return True
        await asyncio.sleep(_LOOK_S)
    raise UnheededError(f"{target.name}: Kueue takes no note of its queue; try again")


def _over(kind: Kind, obj: Object) -> bool:
    return any(isinstance(fact, ev.Verdict) for fact in kind.facts(obj))


async def _workload(session: Session, target: Target, obj: Object) -> Object | None:
    return await queueing.workload(session, target.namespace or "", obj["metadata"]["uid"])


def _inactive(workload: Object | None) -> bool:
    return workload is not None and (workload.get("spec") or {}).get("active") is False


async def _set_active(session: Session, workload: Object, *, active: bool) -> None:
    api = await session.newest(WORKLOADS)
    assert api is not None, "a Workload was read"
    meta = workload["metadata"]
    change: dict[str, Any] = {"spec": {"active": active}}
    await session.client.patch(Target(api, meta["namespace"], meta["name"]), change)


# While a job restarts, as long as its pods take to end, Volcano (1.15) takes a Command off its bus and
# forgets it: it is given again, until it shows.
_SHOWS_WITHIN_S = 2.0


async def halt(
    session: Session,
    kind: Kind,
    target: Target,
    mark: str,
    text: str,
    *,
    within: float,
    last: Last | None = None,
) -> None:
    """Take its pods away for good, where nothing holds by the ``last`` means; ``mark`` says why.

    Raises ``ClusterError``; an ``UnheededError`` where the operator doesn't begin to in ``within`` seconds.
    """
    client = session.client
    patch: dict[str, Any] = {"metadata": {"annotations": {mark: text}}}
    # Whether the job is in a queue of Kueue's; nobody is asked where the cluster has none.
    queued = bool(kind.suspend) and await session.newest(WORKLOADS) is not None
    if queued:
        queued = await decides(session, kind, await client.get(target))
    if kind.suspend and not queued:
        patch |= kind.suspended(suspended=True)
    # What is to be is written down first: whoever comes later does what a killed kernel didn't.
    obj = await client.patch(target, patch)
    if queued:
        with suppress(NotFoundError):  # what somebody has deleted meanwhile runs no more
            await hold(session, kind, target, for_good=True, within=within, last=last)
    if kind.commands is not None:
        await _command(client, kind, kind.commands, target, obj, within, suspended=True)


async def suspend(
    session: Session, kind: Kind, target: Target, obj: Object, *, suspended: bool, within: float
) -> None:
    """Take the pods away, or have them made again. Raises as :func:`halt` does."""
    client = session.client
    if await decides(session, kind, obj):
        if suspended:
            await hold(session, kind, target, for_good=False, within=within)
        else:
            await release(session, target, obj)
    elif kind.commands is None:
        await client.patch(target, kind.suspended(suspended=suspended))
    else:
        await _command(client, kind, kind.commands, target, obj, within, suspended=suspended)


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
