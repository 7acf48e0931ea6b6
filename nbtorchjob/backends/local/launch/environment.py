"""What a job on this machine takes of the process that submits it, put down beside the job.

It is written down in the job's folder, for whoever starts the job, and may hold what is secret there.
``pool_client``, apart from it, imports half the runtime: this is imported to list jobs, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbtorchjob.backends.local.jobdir import directory
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.environment import here
from nbtorchjob.errors import NotOwnError
from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import working

# Of the kernel, and wrong for a rank.
_KERNEL_ONLY = ("JPY_", "IPYKERNEL_", "COLAB_")


def of_this_process(secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return interpreter, environment, paths and limits of this process, as plain data.

    ``secrets`` are laid over the environment: variables whose values are in no record.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(_KERNEL_ONLY)}
    if "inline" in env.get("MPLBACKEND", ""):
        del env["MPLBACKEND"]  # draws into the notebook that a rank doesn't have
    # The one way to read it without setting it, which other threads would notice.
    status = Path("/proc/self/status").read_text()
    return {
        "python": sys.executable,
        "env": {**env, **secrets},
        "cwd": str(working()),
        "path": [entry for entry in sys.path if entry],
        "umask": int(status.partition("Umask:")[2].split()[0], 8),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": processes.of_this_process(),
    }


_made: list[tuple[here.Environment, dict[str, str], str, bytes]] = []  # the newest, if any
_UNUSED_S = 24 * 3600.0  # so long no job had it


def put_down(job: JobDirectory) -> None:
    """Link the file into the job's folder; where the disk won't have that, the job goes without."""
    # The file's name and content, made once for all that say the same
    environment, origins = here.environment(), here.origins()
    if not _made or _made[0][:2] != (environment, origins):
        described = {
            "event": "EnvironmentTold",
            "node": 0,
            "python": environment.python,
            "platform": environment.platform,
            "distributions": dict(environment.distributions),
            "origins": origins,
        }
        data = json.dumps(described, sort_keys=True).encode()
        _made[:] = [(environment, origins, hashlib.sha256(data).hexdigest()[:16], data)]
    digest, data = _made[0][2:]
    with suppress(OSError, NotOwnError):
        shared = directory.environments_dir() / digest
        try:
            os.link(shared, job.environment)
        except FileExistsError:  # handed over once before
            return
        except FileNotFoundError:  # the first
            job.environment.write_bytes(data)
            with suppress(FileExistsError):
                os.link(job.environment, shared)
        except OSError:  # file systems without links, or with no more of them
            job.environment.write_bytes(data)


def thin_out() -> None:
    """Let go of the files that no job has any more."""
    with suppress(OSError, NotOwnError):  # another process does the same
        for path in directory.environments_dir().iterdir():
            status = path.stat()
            if status.st_nlink == 1 and time.time() - status.st_mtime > _UNUSED_S:
                path.unlink()
