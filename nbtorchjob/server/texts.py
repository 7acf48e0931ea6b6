"""What a backend gives of a job as text; all of it blocks, and is run in a lane."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nbtorchjob.backends.base import Backend
from nbtorchjob.folders import state_dir
from nbtorchjob.ui import describe

_SECRET = re.compile(r"[0-9]+-secret-")
_WITHOUT = "# Its Secrets, which hold the payload and the job's key: %torchjob export {name} FOLDER\n"


def description(place: Backend, name: str) -> str:
    """Give all that is known of a job, as ``%torchjob describe`` does."""
    state = place.snapshot(name)
    return describe.text(state, time.time(), place.enforcement(state.info), state_dir()) + "\n"


def manifests(place: Backend, name: str) -> str:
    """Give the YAML that runs a job on a cluster, but for its Secrets: a page has no use for a key."""
    with tempfile.TemporaryDirectory() as folder:
        files = place.export(name, Path(folder))
        shown = [file for file in files if file.suffix == ".yaml" and not _SECRET.match(file.name)]
        text = "\n---\n".join(file.read_text() for file in shown)
    return _WITHOUT.format(name=name.rpartition("/")[2]) + text + "\n"


def window(pieces: Iterator[bytes], offset: int, limit: int | None) -> Iterator[bytes]:
    """Give ``limit`` bytes of a log from ``offset`` on, holding one piece at a time; all with None."""
    for piece in pieces:
        part = piece[offset:]
        offset = max(0, offset - len(piece))
        if limit is not None:
            part, limit = part[:limit], limit - len(part[:limit])
        if part:
            yield part
        if limit == 0:
            return
