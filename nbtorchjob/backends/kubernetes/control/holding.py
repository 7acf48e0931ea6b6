"""Keep a job in a queue from running, although Kueue takes suspensions back.

Theory of operation
===================

While a job's Workload is admitted, Kueue resets the job's own suspension field within 0.3 s. What holds
depends on the state of the job and on its user's permissions (Kueue 0.19; its stock roles let users read
Workloads, but not change them):

    what is done                             holds                            recorded in
    ---------------------------------------  -------------------------------  ----------------------------
    its Workload is deactivated, and then    until it is activated; needs     kueue-suspend-and-deactivate
    the job suspended                        permission to patch Workloads
    only the job is suspended                not at all                       kueue-suspend-admitted
    its label names a queue that is absent   while it is queued; once it is   kueue-queued-to-absent-queue
                                             admitted, not at all             (kueue-suspend-and-to-...)
    it gets a deadline that has passed       for good, once it was admitted   kueue-deadline-admitted
    it is deleted, with its record, logs     for good                         kueue-delete-admitted
    and value kept here

Deletion is for a cancelled job when nothing else is left: a TrainJob's deadline can't be changed once it is
set (trainer 2.3). After each step the job is polled until it shows the effect. If it is admitted meanwhile,
the next step is tried. Each step is idempotent.
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
_UNSEEN_S = 2.0  # for Kueue to react to a change, where this user may not read the Workload
_AGAIN_S = 2.0  # a PyTorchJob's operator checks the time only when something changes (1.9)


def applies(kind: Kind, obj: Object) -> bool:
    """Whether Kueue decides when a job runs, if the cluster has Kueue."""
    return bool(kind.suspend and workloads.queue(obj))


async def decides(session: Session, kind: Kind, obj: Object) -> bool:
    """Whether Kueue decides when a job runs; makes no request for a job that names no queue."""
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
    """Keep a job from running until it is released, or ``for_good``; ``last`` is the last resort, if given.

    Raises ``ClusterError``; ``ForbiddenError`` if the user may do nothing that holds only for a while, and
    ``UnheededError`` if nothing shows an effect in ``within`` seconds.
    """
    until = time.monotonic() + within
    if await _deactivated(session, kind, target, until):
        return
    moved = await _moved(session, kind, target, until)
    if moved:
        return
    if not for_good:
        raise ForbiddenError(
            f"{target.name} is running: its queue would undo a suspension, and deactivating its Workload "
            f"isn't permitted here (patch workloads): {hint('cancel', target.name or '')} ends it for good"
        )
    # End an admitted job by a deadline that has passed, or by the last resort
    try:
        await session.client.patch(target, dict(kind.ended))
    except ApiError as exc:
        if exc.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        if last is not None:
            await last()
            return
        raise ClusterError(
            f"{target.name} is running, and its queue would undo a suspension; its deadline can't be "
            "changed, and deactivating its Workload isn't permitted: "
            f"{hint('delete', target.name or '')} ends it"
        ) from exc
    look = time.monotonic() + _AGAIN_S
    while time.monotonic() < until:
        obj = await session.client.get(target)
        if _over(kind, obj) or (kind.suspends(obj) and _inactive(await _workload(session, target, obj))):
            return  # or somebody with the permission has deactivated it meanwhile
        if time.monotonic() > look:
            look += _AGAIN_S
            note = {labelling.POKED: labelling.mark(session.client.now())}
            await session.client.patch(target, {"metadata": {"annotations": note}})
        await asyncio.sleep(_LOOK_S)
    raise UnheededError(f"{target.name}: its operator hasn't ended it yet; try again")


async def release(session: Session, target: Target, obj: Object) -> None:
    """Let a job that was held be admitted again. Raises ``ClusterError``."""
    if back := labelling.returned(obj):
        if not back["labels"][labelling.QUEUE]:
            raise NBTorchJobError(f"{target.name}: its original queue isn't recorded; run it again")
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
        # Whether Kueue has noticed that the Workload is deactivated, and no longer starts its job.
        noted = (
            workload is None
            or reading.condition(workload, "Evicted") is not None
            or reading.condition(workload, "QuotaReserved") is None
        )
        if workload is None or _over(kind, obj) or (kind.suspends(obj) and noted):
            return True
        await asyncio.sleep(_LOOK_S)
    raise UnheededError(f"{target.name}: Kueue hasn't noticed that its Workload is deactivated; try again")


async def _moved(session: Session, kind: Kind, target: Target, until: float) -> bool:
    """Move a queued job to an absent queue; False if it is admitted, True also if it has ended."""
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
    raise UnheededError(f"{target.name}: Kueue hasn't noticed its change of queue; try again")


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


# While a job restarts, until its old pods have ended, Volcano (1.15) takes a Command off its bus and forgets
# it: the Command is sent again until it shows an effect.
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
    """Take a job's pods away for good, by the ``last`` resort if nothing else holds; ``mark`` says why.

    Raises ``ClusterError``; ``UnheededError`` if the operator doesn't begin to within ``within`` seconds.
    """
    client = session.client
    patch: dict[str, Any] = {"metadata": {"annotations": {mark: text}}}
    # Whether the job is in a Kueue queue; the job isn't read where the cluster has no Kueue.
    queued = bool(kind.suspend) and await session.newest(WORKLOADS) is not None
    if queued:
        queued = await decides(session, kind, await client.get(target))
    if kind.suspend and not queued:
        patch |= kind.suspended(suspended=True)
    # The mark is written first: if this kernel is killed, a later follower does the rest.
    obj = await client.patch(target, patch)
    if queued:
        with suppress(NotFoundError):  # a job that was deleted meanwhile no longer runs
            await hold(session, kind, target, for_good=True, within=within, last=last)
    if kind.commands is not None:
        await _command(client, kind, kind.commands, target, obj, within, suspended=True)


async def suspend(
    session: Session, kind: Kind, target: Target, obj: Object, *, suspended: bool, within: float
) -> None:
    """Take the pods away, or let them be created again. Raises as :func:`halt` does."""
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
        f"{target.name}: its pods haven't ended yet, and its operator ignores commands until then; try again"
    )


async def _shows(client: Client, kind: Kind, target: Target, *, suspended: bool) -> bool:
    """Whether the job soon shows the effect of a Command."""
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
