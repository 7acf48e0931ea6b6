"""What is told of a job that waits for its turn on this machine, and the step that is taken meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from nbtorchjob.backends.local import liveness
from nbtorchjob.backends.local.jobdir import paths
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.errors import NBTorchJobError, NotOwnError
from nbtorchjob.state.events import Waiting
from nbtorchjob.text import words

_STEP_S = 2.0  # between two steps of who waits: normally the end of another job is one

_next = [0.0]


def told(job: JobDirectory) -> Waiting | None:
    """Return what a job waits for; None unless it does."""
    if not liveness.queued(job.path.name) or job.supervisor() is not None:
        return None
    from nbtorchjob.backends.local.launch import queue  # late: most jobs that are looked at don't wait

    _step_now_and_then()
    found = queue.behind(job.path.name)
    return None if found is None else Waiting(time.time(), _behind(*found))


def _behind(many: int, running: Sequence[str]) -> str:
    """Say how many jobs come first, and which of them run."""
    if not many:
        return "next on this machine"
    more = [f"{len(running) - 2} more"] if len(running) > 2 else []
    names = " and ".join([*running[:2], *more])
    who = f": {names} {'runs' if len(running) == 1 else 'run'}" if running else ""
    return f"behind {words.count(many, 'job')}{who}"


def tidy(over: Collection[str]) -> None:
    """Take the next step where one of these jobs, which are over, still has its place.

    That is so for a moment, and for good where its warden was killed.
    """
    with suppress(OSError, NotOwnError):
        if not {*over}.isdisjoint(os.listdir(paths.queue_dir() / "running")):
            _step_now_and_then()


def _step_now_and_then() -> None:
    now = time.monotonic()
    if now >= _next[0]:
        _next[0] = now + _STEP_S
        # Who asks may be the loop that all jobs are followed on, and a pool takes a second to start.
        threading.Thread(target=_step, name="nbtorchjob-queue", daemon=True).start()


def _step() -> None:
    """Start what has its turn, should nobody else be left who does."""
    from nbtorchjob.backends.local.launch import handover  # late, as above

    try:
        handover.step()
    except (OSError, NBTorchJobError) as exc:
        import logging  # late: it is seldom needed

        logging.getLogger(__name__).warning("jobs that wait for their turn can't be started: %s", exc)
