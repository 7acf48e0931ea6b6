"""Notes and tags that a person puts on a job, while it runs or later; they stay with the job's record."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from nbtorchjob.backends.base import Backend
from nbtorchjob.errors import SpecError
from nbtorchjob.state import JobState
from nbtorchjob.state.events import Annotated

MOST_NOTE = 2000  # characters: an annotation of a cluster's object holds it
MOST_TAGS = 32
_TAG = re.compile(r"[^\W_][\w.:/=-]{0,62}")


def annotate(
    backend: Backend,
    state: JobState,
    note: str | None = None,
    *,
    tags: Iterable[str] | None = None,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
) -> Annotated:
    """Replace a job's note or ``tags``, or ``add`` and ``remove`` tags; return what it has now.

    Raises ``SpecError`` for a note or tag that can't be one.
    """
    had = state.annotated or Annotated(0.0)
    gone = {*map(_tag, remove)}
    kept = had.tags if tags is None else tuple(map(_tag, tags))
    new = tuple(dict.fromkeys(tag for tag in (*kept, *map(_tag, add)) if tag not in gone))
    if len(new) > MOST_TAGS:
        raise SpecError("tag", new[MOST_TAGS], f"at most {MOST_TAGS} tags on a job")
    text = had.note if note is None else _note(note)
    made = Annotated(max(time.time(), had.time + 0.001), text, new)
    backend.annotate(state.info.address, made)
    return made


def _note(text: str) -> str:
    text = " ".join(text.split())
    if len(text) > MOST_NOTE or not text.isprintable():
        raise SpecError("note", text, f"at most {MOST_NOTE:,} printable characters")
    return text


def _tag(text: str) -> str:
    tag = text.removeprefix("#")
    if not _TAG.fullmatch(tag):
        raise SpecError("tag", text, "a word of at most 63 letters, digits and _ . : / = -")
    return tag
