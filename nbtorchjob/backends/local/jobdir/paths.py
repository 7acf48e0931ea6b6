"""Where the local backend keeps things on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

from nbtorchjob.errors import SubmitError
from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import own, state_dir


def jobs_dir() -> Path:
    """Return the folder with one folder a job."""
    return own(state_dir() / "jobs")


def environments_dir() -> Path:
    """Return the folder of what jobs' interpreters could import, a file each."""
    return own(state_dir() / "environments")


def queue_dir() -> Path:
    """Return the folder of who waits for a turn on this machine, and who has it."""
    folder = own(state_dir() / "queue")
    for name in ("waiting", "running"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    return folder


def ended_file(made_by: str) -> Path:
    """Return the file of what a function of this code made of jobs that have ended."""
    name = hashlib.sha256(f"{made_by} of {code()}".encode()).hexdigest()[:12]
    return state_dir() / "ended" / f"{name}.json"


def pool_dir() -> Path:
    """Return the folder of the pool that serves this Python and this torch."""
    return own(own(state_dir() / "pool") / environment())


def socket_path() -> Path:
    """Return the pool's socket, whose path may be longer than a socket's: it is reached by its folder."""
    return pool_dir() / "socket"


@cache
def environment() -> str:
    """Name this interpreter with its torch and with us: a pool that imported others can't serve it."""
    torch = importlib.util.find_spec("torch")
    origin = torch.origin if torch and torch.origin else ""
    try:
        stamp = Path(origin).with_name("version.py").stat().st_mtime_ns if origin else 0
    except FileNotFoundError:
        raise SubmitError(f"{origin} hides the installed torch: rename it") from None
    # Nobody may raise a limit above the most of the process that it comes from.
    most = sorted((name, pair[1]) for name, pair in processes.of_this_process().items())
    text = f"{sys.executable}\n{sys.prefix}\n{origin}\n{stamp}\n{code()}\n{most}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def code() -> str:
    """Name our own code: another version of it writes other things."""
    # Not by ``rglob``: its 400 paths take a command that lists jobs 5 ms.
    files = (f"{folder}/{name}" for folder, _, names in os.walk(Path(__file__).parents[3]) for name in names)
    return str(max(os.stat(file).st_mtime_ns for file in files if file.endswith(".py")))
