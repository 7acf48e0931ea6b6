"""A job as text; all functions block, and are run in a lane."""

from __future__ import annotations

import time
from collections.abc import Iterator

from nbtorchjob.backends.base import Backend
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.machine.folders import state_dir
from nbtorchjob.ui.card import describe, render


def description(backend: Backend, name: str) -> str:
    """Return all that is known of a job, as ``%torchjob describe`` does."""
    state = backend.snapshot(name)
    enforced = {} if state.info.unreadable else backend.enforcement(state.info)
    return describe.text(state, time.time(), enforced, state_dir()) + "\n"


def card(backend: Backend, name: str) -> str:
    """Return a job's card as HTML, for a page whose kernel doesn't draw it."""
    return render.html(backend.snapshot(name), time.time(), offers=OFFERS)


def window(pieces: Iterator[bytes], limit: int | None) -> Iterator[bytes]:
    """Yield the first ``limit`` bytes of a log, holding one piece at a time; all with None."""
    for piece in pieces:
        part = piece[:limit]
        if limit is not None:
            limit -= len(part)
        if part:
            yield part
        if limit == 0:
            return
