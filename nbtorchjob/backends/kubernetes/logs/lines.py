"""Lines of a container's log as the API sends them with ``timestamps=true`` (pure).

The facts behind it, from a Kubernetes 1.36 with containerd: every line has its own stamp, but lines of
stdout and stderr written close together may stand in the file the other way round; ``sinceTime`` is cut to
whole seconds; a line above 16 KiB is stored in pieces with a stamp each and served joined under the
first, unless ``sinceTime`` leaves out some of its pieces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import methodcaller
from typing import TypeAlias

# When a line was written (RFC 3339, nanoseconds), and the line without its newline. A class of our own would
# take longer to make than all else that is done with one of a million lines.
Line: TypeAlias = "tuple[bytes, bytes]"

# A stdout line may be written this many lines after a stderr line that was stamped later, and the other
# way round; at 100,000 lines a second that is a sixth of a second.
_REMEMBERED = 1 << 14
# Nothing that is meant to be read is longer; a program that writes for ever without a newline gets cut.
_LONGEST = 1 << 20
# By what stamps are sorted. Old kubelets leave out trailing zeros: without the "Z", "…:05.1" still sorts
# before "…:05.12"; what other zones begin with sorts before any digit. No Python for each of many lines.
_order = methodcaller("rstrip", b"Z")
# The kubelet answers 200 with "unable to retrieve container logs for …" where there is no log any more: what
# has no stamp is no line.
_lines = re.compile(rb"^([^ \n]{10}T[^ \n]*) ?(.*)$", re.MULTILINE).findall


class Splitter:
    """Makes lines of what arrives, wherever it was split."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that ``chunk`` ends."""
        end, whole = chunk.rfind(b"\n"), b""
        if end >= 0:
            whole = b"".join([*self._rest, chunk[:end]])
            self._rest, self._length = [], 0
        rest = chunk[end + 1 :]
        if rest and self._length < _LONGEST:
            self._rest.append(rest)
            self._length += len(rest)
        return _lines(whole)

    def end(self) -> list[Line]:
        """Return the last line, which has no newline where the program wrote none."""
        return _lines(b"".join(self._rest))


class Seen:
    """Which lines were given already, so that a log can be asked for again."""

    def __init__(self) -> None:
        self._recent: list[bytes] = []
        self._before = b""  # all that is stamped up to here was given
        self._latest = b""

    def add(self, lines: Sequence[Line]) -> None:
        """Note that these were given."""
        stamps = [stamp for stamp, _ in lines]
        self._latest = max([self._latest, *stamps], key=_order)
        given = self._recent + stamps
        old, self._recent = given[:-_REMEMBERED], given[-_REMEMBERED:]
        self._before = max([self._before, *map(_order, old)])

    @property
    def since(self) -> str:
        """From when to ask again (``sinceTime``); empty: from the start.

        One second early: a line that was stamped before the latest may stand behind it.
        """
        return earlier(self._latest) if self._latest else ""

    def repeats(self) -> Repeats:
        """Return what a new answer will repeat."""
        return Repeats(Counter(self._recent), self._before)


class Repeats:
    """What an answer repeats. It comes first: nothing new stands before a line that was given."""

    def __init__(self, owed: Counter[bytes], before: bytes) -> None:
        self._owed = owed
        self._before = before

    def drop(self, lines: list[Line]) -> list[Line]:
        """Return the lines behind the last one that was given already.

        What stands before it and wasn't is no line: ``sinceTime`` took the first pieces from it.
        """
        if not self._owed:
            return lines
        new = 0
        for index, (stamp, _) in enumerate(lines, 1):
            if self._owed.get(stamp, 0):
                self._owed[stamp] -= 1
                new = index
            elif _order(stamp) <= self._before:
                new = index
        return lines[new:]


def earlier(stamp: bytes) -> str:
    """Return the full second before the one of ``stamp``, in its own time zone, as ``sinceTime`` takes it."""
    second = datetime.fromisoformat(stamp[:19].decode()) - timedelta(seconds=1)
    return second.isoformat() + ("Z" if stamp.endswith(b"Z") else stamp[-6:].decode())
