"""Tab completion of options, their values, verbs and job names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion

from nbtorchjob import api, options

_WITH_NAME = (
    *("status", "describe", "logs", "attach", "cancel", "delete", "result", "config"),
    *("suspend", "resume", "export"),
)
VERBS = ("run", "list", *_WITH_NAME, "gc", "doctor")
_LINE = re.compile(r"\s*(%%?)torchjob\s(.*)", re.DOTALL)


def matcher(context: CompletionContext) -> dict[str, Any]:
    """Complete a ``%torchjob`` or ``%%torchjob`` line (IPython's matcher API, version 2)."""
    found = _LINE.fullmatch(context.line_with_cursor[: context.cursor_position])
    if found is None:
        return {"completions": [], "suppress": False}
    cell = found[1] == "%%"
    texts = list(candidates(found[2], cell=cell))
    completions = [SimpleCompletion(text=text, type="param") for text in texts]
    return {"completions": completions, "suppress": bool(texts)}


def candidates(text: str, *, cell: bool) -> Iterable[str]:
    """Give what could stand at the end of ``text``, the line behind the magic's name."""
    before, _, word = text.rpartition(" ")
    words = before.split()
    if not cell and not words:
        return [verb for verb in VERBS if verb.startswith(word)]
    if words and words[-1].startswith("-"):
        values = options.choices(words[-1])
        if values:
            return [value for value in values if value.startswith(word)]
    if not cell and words[0] in _WITH_NAME:
        return [s.info.name for s in reversed(api.jobs()) if s.info.name.startswith(word)]
    return [flag for flag in options.flags() if word.startswith("-") and flag.startswith(word)]
