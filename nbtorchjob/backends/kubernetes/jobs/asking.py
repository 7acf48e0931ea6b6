"""The nodes of a job on a cluster are asked: a command in each pod leads to its node's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbtorchjob.backends import asking
from nbtorchjob.backends.asking import Conversation
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes.api.client import Object, Remote
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef, briefly
from nbtorchjob.backends.kubernetes.objects.paths import PODS, Target
from nbtorchjob.backends.kubernetes.pod import template
from nbtorchjob.errors import ApiError, ClusterError, ForbiddenError, NotFoundError
from nbtorchjob.runtime import ask as program
from nbtorchjob.runtime import questions

_GONE = "its pod is gone"
_NOT_RUNNING = "its container has ended, or hasn't started"
_CUT = "the connection to it was cut"
_KILLED = 137  # by SIGKILL, as all that is in a container whose first process ends
_ENDS = {
    program.NO_NODE: asking.STARTING,
    program.NO_PAYLOAD: asking.STARTING,
    program.OLDER: asking.OLDER,
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

    The time counts for each from when it is asked, which so many are at once (``asking.MOST``).
    """
    pods = {pod["metadata"]["uid"]: pod for _, pod in await job.pods()}
    state = briefly(job, pods.values())
    there, answers = asking.asked(state, nodes)
    for answer in answers:
        tell(answer)
    if not there:
        return
    key, free = await job.key(), asyncio.Semaphore(asking.MOST)

    async def one(node: int) -> None:
        talk = Conversation(node, questions.node_key(key, job.info.run, node), question)
        async with free:
            await _held(job, pods[state.nodes[node].life.pod], talk, timeout)
        tell(talk.answer)

    await asyncio.gather(*map(one, there))


async def _held(job: JobRef, pod: Object, talk: Conversation, timeout: float) -> None:
    """Hold a conversation to its end."""
    try:
        await asyncio.wait_for(_said(job, pod, talk, timeout), timeout)
    except asyncio.TimeoutError:  # the builtin one only from Python 3.11 on
        talk.end(asking.silent(timeout))
    except ClusterError as exc:
        talk.end(_why(exc))


async def _said(job: JobRef, pod: Object, talk: Conversation, timeout: float) -> None:
    python, payload = template.COMMAND
    command = [python, "-c", program.PROGRAM, payload, str(int(timeout) + 2)]
    target = Target(PODS, job.scope.namespace, pod["metadata"]["name"])
    container = job.kind.container or pod["spec"]["containers"][0]["name"]
    async with job.session.client.exec(target, container, command) as remote:
        while not talk.over:
            data = await remote.receive()
            if not data:
                talk.end(_ended(remote))
            elif said := talk.hear(data):
                await remote.send(said)


def _ended(remote: Remote) -> str:
    """Say why a command that leads to a node has ended, of itself or as it couldn't be run."""
    end = remote.end
    known = _ENDS.get(end.code or 0)
    if known is not None:
        return known
    if end.code is None:
        return f"nothing can be run in its container: {end.said[:400]}" if end.said else _CUT
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
