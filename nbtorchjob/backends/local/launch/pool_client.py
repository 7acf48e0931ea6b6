"""Hands a job from its folder to a pool: this process's, or that of the Python that submitted it first.

What a job takes over from the process that submits it is written to the job's folder, for the process that
starts the job, and may contain secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.launch import pool, queue
from nbtorchjob.backends.local.launch.queue import Place
from nbtorchjob.environment import interpreter
from nbtorchjob.errors import NBTorchJobError, NotOwnError, SubmitError
from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.start import compilers
from nbtorchjob.state import JobInfo

_START_S = 60.0  # twice what a pool may take to start
# Prefixes of variables that are for the kernel, and wrong for a rank.
_KERNEL_ONLY = ("JPY_", "IPYKERNEL_", "COLAB_")


def of_this_process(secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the interpreter, environment, paths and limits of this process, as plain data.

    ``secrets`` override the environment: they are variables whose values are in no record.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(_KERNEL_ONLY)}
    if "inline" in env.get("MPLBACKEND", ""):
        del env["MPLBACKEND"]  # draws into the notebook that a rank doesn't have
    # The only way to read the umask without setting it, which other threads would notice.
    status = Path("/proc/self/status").read_text(errors="replace")
    return {
        "python": sys.executable,
        "env": {**env, **secrets},
        "cwd": str(working()),
        "path": [entry for entry in sys.path if entry],
        "umask": int(status.partition("Umask:")[2].split()[0], 8),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": processes.of_this_process(),
    }


_description: list[tuple[interpreter.Environment, dict[str, str], str, bytes]] = []  # the newest, if any
_UNUSED_S = 24 * 3600.0  # for which no job has linked to it


def put_down(job: JobDirectory) -> None:
    """Link a description of this environment into the job's folder; left out if the disk refuses it."""
    # The file's name and content, made once for equal descriptions
    environment, origins = interpreter.environment(), interpreter.origins()
    if not _description or _description[0][:2] != (environment, origins):
        described = {
            "event": "EnvironmentTold",
            "node": 0,
            "python": environment.python,
            "platform": environment.platform,
            "distributions": dict(environment.distributions),
            "origins": origins,
        }
        data = json.dumps(described, sort_keys=True).encode()
        _description[:] = [(environment, origins, hashlib.sha256(data).hexdigest()[:16], data)]
    digest, data = _description[0][2:]
    with suppress(OSError, NotOwnError):
        shared = directory.environments_dir() / digest
        try:
            os.link(shared, job.environment)
        except FileExistsError:  # handed over once before
            return
        except FileNotFoundError:  # the first job of this environment
            job.environment.write_bytes(data)
            with suppress(FileExistsError):
                os.link(job.environment, shared)
        except OSError:  # file systems without links, or without any left
            job.environment.write_bytes(data)


def thin_out() -> None:
    """Remove the descriptions of environments that no job links to any more."""
    with suppress(OSError, NotOwnError):  # another process does the same
        for path in directory.environments_dir().iterdir():
            status = path.stat()
            if status.st_nlink == 1 and time.time() - status.st_mtime > _UNUSED_S:
                path.unlink()


def begin(
    info: JobInfo, fill: Callable[[JobDirectory], None], hand_over: Callable[[JobDirectory], None]
) -> None:
    """Make the job's folder, which ``fill`` fills, and hand it over; nothing is left if that fails.

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
    """Turn an ``OSError`` into a ``SubmitError`` that says in one line what this machine refuses."""
    try:
        yield
    except NBTorchJobError:
        raise
    except OSError as exc:
        met = shortage.limit_met(exc)
        raise SubmitError(f"the job can't be started: {exc}{met and f'; {met}'}") from exc


def start_here(*jobs: JobDirectory) -> None:
    """Have this Python's pool start jobs, each when its turn comes. Raises ``SubmitError``."""
    for job in jobs:
        put_down(job)
    new = [queue.place(job) for job in jobs]
    own_names = {place.name for place in new}
    _start(queue.take(new), own_names)


def step() -> None:
    """Start the jobs whose turn has come."""
    while _start(queue.take(), ()):
        pass


