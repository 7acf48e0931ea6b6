"""A job as text, and as data for a page; all functions block, and are run in a lane."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nbtorchjob.backends.base import Backend, Tended, who_tends
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.machine.folders import state_dir
from nbtorchjob.state import JobState
from nbtorchjob.ui import page
from nbtorchjob.ui.card import describe, render


def description(backend: Backend, name: str) -> str:
    """Return all that is known of a job, as ``%torchjob describe`` does."""
    return describe.text(*_known(backend, name)) + "\n"


def described(backend: Backend, name: str) -> page.Page:
    """Return the same, and the job's options and code, for a page to lay out."""
    return page.description(*_known(backend, name))


def _known(backend: Backend, name: str) -> tuple[JobState, float, Mapping[str, str], Path, Tended | None]:
    state = backend.snapshot(name)
    enforced = {} if state.info.unreadable else backend.enforcement(state.info)
    tended = None if state.phase.terminal else who_tends(backend, state.info)
    return state, time.time(), enforced, state_dir(), tended


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
