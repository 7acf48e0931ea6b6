"""Runs an ended job once more: its payload, byte for byte, in a new folder."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress

from nbtorchjob.backends import naming
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.launch import pool_client
from nbtorchjob.errors import NameTakenError, SubmitError
from nbtorchjob.machine.folders import plain
from nbtorchjob.runtime.api.checkpoints import is_partial
from nbtorchjob.spec import profiles
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.text import swaps
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

_PIECE = 1 << 30  # bytes that the kernel copies at once


def retry(job: JobDirectory, state: JobState, *, resume: bool = False) -> JobInfo:
    """Start an ended job's payload as a new job, with its code as swapped; return the new job's record.

    With ``resume`` it begins with a copy of the checkpoints. Raises ``SpecError`` for options that the site
    has locked or limited since, and ``SubmitError``.
    """
    info = job.info()
    profiles.admitted(info.jobspec)
    texts = swaps.texts(swaps.as_swapped(state), info.name)
    if resume:
        name, files = job.path.name, [path for path in job.checkpoints.rglob("*") if path.is_file()]
        if not files:
            raise SubmitError(f"{name} left no checkpoint to resume from: {hint('retry', name)} begins anew")
        needs = sum(path.stat().st_size for path in files)
        free = shutil.disk_usage(job.path).free
        if needs > free:
            raise SubmitError(
                f"the checkpoints of {name} take {words.size(needs)}, and only {words.size(free)} are free "
                f"in {job.path.parent}"
            )
    for name in naming.again(naming.stem(info.name), info.jobspec.name):
        new = info.sent_again(name).swapped(texts)
        with suppress(NameTakenError):
            pool_client.begin(new, lambda folder: _fill(folder, job, resume=resume), pool_client.as_before)
            return new
    raise AssertionError("unreachable")


def _fill(new: JobDirectory, old: JobDirectory, *, resume: bool) -> None:
    try:
        new.prepare(old.key.read_bytes(), old.request())
        directory.share_payload(old, new)
        directory.share_swaps(old, new)
    except FileNotFoundError as exc:
        raise SubmitError(
            f"the payload of {old.path.name} is no longer kept, only the newest ones are: run its cell again"
        ) from exc

    def no_part(folder: str, names: list[str]) -> list[str]:
        """Return what is no part of a checkpoint: partial files, pipes, sockets."""
        modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
        kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
        return [
            name for name, mode in modes.items() if is_partial(name) or not any(is_(mode) for is_ in kinds)
        ]

    if resume:
        # Not shared: each job removes and overwrites its own checkpoints.
        shutil.copytree(
            old.checkpoints, new.checkpoints, symlinks=True, ignore=no_part, copy_function=_cloned
        )
        _redirect_links(os.path.realpath(old.checkpoints), os.path.realpath(new.checkpoints))
    with suppress(OSError):
        os.link(old.checkout, new.checkout)
    # The oldest saved payloads are removed first, and the two jobs share a file.
    os.utime(new.payload)


def _redirect_links(old: str, new: str) -> None:
    """Make links in a copied folder that lead into the old one lead to the same place in the copy."""
    for folder, folders, files in os.walk(new):
        for link in (os.path.join(folder, name) for name in (*folders, *files)):
            if os.path.islink(link):
                place, name = os.path.split(os.readlink(link))
                origin = os.path.realpath(os.path.join(old, os.path.relpath(folder, new), place))
                target = os.path.relpath(os.path.join(origin, name), old)
                if target.split(os.sep)[0] != os.pardir:
                    os.unlink(link)
                    os.symlink(os.path.relpath(os.path.join(new, target), folder), link)


def _cloned(source: str, target: str) -> None:
    """Copy a file; if the file system can, both share the data that neither changes."""
    with open(source, "rb", opener=plain) as old, open(target, "wb") as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), _PIECE):
                pass
        except OSError:  # not between these file systems, or not on this system
            old.seek(0)
            new.truncate(0)
            shutil.copyfileobj(old, new)
    shutil.copystat(source, target)
