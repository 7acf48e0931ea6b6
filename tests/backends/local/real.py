"""Helpers for real jobs of this machine: waits for a state, and the processes of a job."""

import os
import threading
from pathlib import Path

from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT


def seen(job, condition):
    """Wait for a state that satisfies ``condition``; return the newest one."""
    event = threading.Event()
    job.subscribe(lambda state: event.set() if condition(state) else None)
    if not condition(job.state):
        assert event.wait(LIMIT), job.state
    return job.state


def folder_of(job):
    return JobDirectory(directory.jobs_dir() / job.name)


def supervisor(job):
    """Return the job's supervisor process, once there is one."""
    return until(folder_of(job).supervisor)


def left_behind(job):
    """Return the job's processes that still run."""
    mark = os.fsencode(folder_of(job).path)
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes():
                pids.append(entry.name)
        except OSError:
            continue
    return pids
