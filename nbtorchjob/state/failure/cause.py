"""A cause: whose fault it is, the two lines that say so, and the row of the table that leads to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from nbtorchjob.frozen import FrozenDataclass


class Cause(Enum):
    """Whose it was."""

    USER = "user"  # the code, or what it needs
    CONFIG = "config"  # the job as asked for can't run there
    INFRA = "infrastructure"  # the machine, the network, somebody else's preemption
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    WAIT = "wait"  # nobody's: it goes on by itself
    UNKNOWN = "unknown"


class Reason(FrozenDataclass):
    """A cause, one line that says what happened, and one that says what to do about it.

    ``crash`` tells what a signal ended, or the kernel for its memory, from what raised or exited.
    """

    cause: Cause
    line: str
    hint: str = ""
    crash: bool = False


class Row(FrozenDataclass):
    """What a sign means.

    ``word`` and ``text`` are patterns: of the whole sign, and of a part of what was said with it. In
    ``line``, ``{word}`` stands for the sign, ``{text}`` for what was said, ``{name}`` for the first
    thing in quotes there with a blank before it, and ``text``'s named groups for themselves, also in
    ``hint``. What waits may do so for ``grace_s`` seconds before it is anybody's fault.
    """

    word: str
    cause: Cause
    line: str
    hint: str = ""
    text: str = ""
    grace_s: float = 0.0
    crash: bool = False

    def fits(self, word: str, text: str) -> bool:
        """Whether it is the row of this sign."""
        return bool(re.fullmatch(self.word, word, re.DOTALL)) and self._match(text) is not None

    def reason(self, word: str, text: str) -> Reason:
        """Return its cause with its line filled in."""
        match = self._match(text)
        hint = self.hint.format(**match.groupdict()) if match and match.groupdict() else self.hint
        return Reason(self.cause, self.say(word, text), hint, self.crash)

    def say(self, word: str, text: str) -> str:
        """Return its line filled in."""
        match = self._match(text)
        quoted = re.search(r'"([^"]+)"', text)
        parts = {**(match.groupdict() if match else {}), "name": f" {quoted[1]}" if quoted else ""}
        return self.line.format(word=word, text=text, **parts).rstrip(": ")

    def _match(self, text: str) -> re.Match[str] | None:
        return re.search(self.text, text, re.DOTALL)


def find(rows: Iterable[Row], word: str, text: str = "") -> Row | None:
    """Return the first row that fits a sign and what was said with it; None where none does."""
    return next((row for row in rows if row.fits(word, text)), None)
