"""The end of each rank's log, as lines of bounded length in a bounded number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import escape

from nbtorchjob.logs import LogTail
from nbtorchjob.text.ansi import Row, rows
from nbtorchjob.text.words import LINE, clip, count


@dataclass(frozen=True)
class Tail:
    """The newest lines of a log: as HTML, and how many there are in all that is known of it."""

    lines: tuple[str, ...]
    total: int
    last: str  # the newest line without colour, not escaped
    truncated: bool

    def __str__(self) -> str:
        if len(self.lines) == self.total and not self.truncated:
            return count(self.total, "line")
        told = f"last {count(len(self.lines), 'line')}"
        return told if self.truncated else f"{told} of {self.total}"


# Most ranks' logs don't change between two drawings, and reading 32 KiB takes a millisecond.
@lru_cache(maxsize=64)
def html_tail(log: LogTail, most: int, room: int) -> Tail:
    """Give the newest lines of ``log``: at most ``most``, in at most ``room`` bytes of HTML."""
    known = _rows(log)
    lines: list[str] = []
    for row in reversed(known[-most:]):
        html = _html(row, room)
        if html is None and not lines:  # one line at least, whatever it holds
            html = escape(row.text(max(2, room // 6)), quote=False)
        if html is None:
            break
        lines.insert(0, html)
        room -= len(html.encode()) + 1
    last = known[-1].text(LINE) if known else ""
    return Tail(tuple(lines), len(known), last, log.truncated)


def text_tail(log: LogTail, most: int) -> list[str]:
    """Give the newest ``most`` lines of ``log`` without colour."""
    return [row.text(LINE) for row in _rows(log)[-most:]]


def snippet(tail: Tail, most: int) -> str:
    """Give the start of the newest line, not escaped."""
    return clip(tail.last.strip(), most)


def _rows(log: LogTail) -> list[Row]:
    known = rows(log.text())
    while known and not known[-1].text().strip():
        known.pop()
    return known


def _html(row: Row, room: int) -> str | None:
    """Give the line in colour, or without where that takes too much room."""
    for html in (row.html(LINE), escape(row.text(LINE), quote=False)):
        if len(html.encode()) < room:
            return html
    return None
