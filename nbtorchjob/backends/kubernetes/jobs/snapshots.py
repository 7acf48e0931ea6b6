"""Reading a job once, its logs included, without following it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from itertools import chain
from typing import TypeGuard

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.jobs import queueing
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef, closed, facts, vanished
from nbtorchjob.backends.kubernetes.logs import decode, follow
from nbtorchjob.backends.kubernetes.logs.cache import JobCache, Pod
from nbtorchjob.backends.kubernetes.logs.decode import Fresh, Reader
from nbtorchjob.state import JobState, apply
from nbtorchjob.state import events as ev


async def snapshot(job: JobRef) -> JobState:
    """Return all that is known of a job now."""
    return reduce(apply, await facts_now(job), JobState(await job.whole_info()))


async def facts_now(job: JobRef) -> list[ev.Event]:
    """Return the facts of a job that are known now, its end last."""
    pods = await job.pods()
    queued = await queueing.facts(job)
    found = [*job.cache.facts(), *facts(job, pods), *queued, *await _logs(job, pods)]
    found = [fact for fact in found if not isinstance(fact, ev.Closed | ev.Removed)]
    state = reduce(apply, found, JobState(job.info))
    if state.cancelled is not None:
        # Listed last: a pod that is known by now and not there is gone.
        present = {pod["metadata"]["uid"] for _, pod in await job.pods()}
        found += (gone := vanished(state, present))
        state = reduce(apply, gone, state)
    end = closed(state).closed
    return found if end is None else [*found, ev.Closed(end)]


async def cached(job: JobRef) -> JobState:
    """Cache what is known of a job, unless somebody here follows it anyway; return what is known."""
    state, cache = await snapshot(job), job.cache
    if cache.claim(state.info):
        try:
            for fact in (
                *facts(job, await job.pods()),
                *([] if state.closed is None else [ev.Closed(state.closed)]),
            ):
                cache.note(fact)
        finally:
            cache.release()
    return state


def from_cache(cache: JobCache) -> Iterator[ev.Event]:
    """Yield all that this machine knows of a job that is gone from its cluster, its end last."""
    ends: list[ev.Event] = []
    seen = False
    for fact in chain(cache.facts(), decode.cached_logs(cache)):
        seen = seen or isinstance(fact, ev.Verdict | ev.Removed | ev.CancelRequested)
        if isinstance(fact, ev.Closed):
            ends.append(fact)
        else:
            yield fact
    if not seen:
        ends = [ev.Lost(time.time(), "the job was deleted from the cluster, and nobody here saw its end")]
    yield from ends or [ev.Closed(time.time())]


async def log(job: JobRef, ranks: Collection[int]) -> list[ev.Event]:
    """Return what these ranks wrote, pod by pod; of pods that are gone, what was cached here."""
    wanted = frozenset(ranks)
    return await _logs(
        job, await job.pods(), lambda event: isinstance(event, ev.LogChunk) and event.rank in wanted
    )


def chunks(events: Iterable[ev.Event], rank: int) -> Iterator[ev.LogChunk]:
    """Yield a rank's chunks by round and offset, no byte twice."""
    fresh = Fresh({})
    for chunk in _sorted(events, rank):
        new = fresh.part(chunk)
        if isinstance(new, ev.LogChunk):
            yield new


def _sorted(events: Iterable[ev.Event], rank: int) -> list[ev.LogChunk]:
    found = [event for event in events if _by(event, rank)]
    return sorted(found, key=lambda chunk: (chunk.round, chunk.offset))


def _by(event: ev.Event, rank: int) -> TypeGuard[ev.LogChunk]:
    return isinstance(event, ev.LogChunk) and event.rank == rank


async def _logs(
    job: JobRef, numbered: Iterable[tuple[int, Object]], wanted: Callable[[ev.Event], bool] = lambda _: True
) -> list[ev.Event]:
    pods = {Pod(node, pod["metadata"]["uid"]): pod["metadata"]["name"] for node, pod in numbered}
    cache = job.cache
    found: list[ev.Event] = []
    for pod in dict.fromkeys((*cache.pods(), *pods)):
        reader = Reader(pod, cache)
        found += filter(wanted, decode.cached_log(reader, cache.lines(pod)))
        if pod in pods:
            client, namespace = job.session.client, job.scope.namespace
            async for lines in follow.read_all(client, namespace, pods[pod], job.kind.container):
                found += filter(wanted, reader.events(lines))
    return found


def rank_log(events: Iterable[ev.Event], rank: int) -> list[bytes]:
    """Return a rank's log: its chunks by round and offset, none twice; what is missing is said."""
    out: list[bytes] = []
    round_, end = -1, 0
    for chunk in _sorted(events, rank):
        if chunk.round != round_:
            round_, end = chunk.round, 0
        if chunk.offset > end:
            out.append(b"[%d bytes are gone: the container's log was rotated]\n" % (chunk.offset - end))
        out.append(chunk.data[max(0, end - chunk.offset) :])
        end = max(end, chunk.offset + len(chunk.data))
    return out


def behind(offset: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a log, without its first ``offset`` bytes."""
    for piece in pieces:
        if offset < len(piece):
            yield piece[offset:]
        offset = max(0, offset - len(piece))
