"""Whether a job still has a supervisor, and if not, why it will never be closed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.machine.processes import NOBODY, Process

_READ_WITHIN_S = 60.0  # by a pool, which may have to be started
_UNBEGUN = "it was ended before it began"
_UNASKED = "its kernel was killed before it handed the job over"


def alive(job: JobDirectory) -> bool:
    """Whether its supervisor runs."""
    supervisor = job.supervisor()
    return supervisor is not None and supervisor.alive()


class Liveness:
    """Whether a job still has a supervisor; caches which process that is."""

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._supervisor: tuple[tuple[int, int], Process] | None = None  # with the file it was read from

    def why(self) -> str | None:
        """Explain as :func:`why` does."""
        if self._supervisor is not None:
            file, supervisor = self._supervisor
            with suppress(OSError):
                if self._which() == file and supervisor.alive():
                    return None
        reason, self._supervisor = why(self._job), None
        if reason is None and (supervising := self._job.supervisor()) is not None:
            with suppress(OSError):
                self._supervisor = self._which(), supervising
        return reason

    def _which(self) -> tuple[int, int]:
        """Return what tells the file from a later one, which may have the same inode number."""
        status = os.stat(f"{self._job.path}/supervisor.json")
        return status.st_ino, status.st_mtime_ns


def why(job: JobDirectory) -> str | None:
    """Explain why the job will never be closed; None while it has a supervisor, or is about to get one."""
    try:
        supervisor = job.supervisor()
        if supervisor is not None:
            if _at_work(job, supervisor):
                return None
            return _UNBEGUN if supervisor == NOBODY else "the job's supervisor was killed"
        handover = job.handover()
        if handover is None:
            job.path.stat()
            if job.maker().alive() or queued(job.path.name):
                return None
            handover = job.handover()  # the maker may have handed it over just before it ended
        if handover is None:
            return _UNASKED
        if handover.pool.alive() and not handover.kernel.alive():
            # The pool may have yet to read what it was sent.
            return None if directory.uptime() - handover.at < _READ_WITHIN_S else _UNASKED
    except FileNotFoundError:
        return "the job was deleted"
    if handover.pool.alive():
        return None
    # The pool may have started the supervisor just before it ended.
    supervisor = job.supervisor()
    if supervisor is not None and _at_work(job, supervisor):
        return None
    return f"the pool ended before it started the job: {last_words(handover.folder) or 'it was killed'}"


def _at_work(job: JobDirectory, supervisor: Process) -> bool:
    return supervisor.alive() or (supervisor == NOBODY and job.closer().alive())


def queued(name: str) -> bool:
    """Whether a job waits for its turn, or has its turn."""
    folder = directory.queue_dir()
    return (folder / "waiting" / name).exists() or (folder / "running" / name).exists()


def last_words(folder: Path) -> str:
    """Return the last line that a pool wrote before it ended, for an error message."""
    with suppress(OSError):
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""
