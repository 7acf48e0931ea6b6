"""Lines of a container's log as the API sends them with ``timestamps=true`` (pure).

The facts behind it, from a Kubernetes 1.36 with containerd: every line has its own stamp, but lines of
stdout and stderr written close together may stand in the file the other way round; ``sinceTime`` is cut to
whole seconds; a line above 16 KiB is stored in pieces with a stamp each and served joined under the
first, unless ``sinceTime`` leaves out some of its pieces.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from operator import methodcaller
from typing import NamedTuple

# A stdout line may be written this many lines after a stderr line that was stamped later, and the other
# way round; at 100,000 lines a second that is a sixth of a second.
_REMEMBERED = 1 << 14
# Nothing that is meant to be read is longer; a program that writes for ever without a newline gets cut.
_LONGEST = 1 << 20
# By what stamps are sorted. Old kubelets leave out trailing zeros: without the "Z", "…:05.1" still sorts
# before "…:05.12"; what other zones begin with sorts before any digit. No Python for each of many lines.
_order = methodcaller("rstrip", b"Z")


class Line(NamedTuple):
    """One line without its newline; ``stamp`` is when it was written (RFC 3339, nanoseconds)."""

    stamp: bytes
    data: bytes


class Splitter:
    """Makes lines of what arrives, wherever it was split."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that ``chunk`` ends."""
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._rest, whole[0]])
            self._rest, self._length = [], 0
        if rest and self._length < _LONGEST:
            self._rest.append(rest)
            self._length += len(rest)
        return _lines(whole)

    def end(self) -> list[Line]:
        """Return the last line, which has no newline where the program wrote none."""
        return _lines([b"".join(self._rest)])


def _lines(raw: Iterable[bytes]) -> list[Line]:
    # The kubelet answers 200 with "unable to retrieve container logs for …" where there is no log any
    # more: what has no stamp is no line.
    parts = (one.partition(b" ") for one in raw if one[10:11] == b"T")
    return [Line(stamp, data) for stamp, _, data in parts]


class Seen:
    """Which lines were given already, so that a log can be asked for again."""

    def __init__(self) -> None:
        self._recent: deque[bytes] = deque()
        self._before = b""  # all that is stamped up to here was given
        self._latest = b""

    def add(self, lines: Iterable[Line]) -> None:
        """Note that these were given."""
        stamps = [line.stamp for line in lines]
        self._recent.extend(stamps)
        self._latest = max([self._latest, *stamps], key=_order)
        old = [self._recent.popleft() for _ in range(len(self._recent) - _REMEMBERED)]
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
