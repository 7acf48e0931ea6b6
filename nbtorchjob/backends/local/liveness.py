"""Whether a job still has a supervisor, and why it will never be closed if it hasn't."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from nbtorchjob.backends.local.jobdir import directory, paths
from nbtorchjob.backends.local.jobdir.directory import JobDirectory

_READ_WITHIN_S = 60.0  # by a pool, which may have to be started
_UNASKED = "its kernel was killed before it handed the job over"


def alive(job: JobDirectory) -> bool:
    """Whether its supervisor runs."""
    supervisor = job.supervisor()
    return supervisor is not None and supervisor.alive()


def why(job: JobDirectory) -> str | None:
    """Explain why the job will never be closed; None while somebody supervises it, or is about to."""
    try:
        supervisor = job.supervisor()
        if supervisor is not None:
            return None if supervisor.alive() else "the job's supervisor was killed"
        asked = job.handover()
        if asked is None:
            job.path.stat()
            if job.maker().alive() or queued(job.path.name):
                return None
            asked = job.handover()  # it may have done so just before it ended
        if asked is None:
            return _UNASKED
        if asked.pool.alive() and not asked.kernel.alive():
            # What the pool was sent, it may have yet to read.
            return None if directory.uptime() - asked.at < _READ_WITHIN_S else _UNASKED
    except FileNotFoundError:
        return "the job was deleted"
    if asked.pool.alive():
        return None
    # It may have handed the job over just before it ended.
    supervisor = job.supervisor()
    if supervisor is not None and supervisor.alive():
        return None
    return f"the pool ended before it started the job: {last_words(asked.folder) or 'it was killed'}"


def queued(name: str) -> bool:
    """Whether a job waits for its turn, or whoever gave it one is to start it."""
    folder = paths.queue_dir()
    return (folder / "waiting" / name).exists() or (folder / "running" / name).exists()


def last_words(folder: Path) -> str:
    """Return the last line that a pool wrote before it ended, for an error message."""
    with suppress(OSError):
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""
