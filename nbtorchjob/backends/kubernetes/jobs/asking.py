"""The nodes of a job on a cluster are asked: a command in each pod leads to its node's socket."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes.api.client import Object, Remote
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef, briefly
from nbtorchjob.backends.kubernetes.objects.paths import PODS, Target
from nbtorchjob.backends.kubernetes.pod import template
from nbtorchjob.backends.talk import MOST, OLDER, STARTING, Conversation, asked, silent
from nbtorchjob.errors import ApiError, AskError, ClusterError, ForbiddenError, NotFoundError
from nbtorchjob.machine import loop
from nbtorchjob.payload.program import late
from nbtorchjob.runtime.ask import ask as program
from nbtorchjob.runtime.ask import questions

_GONE = "its pod is gone"
_NOT_RUNNING = "its container has ended, or hasn't started"
_CUT = "the connection to it was cut"
_QUIET_S = 60  # in which whoever talks to a node says something
_AHEAD = 64  # pieces that wait to be heard, of at most 32 KiB from an API server (1.36)
_LOOK_S = 0.02
_KILLED = 137  # by SIGKILL, as all that is in a container whose first process ends
_ENDS = {
    program.NO_NODE: STARTING,
    program.NO_PAYLOAD: STARTING,
    program.OLDER: OLDER,
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
    """Tell what each node answers, as it does. Raises ``JobEndedError``, ``ClusterError``, ``DamagedError``.

    The time counts for each from when it is asked, which so many are at once (``MOST``).
    """
    pods = {pod["metadata"]["uid"]: pod for _, pod in await job.pods()}
    state = briefly(job, pods.values())
    there, answers = asked(state, nodes)
    for answer in answers:
        tell(answer)
    if not there:
        return
    key, free, question = await job.key(), asyncio.Semaphore(MOST), whole(question)

    async def one(node: int) -> None:
        talk = Conversation(node, questions.node_key(key, job.info.run, node), question)
        async with free:
            await _held(job, pods[state.nodes[node].life.pod], talk, timeout)
        tell(talk.answer)

    await asyncio.gather(*map(one, there))


def whole(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question with the modules that its answer needs, which payloads of cluster jobs lack."""
    return {**question, questions.MODULES: late(str(question["question"]))}


async def _held(job: JobRef, pod: Object, talk: Conversation, timeout: float) -> None:
    """Hold a conversation to its end."""
    try:
        await asyncio.wait_for(_said(job, pod, talk, timeout), timeout)
    except asyncio.TimeoutError:  # the builtin one only from Python 3.11 on
        talk.end(silent(timeout))
    except ClusterError as exc:
        talk.end(_why(exc))


async def _said(job: JobRef, pod: Object, talk: Conversation, timeout: float) -> None:
    async with _leading(job, pod, int(timeout) + 2) as remote:
        while not talk.over:
            data = await remote.receive()
            if not data:
                talk.end(_ended(remote))
            elif said := talk.hear(data):
                await remote.send(said)


def _leading(job: JobRef, pod: Object, seconds: int) -> AbstractAsyncContextManager[Remote]:
    """Run what leads to the node of a pod, and ends once nothing was said to it for so long."""
    python, payload = template.COMMAND
    command = [python, "-c", program.PROGRAM, payload, str(seconds)]
    target = Target(PODS, job.scope.namespace, pod["metadata"]["name"])
    container = job.kind.container or pod["spec"]["containers"][0]["name"]
    return job.session.client.exec(target, container, command)


async def reach(job: JobRef, node: int) -> tuple[bytes, PodLine]:
    """Return a node's key, and what carries a conversation with it.

    Raises ``AskError`` where it can't be asked now, ``JobEndedError``, ``ClusterError`` and ``DamagedError``.
    """
    pods = {pod["metadata"]["uid"]: pod for _, pod in await job.pods()}
    state = briefly(job, pods.values())
    _, answers = asked(state, [node])
    if answers:
        raise AskError(answers[0].trouble)
    line = PodLine(job, pods[state.nodes[node].life.pod])
    return questions.node_key(await job.key(), job.info.run, node), line


class PodLine:
    """A command in a pod that carries a conversation (``talking.Line``); it ends with its asker."""

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
                    # A pod that doesn't stop talking is held up by its connection.
                    while self._came.qsize() >= _AHEAD:  # noqa: ASYNC110 - another thread takes them
                        await asyncio.sleep(_LOOK_S)
                self._why = _ended(remote)
        except ClusterError as exc:
            self._why = _why(exc)
        finally:
            self._begun.cancel()
            self._came.put(b"")

    def send(self, data: bytes) -> None:
        """See ``talking.Line``."""

        async def send() -> None:
            with suppress(asyncio.CancelledError):  # it never began: that is heard as its end
                await (await self._begun).send(data)

        loop.run(send())

    def receive(self, seconds: float) -> bytes:
        """See ``talking.Line``."""
        try:
            return self._came.get(timeout=max(seconds, 0))
        except queue.Empty:
            raise TimeoutError from None

    def why(self) -> str:
        """See ``talking.Line``."""
        return self._why

    def close(self) -> None:
        """See ``talking.Line``."""

        async def cancel() -> None:
            self._work.cancel()

        loop.run(cancel())


def _ended(remote: Remote) -> str:
    """Say why a command that leads to a node has ended, of itself or as it couldn't be run."""
    end = remote.end
    if end.code is None:
        return f"nothing can be run in its container: {end.said[:400]}" if end.said else _CUT
    if end.code in _ENDS:
        return _ENDS[end.code]
    words = remote.stderr.strip().rpartition("\n")[2]
    return f"what leads to it has ended: {words[:400] or f'exit code {end.code}'}"


def _why(exc: ClusterError) -> str:
    if isinstance(exc, NotFoundError):
        return _GONE
    if isinstance(exc, ForbiddenError):
        return f"exec is forbidden: {exc}"
    if isinstance(exc, ApiError) and "container not found" in exc.said:
        return _NOT_RUNNING
    return str(exc)
