"""A job's way from its folder to a pool: of this process, or of the Python that submitted it first."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from nbtorchjob.backends.local.jobdir import directory, paths
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.backends.local.launch import environment, pool
from nbtorchjob.errors import NBTorchJobError, SubmitError
from nbtorchjob.state import JobInfo

_START_S = 60.0  # twice what a pool may take to start


def begin(
    info: JobInfo, fill: Callable[[JobDirectory], None], hand_over: Callable[[JobDirectory], None]
) -> None:
    """Make the job's folder, which ``fill`` fills, and hand it over; nothing is left where that fails."""
    job = directory.create(paths.jobs_dir(), info, fill)
    try:
        hand_over(job)
    except BaseException:
        shutil.rmtree(job.path, ignore_errors=True)
        raise


def here(job: JobDirectory) -> None:
    """Have this Python's pool start the job. Raises ``SubmitError``."""
    asked, allowed = job.request(), os.sched_getaffinity(0)
    given = job.info().asked.env
    asked["env"] |= given
    # As a Python that was started with it would: before all that this one has.
    ahead = [entry for entry in given.get("PYTHONPATH", "").split(os.pathsep) if entry]
    asked["path"] = [*ahead, *(entry for entry in asked["path"] if entry not in ahead)]
    # A job of before the machine, or its container, was started anew may know other CPUs.
    asked["cpus"] = sorted(allowed & set(asked["cpus"]) or allowed)
    environment.put_down(job)
    with pool.connected() as send:
        job.hand_to(pool.process(), paths.pool_dir())
        send({"folder": str(job.path), **asked})


def as_before(job: JobDirectory) -> None:
    """Have the pool of the Python that took the job down start it: ours may have no torch, or another.

    Raises ``SubmitError``.
    """
    asked = job.request()
    # As pools are started: with the path that the notebook had, so that it finds what that one found.
    code = f"import sys; sys.path[:] = {asked['path']!r}; "
    code += f"from nbtorchjob.backends.local.launch import handover; handover.main({str(job.path)!r})"
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


def main(folder: str) -> None:
    """Hand over the job in ``folder``; what hinders it is the last line that is written."""
    try:
        here(JobDirectory(Path(folder)))
    except NBTorchJobError as exc:
        raise SystemExit(str(exc)) from None
