"""The line behind ``%torchjob`` and a verb, taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError

from nbtorchjob.layers import split

# Blanks end a word, so that a line without a call is refused at once, however many options it has.
_WORD = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
RUN = re.compile(
    rf"(?P<options>(?:-{_WORD}\s+(?:(?!-){_WORD}\s+)??)*?)(?P<call>[A-Za-z_][\w.]*\s*\(.*)", re.DOTALL
)


def words(
    verb: str, rest: str, known: dict[str, Callable[[str], Any] | None]
) -> tuple[list[str], dict[str, Any]]:
    """Split a verb's line into its words, at most one, and its few flags with their values.

    ``known`` converts each flag's value; a flag of None takes none. Raises ``UsageError``.
    """
    found: list[str] = []
    flags: dict[str, Any] = {}
    parts = iter(split(rest, f"%torchjob {verb}"))
    for part in parts:
        if not part.startswith("-"):
            found.append(part)
            continue
        if part not in known:
            allowed = ", ".join(known) or "none"
            raise UsageError(f"%torchjob {verb}: unknown option {part}; there are {allowed}")
        convert = known[part]
        try:
            flags[part] = True if convert is None else convert(next(parts))
        except (StopIteration, ValueError):
            raise UsageError(f"%torchjob {verb}: {part} needs a value") from None
    if len(found) > 1:
        raise UsageError(f"%torchjob {verb}: one job at a time, got {' '.join(found)}")
    return found, flags


def names(verb: str, rest: str) -> list[str]:
    """Give the names on a verb's line, at least one; raises ``UsageError``."""
    found = split(rest, f"%torchjob {verb}")
    if not found:
        raise UsageError(f"%torchjob {verb}: which job? See %torchjob list")
    return found


def nothing(verb: str, rest: str) -> None:
    """Refuse a line that holds anything; raises ``UsageError``."""
    if rest:
        raise UsageError(f"%torchjob {verb} takes nothing more, got {rest!r}")