_STEP_S = 2.0  # between two such steps: normally the end of another job takes one
_next_step = 0.0


def step_now_and_then() -> None:
    """Start jobs that have their turn, in case no other process is left that does."""
    global _next_step
    now = time.monotonic()
    if now < _next_step:
        return
    _next_step = now + _STEP_S

    def try_step() -> None:
        try:
            step()
        except (OSError, NBTorchJobError) as exc:
            import logging  # late: seldom needed

            logging.getLogger(__name__).warning("jobs that wait for their turn can't be started: %s", exc)

    # In a thread: the caller may be the loop that follows all jobs, and a pool takes a second to start.
    threading.Thread(target=try_step, name="nbtorchjob-queue", daemon=True).start()


def _start(places: Sequence[Place], own_names: Collection[str]) -> bool:
    """Start jobs, each with the Python that sent it; return whether one couldn't be started.

    Raises ``SubmitError`` if that is one of ``own_names``.
    """
    refused = False
    try:
        for place in places:
            job = JobDirectory(directory.jobs_dir() / place.name)
            try:
                if place.name in own_names or job.request()["python"] == sys.executable:
                    start(job, place.holds)
                else:
                    _elsewhere(job, "start", place.holds)
            except (OSError, NBTorchJobError) as exc:
                queue.leave(place.name)
                refused = True
                if place.name in own_names:
                    raise
                give_up(job, exc)
    except BaseException:  # also an interrupt, which this process may outlive by days
        queue.give_back(places)
        raise
    return refused


def give_up(job: JobDirectory, exc: Exception) -> None:
    """Close a job that couldn't be started, as its submitter no longer waits for the start."""
    with suppress(OSError, NBTorchJobError):
        error = shortage.explained(from_exception(exc), exc).to_json()
        job.close_unbegun("NodeFailed", node=0, code=shortage.code_of(exc), error=error)


def start(job: JobDirectory, gpus: Sequence[str] = ()) -> None:
    """Have this Python's pool start the job; a group's run gets its own GPUs. Raises ``SubmitError``."""
    request, allowed, info = job.request(), os.sched_getaffinity(0), job.info()
    env = info.jobspec.env
    request["env"] = {**compilers.chosen(request["env"]), **env}
    if info.group and gpus:
        request["env"][processes.VISIBLE] = ",".join(gpus)
    # As in a Python that was started with it: before all entries of this one
    ahead = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    request["path"] = [*ahead, *(entry for entry in request["path"] if entry not in ahead)]
    # A job from before a restart of the machine, or of its container, may list other CPUs.
    request["cpus"] = sorted(allowed & set(request["cpus"]) or allowed)
    with pool.connected() as (process, send):
        job.hand_to(process, directory.pool_dir())
        send({"folder": str(job.path), **request})


def as_before(job: JobDirectory) -> None:
    """Have the pool of the job's own Python start it: this one may have no torch, or another version.

    Raises ``SubmitError``.
    """
    _elsewhere(job, "here")


def _elsewhere(job: JobDirectory, how: str, gpus: Sequence[str] = ()) -> None:
    request = job.request()
    # As pools are started: with the notebook's path, so that it finds what the notebook found.
    code = f"import sys; sys.path[:] = {request['path']!r}; "
    code += "from nbtorchjob.backends.local.launch import pool_client; "
    code += f"pool_client.main({how!r}, {str(job.path)!r}, {[*gpus]!r})"
    try:
        done = subprocess.run(
            [request["python"], "-c", code],
            cwd=request["cwd"],
            env=request["env"],
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
        raise SubmitError(f"{request['python']} can't start the job: {exc}") from exc
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["no reason given"]
        raise SubmitError(f"{request['python']} can't start the job: {lines[-1]}")


def main(how: str, folder: str, gpus: Sequence[str]) -> None:
    """Hand over the job in ``folder``, or start it; if that fails, the last line of output says why."""
    job = JobDirectory(Path(folder))
    try:
        start_here(job) if how == "here" else start(job, gpus)
    except NBTorchJobError as exc:
        raise SystemExit(str(exc)) from None
