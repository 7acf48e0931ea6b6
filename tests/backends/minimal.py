"""The smallest possible backend: six verbs. Nothing runs; the value of a job is the label of its call.

A job with ``HELD`` in its environment runs until it is cancelled.
"""

import asyncio
import pickle
import time
from collections.abc import AsyncGenerator, Mapping
from functools import reduce
from pathlib import Path

from nbtorchjob.backends.base import Backend
from nbtorchjob.capture import Call
from nbtorchjob.errors import JobNotFoundError
from nbtorchjob.machine import folders, loop
from nbtorchjob.payload.results import FetchedValue
from nbtorchjob.runtime.objects import wire
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.turns import View

_KEY = b"k" * 32


def create() -> Backend:
    """Return the backend (see ``backends.backend``)."""
    return MinimalBackend()


class _Job:
    def __init__(self, info: JobInfo) -> None:
        self.info = info
        now = time.time()
        self.facts: list[ev.Event] = [
            ev.NodeStarted(now, 0, "here", 1),
            ev.WorkersStarted(now, 0, 0, 0, (0,), 1),
        ]
        self.over = asyncio.Event()

    def end(self, *facts: ev.Event) -> None:
        async def tell() -> None:
            self.facts += [*facts, ev.Closed(time.time())]
            self.over.set()

        loop.start(tell()).result()


class MinimalBackend(Backend):
    """A backend with the methods that ``backends/base.py`` requires, and no others."""

    where = "paper"

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Record a job, and write its value unless it is held."""
        job = self._jobs[info.name] = _Job(info)
        if "HELD" not in spec.env:
            path = str(folders.state_dir() / f"{info.name}.value")
            size = wire.write_value(path, call.label, lambda value, _: pickle.dumps(value), _KEY)
            now = time.time()
            job.end(ev.ValueReady(now, 0, 0, path, size), ev.NodeExited(now, 0, 0))
        return info

    async def follow(
        self,
        name: str,
        *,
        since: Mapping[tuple[int, int], int] | None = None,
        turn: View | None = None,
    ) -> AsyncGenerator[ev.Event, None]:
        """Yield the facts of a job so far, then the rest once it is over."""
        job = self._job(name)
        begun = [*job.facts]
        for fact in begun:
            yield fact
        await job.over.wait()
        for fact in job.facts[len(begun) :]:
            yield fact

    def jobs(self, *, everyone: bool = False, scope: str | None = None) -> list[JobState]:
        """Return the state of each job."""
        return [reduce(apply, job.facts, JobState(job.info)) for job in self._jobs.values()]

    def cancel(self, name: str, *, gently: bool = False, early: str = "") -> None:
        """End a job that isn't over."""
        job = self._job(name)
        if not job.over.is_set():
            now = time.time()
            job.end(ev.CancelRequested(now), ev.NodeExited(now, 0, None, 15))

    def delete(self, name: str) -> None:
        """Cancel a job and forget it."""
        self.cancel(name)
        del self._jobs[name]

    def fetch(self, name: str, value: ev.ValueReady) -> FetchedValue:
        """Return the file of the value, and its key."""
        return FetchedValue(Path(value.ref), _KEY)

    def _job(self, name: str) -> _Job:
        if name not in self._jobs:
            raise JobNotFoundError(f"there is no job named {name!r} on paper")
        return self._jobs[name]
