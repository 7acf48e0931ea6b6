"""Checks before a job is sent: what its data would take, and what its image contains."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

from nbtorchjob.backends.base import Backend, Finding
from nbtorchjob.capture import shipped
from nbtorchjob.errors import CaptureError, ClusterError
from nbtorchjob.machine import loop
from nbtorchjob.machine.folders import working
from nbtorchjob.payload import archive
from nbtorchjob.runtime.data import cache as kept
from nbtorchjob.runtime.data import provide, sources
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.spec.config import Elastic, where
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.text import attempts, facts
from nbtorchjob.text import words

_DISK = "ephemeral-storage"


def data_findings(spec: JobSpec) -> Iterator[Finding]:
    """Report for each piece of data whether it exists, how much would be fetched, and whether that fits."""
    cache, place = archive.data_cache(spec)
    total: int | None = 0
    for name, text in spec.data.items():
        scheme = where(text).scheme
        if not scheme:
            yield _folder(name, text, spec)
        elif scheme == "pvc":
            yield Finding(True, f"data {name} is read from the claim {where(text).claim}, and isn't copied")
        else:
            try:
                look = sources.of({"where": text}).look()
            except sources.DataError as exc:
                nodes = ", as seen from here: nodes may have other credentials" if spec.remote else ""
                yield Finding(False, f"data {name}: {exc}{nodes}")
                continue
            amount_text = "an unknown size" if look.size is None else words.size(look.size)
            summary = f"data {name}: {amount_text} in {words.count(len(look.files), 'file')}"
            if cache and not spec.remote and provide.is_complete(kept.place(cache, text, look.version), look):
                yield Finding(True, f"{summary}, there already in {place}")
                continue
            yield Finding(True, f"{summary}, fetched once per node into {place}")
            total = None if look.size is None or total is None else total + look.size
    if total:
        yield _room(total, spec, cache)


def _room(total: int, spec: JobSpec, cache: str) -> Finding:
    """Report whether the data to fetch fits into its destination, as far as that is known."""
    if not spec.remote:
        existing = next(folder for folder in (Path(cache), *Path(cache).parents) if folder.is_dir())
        free = shutil.disk_usage(existing).free
        text = f"{words.size(total)} would be fetched into {cache}, where {words.size(free)} are free"
        return Finding(total <= free, text, "" if total <= free else f"free some of it: {cache}")
    if cache:
        text = f"{words.size(total)} would be fetched into {cache}: the node looks for room first"
        return Finding(True, text)
    text, limit = (
        f"{words.size(total)} would be fetched to each pod's own disk",
        spec.cluster.limit.get(_DISK),
    )
    if limit is None:
        return Finding(True, f"{text}, which has no set limit")
    fits = total <= amount(limit)
    remedy = "" if fits else f"raise --limit {_DISK}=…, or name a --data-cache"
    return Finding(fits, f"{text}, limited to {limit}", remedy)


def _folder(name: str, text: str, spec: JobSpec) -> Finding:
    alone = replace(spec, data={name: text})
    try:
        shipped.check_data(alone, working())
        if not spec.remote:
            return Finding(True, f"data {name}: ranks find it at {shipped.data_path(text, working())}")
        (folder,) = shipped.collect_data(alone, working())
    except CaptureError as exc:
        return Finding(False, str(exc))
    summary = f"{words.size(folder.size)} in {words.count(len(folder.files), 'file')}"
    return Finding(True, f"data {name}: {summary}, sent once to {spec.cluster.storage}, by digest")


_PATIENCE_S = 600.0  # an image may have to be pulled


def small(spec: JobSpec, image: str | None) -> JobSpec:
    """Return the spec of a job that probes an image: with its mounts, without what only real work needs."""
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
    """Follow a probing job until its node has reported, and delete it; raises ``ClusterError`` otherwise."""
    try:
        state = loop.run(_followed(backend, info))
    finally:
        backend.delete(info.address)
    if state.environment is None:
        why = attempts.lines(state) or [wait.text for wait in state.waiting]
        ended = f"is {facts.phase(state).lower()} after {words.duration(_PATIENCE_S)}"
        raise ClusterError(f"the image didn't report what it has: {info.name} {' '.join(why) or ended}")


async def _followed(backend: Backend, info: JobInfo) -> JobState:
    state = JobState(info)
    with suppress(asyncio.TimeoutError):
        async with loop.timeout(_PATIENCE_S), aclosing(backend.follow(info.address)) as events:
            async for event in events:
                state = apply(state, event)
                if state.environment is not None:
                    break
    return state
