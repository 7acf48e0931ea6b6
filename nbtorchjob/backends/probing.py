"""Asking an image what it has, by a job of one small node that is removed as soon as that has told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace

from nbtorchjob.backends.base import Backend
from nbtorchjob.errors import ClusterError
from nbtorchjob.machine import loop
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.text import attempts, facts
from nbtorchjob.text import words

_PATIENCE_S = 600.0  # an image may have to be pulled


def small(spec: JobSpec, image: str | None) -> JobSpec:
    """Return the spec of such a job: an image with what is mounted there, without what only work needs."""
    cluster = replace(
        spec.cluster,
        image=image,
        cpu="500m",
        memory="1Gi",
        gpu=None,
        device={},
        limit={},
        request={},
        shm=None,
        checkpoints=None,
    )
    return JobSpec(Elastic(), backend=spec.backend, env=spec.env, cluster=cluster)


def ask(backend: Backend, info: JobInfo) -> None:
    """Follow such a job until its node has told, and remove it; raises ``ClusterError`` otherwise."""
    try:
        state = loop.run(_followed(backend, info))
    finally:
        backend.delete(info.address)
    if state.environment is None:
        why = attempts.lines(state) or [wait.text for wait in state.waiting]
        ended = f"is {facts.phase(state).lower()} after {words.duration(_PATIENCE_S)}"
        raise ClusterError(f"the image didn't tell what it has: {info.name} {' '.join(why) or ended}")


async def _followed(backend: Backend, info: JobInfo) -> JobState:
    state = JobState(info)

    async def follow() -> None:
        nonlocal state
        async with aclosing(backend.follow(info.address)) as events:
            async for event in events:
                state = apply(state, event)
                if state.environment is not None:
                    return

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(follow(), _PATIENCE_S)
    return state
