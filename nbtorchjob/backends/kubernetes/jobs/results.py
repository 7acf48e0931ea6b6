"""Read a job once, without following it: its state, logs, values and artifacts, and answers of its nodes.

A node is asked through a command in its pod, which connects to the node's socket.
"""

from __future__ import annotations

import asyncio
import os
import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes import podlog, template
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.connection import Remote
from nbtorchjob.backends.kubernetes.cache import Fresh, JobCache, Pod, Reader, cached_log, cached_logs
from nbtorchjob.backends.kubernetes.jobs import JobRef, briefly, closed, facts, find, queueing, vanished
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.backends.kubernetes.payload import stores
from nbtorchjob.backends.talk import MOST, OLDER, STARTING, Conversation, reachable_nodes, silent
from nbtorchjob.errors import (
    ApiError,
    AskError,
    ClusterError,
    ForbiddenError,
    JobNotFoundError,
    NotFoundError,
    ResultError,
    ValueLostError,
)
from nbtorchjob.machine import loop
from nbtorchjob.payload.program import late
from nbtorchjob.payload.results import FetchedValue
from nbtorchjob.runtime import store
from nbtorchjob.runtime.api.artifacts import artifacts_key
from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.objects.wire import WireError, value_key
from nbtorchjob.runtime.store import frames
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import ArtifactsReady, Sent


async def snapshot(job: JobRef) -> JobState:
    """Return everything that is known about a job now."""
    return reduce(apply, await facts_now(job), JobState(await job.whole_info()))


async def facts_now(job: JobRef) -> list[ev.Event]:
    """Return the facts about a job that are known now, its end last."""
    pods = await job.pods()
    queued = await queueing.facts(job)
    events = [*job.cache.facts(), *facts(job, pods), *queued, *await _logs(job, pods)]
    events = [fact for fact in events if not isinstance(fact, ev.Closed | ev.Removed)]
    state = reduce(apply, events, JobState(job.info))
    if state.cancelled is not None:
        # Pods are listed last: one that is known by now and not in the list is gone.
        present = {pod["metadata"]["uid"] for _, pod in await job.pods()}
        events += (losses := vanished(state, present, job.session.client.now()))
        state = reduce(apply, losses, state)
    end = closed(state).closed
    return events if end is None else [*events, ev.Closed(end)]


async def cached(job: JobRef) -> JobState:
    """Return a job's state; cache its facts, unless a follower here does so anyway."""
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
    """Yield all facts on this machine about a job that is gone from its cluster, its end last."""
    ends: list[ev.Event] = []
    seen = False
    for fact in chain(cache.facts(), cached_logs(cache)):
        seen = seen or isinstance(fact, ev.Verdict | ev.Removed | ev.CancelRequested)
        if isinstance(fact, ev.Closed):
            ends.append(fact)
        else:
            yield fact
    if not seen:
        ends = [ev.Lost(time.time(), "the job was deleted from the cluster before its end was recorded here")]
    yield from ends or [ev.Closed(time.time())]


async def log(job: JobRef, ranks: Collection[int]) -> list[ev.Event]:
    """Return what these ranks wrote, pod by pod; for pods that are gone, what was cached here."""
    rank_set = frozenset(ranks)
    return await _logs(
        job, await job.pods(), lambda event: isinstance(event, ev.LogChunk) and event.rank in rank_set
    )


def chunks(events: Iterable[ev.Event], rank: int) -> Iterator[ev.LogChunk]:
    """Yield a rank's chunks by round and offset, no byte twice."""
    fresh = Fresh({})
    for chunk in _sorted(events, rank):
        new = fresh.part(chunk)
        if isinstance(new, ev.LogChunk):
            yield new


def _sorted(events: Iterable[ev.Event], rank: int) -> list[ev.LogChunk]:
    pieces = [event for event in events if (isinstance(event, ev.LogChunk) and event.rank == rank)]
    return sorted(pieces, key=lambda chunk: (chunk.round, chunk.offset))


async def _logs(
    job: JobRef,
    numbered: Iterable[tuple[int, Object]],
    predicate: Callable[[ev.Event], bool] = lambda _: True,
) -> list[ev.Event]:
    pods = {Pod(node, pod["metadata"]["uid"]): pod["metadata"]["name"] for node, pod in numbered}
    cache = job.cache
    events: list[ev.Event] = []
    for pod in dict.fromkeys((*cache.pods(), *pods)):
        reader = Reader(pod, cache)
        events += filter(predicate, cached_log(reader, cache.lines(pod)))
        if pod in pods:
            client, namespace = job.session.client, job.scope.namespace
            async for lines in podlog.read_all(client, namespace, pods[pod], job.kind.container):
                events += filter(predicate, reader.events(lines))
    return events


