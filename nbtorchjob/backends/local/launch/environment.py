"""What this interpreter can import, put down beside a job: one file for all jobs that had the same."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress

from nbtorchjob.backends.local.jobdir import paths
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.environment import here
from nbtorchjob.errors import NotOwnError

_made: list[tuple[here.Environment, dict[str, str], str, bytes]] = []  # the newest, if any
_UNUSED_S = 24 * 3600.0  # so long no job had it


def put_down(job: JobDirectory) -> None:
    """Link the file into the job's folder; where the disk won't have that, the job goes without."""
    digest, data = _described()
    with suppress(OSError, NotOwnError):
        shared = paths.environments_dir() / digest
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


def _described() -> tuple[str, bytes]:
    """Return the file's name and content, made once for all that say the same."""
    key = here.environment(), here.origins()
    if not _made or _made[0][:2] != key:
        _made[:] = [(*key, *_make(*key))]
    return _made[0][2:]


def _make(environment: here.Environment, from_elsewhere: dict[str, str]) -> tuple[str, bytes]:
    described = {
        "event": "EnvironmentTold",
        "node": 0,
        "python": environment.python,
        "platform": environment.platform,
        "distributions": dict(environment.distributions),
        "origins": from_elsewhere,
    }
    data = json.dumps(described, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16], data


def thin_out() -> None:
    """Let go of the files that no job has any more."""
    with suppress(OSError, NotOwnError):  # another process does the same
        for path in paths.environments_dir().iterdir():
            status = path.stat()
            if status.st_nlink == 1 and time.time() - status.st_mtime > _UNUSED_S:
                path.unlink()
