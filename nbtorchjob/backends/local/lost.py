"""Whether a job is still kept by a process, and why it will never be closed where it isn't."""

from __future__ import annotations

import time
from contextlib import suppress

from nbtorchjob.backends.local import pool
from nbtorchjob.backends.local.record import Folder

_HANDING_OVER_S = 60.0  # from the payload's last byte to the pool, which may have to be started


def alive(job: Folder) -> bool:
    """Whether its supervisor runs."""
    keeper = job.supervisor()
    return keeper is not None and keeper.alive()


def why(job: Folder) -> str | None:
    """Say why the job will never be closed; None while somebody keeps it, or is about to."""
    try:
        keeper = job.supervisor()
        if keeper is not None:
            return None if keeper.alive() else "the process that kept the job was killed"
        asked = job.handover()
        if asked is None or (asked.pool.alive() and not asked.kernel.alive()):
            # What the pool was sent, it may have yet to read.
            fresh = _age(job) < _HANDING_OVER_S
            return None if fresh else "its kernel was killed before it handed the job over"
    except FileNotFoundError:
        return "the job was deleted"
    if asked.pool.alive():
        return None
    # It may have handed the job over just before it ended.
    keeper = job.supervisor()
    if keeper is not None and keeper.alive():
        return None
    why = pool.last_words(asked.folder) or "it was killed"
    return f"the pool ended before it started the job: {why}"


def _age(job: Folder) -> float:
    """Give the seconds since it was last heard of who submits it. Raises ``FileNotFoundError``."""
    newest = job.payload.stat().st_mtime
    with suppress(FileNotFoundError):
        newest = max(newest, (job.path / "pool.json").stat().st_mtime)
    return time.time() - newest
