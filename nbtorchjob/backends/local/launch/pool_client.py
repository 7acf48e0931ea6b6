"""A job's way from its folder to a pool: of this process, or of the Python that submitted it first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nbtorchjob.backends.local.jobdir import directory
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.backends.local.launch import environment, pool, queue
from nbtorchjob.backends.local.launch.queue import Place
from nbtorchjob.errors import NBTorchJobError, SubmitError
from nbtorchjob.machine import processes
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.start import compilers
from nbtorchjob.state import JobInfo

_START_S = 60.0  # twice what a pool may take to start


def begin(
    info: JobInfo, fill: Callable[[JobDirectory], None], hand_over: Callable[[JobDirectory], None]
) -> None:
    """Make the job's folder, which ``fill`` fills, and hand it over; nothing is left where that fails.

    Raises ``SubmitError``.
    """
    with refused(), processes.files_in_reserve() as release:
        job = directory.create(directory.jobs_dir(), info, fill)
        try:
            hand_over(job)
        except BaseException:
            release()
            shutil.rmtree(job.path, ignore_errors=True)
            with suppress(OSError):
                queue.leave(info.name)
            raise


@contextmanager
def refused() -> Iterator[None]:
    """Tell what this machine refuses in one line: raise ``SubmitError`` for it."""
    try:
        yield
    except NBTorchJobError:
        raise
    except OSError as exc:
        met = shortage.limit_met(exc)
        raise SubmitError(f"the job can't be started: {exc}{met and f'; {met}'}") from exc


def start_here(*jobs: JobDirectory) -> None:
    """Have jobs started by this Python's pool, each when its turn comes. Raises ``SubmitError``."""
    for job in jobs:
        environment.put_down(job)
    new = [queue.place(job) for job in jobs]
    mine = {place.name for place in new}
    _start(queue.take(new), mine)


def step() -> None:
    """Start the jobs whose turn has come."""
    while _start(queue.take(), ()):
        pass


def _start(places: Iterable[Place], mine: Collection[str]) -> bool:
    """Start jobs, each by the Python that it was sent from; return whether one couldn't be.

    Raises ``SubmitError`` for one of ``mine``.
    """
    refused = False
    for place in places:
        job = JobDirectory(directory.jobs_dir() / place.name)
        try:
            if place.name in mine or job.request()["python"] == sys.executable:
                start(job, place.holds)
            else:
                _elsewhere(job, "start", place.holds)
        except (OSError, NBTorchJobError) as exc:
            queue.leave(place.name)
            refused = True
            if place.name in mine:
                raise
            give_up(job, exc)
    return refused


def give_up(job: JobDirectory, exc: Exception) -> None:
    """Close a job that couldn't be started, as whoever submitted it no longer waits for that."""
    with suppress(OSError, NBTorchJobError):
        error = shortage.explained(from_exception(exc), exc).to_json()
        job.close_unbegun("NodeFailed", node=0, code=shortage.code_of(exc), error=error)


def start(job: JobDirectory, gpus: Sequence[str] = ()) -> None:
    """Have this Python's pool start the job, a group's run with GPUs of its own. Raises ``SubmitError``."""
    asked, allowed, info = job.request(), os.sched_getaffinity(0), job.info()
    env = info.asked.env
    asked["env"] = {**compilers.chosen(asked["env"]), **env}
    if info.group and gpus:
        asked["env"][processes.VISIBLE] = ",".join(gpus)
    # As a Python that was started with it would: before all that this one has.
    ahead = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    asked["path"] = [*ahead, *(entry for entry in asked["path"] if entry not in ahead)]
    # A job of before the machine, or its container, was started anew may know other CPUs.
    asked["cpus"] = sorted(allowed & set(asked["cpus"]) or allowed)
    with pool.connected() as (process, send):
        job.hand_to(process, directory.pool_dir())
        send({"folder": str(job.path), **asked})


def as_before(job: JobDirectory) -> None:
    """Have the pool of the Python that took the job down start it: ours may have no torch, or another.

    Raises ``SubmitError``.
    """
    _elsewhere(job, "here")


def _elsewhere(job: JobDirectory, how: str, gpus: Sequence[str] = ()) -> None:
    asked = job.request()
    # As pools are started: with the path that the notebook had, so that it finds what that one found.
    code = f"import sys; sys.path[:] = {asked['path']!r}; "
    code += "from nbtorchjob.backends.local.launch import pool_client; "
    code += f"pool_client.main({how!r}, {str(job.path)!r}, {[*gpus]!r})"
    try:
        done = subprocess.run(
            [asked["python"], "-c", code],
            cwd=asked["cwd"],
            env=asked["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_START_S,
        )
    except FileNotFoundError as exc:
        raise SubmitError(f"{exc.filename}, which the job ran with, is gone: run its cell again") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise SubmitError(f"{asked['python']} can't start the job: {exc}") from exc
    if done.returncode:
        said = done.stdout.strip().splitlines() or ["no reason given"]
        raise SubmitError(f"{asked['python']} can't start the job: {said[-1]}")


def main(how: str, folder: str, gpus: Sequence[str]) -> None:
    """Hand over the job in ``folder``, or start it; what hinders that is the last line that is written."""
    job = JobDirectory(Path(folder))
    try:
        start_here(job) if how == "here" else start(job, gpus)
    except NBTorchJobError as exc:
        raise SystemExit(str(exc)) from None
