"""An ended job once more: its payload, byte for byte, in a new folder."""

from __future__ import annotations

import os
from contextlib import suppress

from nbtorchjob.backends import naming
from nbtorchjob.backends.local.jobdir import directory
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.backends.local.launch import pool_client
from nbtorchjob.errors import NameTakenError, SubmitError
from nbtorchjob.spec import site
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.text import swaps


def retry(job: JobDirectory, state: JobState) -> JobInfo:
    """Start what an ended job ran as a new job, its code as it was swapped; return what is written down.

    Raises ``SpecError`` for what the site has locked or limited since, ``SubmitError``.
    """
    info = job.info()
    site.admitted(info.asked)
    made = swaps.texts(swaps.as_swapped(state), info.name)
    for name in naming.again(naming.stem(info.name), info.asked.name):
        new = info.sent_again(name).swapped(made)
        with suppress(NameTakenError):
            pool_client.begin(new, lambda folder: _fill(folder, job), pool_client.as_before)
            return new
    raise AssertionError("unreachable")


def _fill(new: JobDirectory, old: JobDirectory) -> None:
    try:
        new.prepare(old.key.read_bytes(), old.request())
        directory.share_payload(old, new)
        directory.share_swaps(old, new)
    except FileNotFoundError as exc:
        raise SubmitError(
            f"the payload of {old.path.name} is no longer kept, only the newest ones are: run its cell again"
        ) from exc
    with suppress(OSError):
        os.link(old.checkout, new.checkout)
    # Of those that are saved the oldest go first, and the two share a file.
    os.utime(new.payload)
