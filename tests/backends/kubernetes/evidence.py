"""The state of a cluster and this process when a test failed: for a hang, the waits of threads and tasks."""

import asyncio
import concurrent.futures
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from nbtorchjob.machine import loop
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.store import Change
from tests.backends.kubernetes.stage import Stage

_LAST = 80  # changes and requests
_STATUS, _FUTURE = 1500, 200  # characters
_ANSWER_S = 10.0
_KINDS = ("cr", "ag", "gi")  # coroutines, asynchronous generators, generators


def of(stage: Stage) -> str:
    """Return, in lines, the changes in a stage's namespace, its requests, and the waits of this process."""
    lines = [*_changes(stage.cluster, stage.namespace), *_requests(stage.cluster, stage.namespace)]
    return "\n".join([*lines, *_waiting()])


def _changes(cluster: Emulator, namespace: str) -> Iterator[str]:
    history = cluster.history(namespace)
    newest: dict[tuple[str, str], Change] = {}
    for change in history:
        newest[change.resource.plural, change.object["metadata"]["name"]] = change
    yield f"== the last of {len(history)} changes"
    for change in history[-_LAST:]:
        yield f"{change.revision} {change.type} {change.resource.plural}/{change.object['metadata']['name']}"
    yield "== what is there"
    for (plural, name), change in newest.items():
        if change.type != "DELETED" and plural not in ("secrets", "roles", "rolebindings"):
            kept = {key: change.object["metadata"].get(key) for key in ("annotations", "deletionTimestamp")}
            suspended = (change.object.get("spec") or {}).get("suspend")
            yield f"{plural}/{name} {kept} suspend={suspended} {change.object.get('status')}"[:_STATUS]


def _requests(cluster: Emulator, namespace: str) -> Iterator[str]:
    requests = [f"{method} {path}" for method, path in cluster.requests if f"/{namespace}/" in path]
    yield f"== the last of {len(requests)} requests"
    yield from requests[-_LAST:]
    yield "== open watches"
    yield from (path for path in cluster.open_watches if f"/{namespace}/" in path)


def _waiting() -> Iterator[str]:
    yield f"== {len(os.listdir('/proc/self/fd'))} open files, {threading.active_count()} threads"
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident in frames:
            yield f"-- thread {thread.name}"
            yield "".join(traceback.format_stack(frames[thread.ident], limit=4)).rstrip()
    try:
        yield from loop.start(_tasks()).result(_ANSWER_S)
    except concurrent.futures.TimeoutError:
        yield "== the background loop doesn't answer"


async def _tasks() -> list[str]:
    lines = ["== tasks of the background loop"]
    for task in asyncio.all_tasks():
        lines.append(f"-- {task.get_name()}")
        lines += _awaited(task.get_coro())
    return lines


def _awaited(work: Any) -> Iterator[str]:
    """Yield the awaits of a task, down to the future that blocks it."""
    while work is not None:
        kind = next((kind for kind in _KINDS if getattr(work, f"{kind}_frame", None)), None)
        if kind is None:  # the future, or work that has ended meanwhile
            yield f"   {work!r}"[:_FUTURE]
            return
        frame = getattr(work, f"{kind}_frame")
        yield f"   {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        work = getattr(work, f"{kind}_yieldfrom" if kind == "gi" else f"{kind}_await")