def rank_log(events: Iterable[ev.Event], rank: int) -> list[bytes]:
    """Return a rank's log: its chunks by round and offset, none twice; gaps are marked."""
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


async def fetch(name: str, sent: Sent) -> FetchedValue:
    """Return what a job sent, checked with the job's key. Raises ``ResultError``."""
    try:
        job = await find.find(name)
    except JobNotFoundError:
        info, cache = find.cached_job(name)
        key = cache.key()
        if not key:
            raise ValueLostError(
                f"{_subject(sent, info)} can't be checked: the job is gone, and its key with it"
            ) from None
        return await _checked(info, cache, key, sent)
    return await of(job, sent)


async def of(job: JobRef, sent: Sent) -> FetchedValue:
    """Return what a job sent; see :func:`fetch`. A damaged copy here is fetched once more."""
    cache, path = job.cache, job.cache.sent(sent)
    is_cached = await asyncio.to_thread(path.exists)
    try:
        key = await job.key()
        cache.put_key(key)
        if is_cached:
            try:
                return await _checked(await job.whole_info(), cache, key, sent)
            except ValueLostError:  # after a power failure a file may lack its content
                path.unlink(missing_ok=True)
        if sent.ref.startswith(f"{store.LOG}#"):
            await log(job, [])  # reading it also caches what was sent in it (``cache.py``)
    except ClusterError as exc:
        raise ResultError(f"{_subject(sent, job.info)} can't be fetched: {exc}") from exc
    return await _checked(await job.whole_info(), cache, key, sent)


async def _checked(info: JobInfo, cache: JobCache, key: bytes, sent: Sent) -> FetchedValue:
    subject = _subject(sent, info)
    url, _, digest = sent.ref.rpartition("#")
    path = cache.sent(sent)
    try:
        if isinstance(sent, ArtifactsReady):
            key = artifacts_key(key, info.run, sent.attempt, sent.node)
        else:
            key = value_key(key, info.run, sent.round, sent.rank)
        if url == store.LOG:
            data = await asyncio.to_thread(path.read_bytes)
            frames.collect([frames.ValuePart(0, 0, 0, data)], digest, key)
        elif not stores.holds(info.jobspec.cluster.storage, sent):
            raise ValueLostError(f"{subject} is said to be at {url!r}, which isn't in the job's --storage")
        else:
            await asyncio.to_thread(_from_store, subject, sent, path, key)
    except WireError as exc:
        raise ValueLostError(f"{subject} can't be trusted: {exc}") from exc
    except FileNotFoundError:
        raise ValueLostError(
            f"{subject} is gone: it isn't in its pod's log (any more), and wasn't fetched "
            "before; set --storage for jobs whose pods are removed when they end"
        ) from None
    return FetchedValue(path, key, cache.ours)


def _subject(sent: Sent, info: JobInfo) -> str:
    if isinstance(sent, ArtifactsReady):
        return f"the archive of node {sent.node}'s artifacts of {info.name}"
    return f"the value of {info.name}"


def _from_store(subject: str, sent: Sent, path: Path, key: bytes) -> None:
    if path.exists() and path.stat().st_size == sent.size:
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        store.fetch(sent.ref, str(partial), key, sent.size)
        partial.replace(path)
    except WireError:
        raise
    except Exception as exc:  # whatever a store's library raises
        url = sent.ref.rpartition("#")[0]
        raise ResultError(f"{subject} is at {url}, which can't be read from here: {exc}") from exc
    finally:
        partial.unlink(missing_ok=True)


_GONE = "its pod is gone"
_NOT_RUNNING = "its container has ended, or hasn't started"
_CUT = "the connection to it was cut"
_QUIET_S = 60  # of silence, after which a conversation with a node ends
_AHEAD = 64  # pieces that wait to be taken, of at most 32 KiB from an API server (1.36)
_LOOK_S = 0.02
_KILLED = 137  # by SIGKILL, as is everything in a container whose first process ends
_ENDS = {
    questions.NO_NODE: STARTING,
    questions.NO_PAYLOAD: STARTING,
    questions.OLDER: OLDER,
    # The node has closed its socket, which a killed pod may do before the command in it is killed.
    0: "it was ended meanwhile",
    _KILLED: "it was ended meanwhile",
}


async def ask(
    job: JobRef,
    question: Mapping[str, Any],
    nodes: Sequence[int] | None,
    timeout: float,
    tell: Callable[[NodeAnswer], None],
) -> None:
    """Pass on each node's answer as it comes. Raises ``JobEndedError``, ``ClusterError``, ``DamagedError``.

    The timeout counts for each node from when it is asked; ``MOST`` nodes are asked at a time.
    """
    pods = {pod["metadata"]["uid"]: pod for _, pod in await job.pods()}
    state = briefly(job, pods.values())
    recipients, answers = reachable_nodes(state, nodes)
    for answer in answers:
        tell(answer)
    if not recipients:
        return
    key, free, question = await job.key(), asyncio.Semaphore(MOST), whole(question)

    async def ask_node(node: int) -> None:
        talk = Conversation(node, questions.node_key(key, job.info.run, node), question)
        async with free:
            try:
                async with loop.timeout(timeout):
                    await _converse(job, pods[state.nodes[node].life.pod], talk, timeout)
            except asyncio.TimeoutError:  # the builtin one only from Python 3.11 on
                talk.end(silent(timeout))
            except ClusterError as exc:
                talk.end(_why(exc))
        tell(talk.answer)

    await asyncio.gather(*map(ask_node, recipients))


def whole(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question with the modules that its answer needs, which payloads of cluster jobs lack."""
    return {**question, questions.MODULES: late(str(question["question"]))}


async def _converse(job: JobRef, pod: Object, talk: Conversation, timeout: float) -> None:
    async with _leading(job, pod, int(timeout) + 2) as remote:
        while not talk.over:
            data = await remote.receive()
            if not data:
                talk.end(_ended(remote))
            elif message := talk.hear(data):
                await remote.send(message)


def _leading(job: JobRef, pod: Object, seconds: int) -> AbstractAsyncContextManager[Remote]:
    """Run the command that connects to a pod's node; it ends after ``seconds`` without a word to it."""
    python, payload = template.COMMAND
    command = [python, "-c", questions.PROGRAM, payload, str(seconds)]
    target = Target(PODS, job.scope.namespace, pod["metadata"]["name"])
    container = job.kind.container or pod["spec"]["containers"][0]["name"]
    return job.session.client.exec(target, container, command)


async def reach(job: JobRef, node: int) -> tuple[bytes, PodLine]:
    """Return a node's key, and the line that carries a conversation with it.

    Raises ``AskError`` if it can't be asked now, ``JobEndedError``, ``ClusterError`` and ``DamagedError``.
    """
    pods = {pod["metadata"]["uid"]: pod for _, pod in await job.pods()}
    state = briefly(job, pods.values())
    _, answers = reachable_nodes(state, [node])
    if answers:
        raise AskError(answers[0].trouble, absent=True)
    line = PodLine(job, pods[state.nodes[node].life.pod])
    return questions.node_key(await job.key(), job.info.run, node), line


class PodLine:
    """A command in a pod that carries a conversation (``talk.Line``); it ends when its asker does."""

    beat = _QUIET_S / 3

    def __init__(self, job: JobRef, pod: Object) -> None:
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._begun: asyncio.Future[Remote] = asyncio.get_running_loop().create_future()
        self._why = _CUT
        self._work = asyncio.ensure_future(self._carry(job, pod))

    async def _carry(self, job: JobRef, pod: Object) -> None:
        try:
            async with _leading(job, pod, _QUIET_S) as remote:
                self._begun.set_result(remote)
                while data := await remote.receive():
                    self._came.put(data)
                    # A pod that doesn't stop talking is slowed down by its connection.
                    while self._came.qsize() >= _AHEAD:  # noqa: ASYNC110 - another thread takes them
                        await asyncio.sleep(_LOOK_S)
                self._why = _ended(remote)
        except ClusterError as exc:
            self._why = _why(exc)
        finally:
            self._begun.cancel()
            self._came.put(b"")

    def send(self, data: bytes) -> None:
        """See ``talk.Line``."""

        async def send() -> None:
            with suppress(asyncio.CancelledError):  # it never began: the asker sees it end
                await (await self._begun).send(data)

        loop.run(send())

    def receive(self, seconds: float) -> bytes:
        """See ``talk.Line``."""
        try:
            return self._came.get(timeout=max(seconds, 0))
        except queue.Empty:
            raise TimeoutError from None

    def why(self) -> str:
        """See ``talk.Line``."""
        return self._why

    def close(self) -> None:
        """See ``talk.Line``."""

        async def cancel() -> None:
            self._work.cancel()

        loop.run(cancel())


def _ended(remote: Remote) -> str:
    """Say why a command that connects to a node has ended: by itself, or because it couldn't be run."""
    end = remote.end
    if end.code is None:
        return f"nothing can be run in its container: {end.message[:400]}" if end.message else _CUT
    if end.code in _ENDS:
        return _ENDS[end.code]
    words = remote.stderr.strip().rpartition("\n")[2]
    return f"the command that connects to it has ended: {words[:400] or f'exit code {end.code}'}"


def _why(exc: ClusterError) -> str:
    if isinstance(exc, NotFoundError):
        return _GONE
    if isinstance(exc, ForbiddenError):
        return f"exec is forbidden: {exc}"
    if isinstance(exc, ApiError) and "container not found" in exc.said:
        return _NOT_RUNNING
    return str(exc)
