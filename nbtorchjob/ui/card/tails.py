"""The end of each rank's log, as lines of bounded length in a bounded number of bytes, and folded away."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from html import escape

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state.facts.logs import LogTail
from nbtorchjob.text.colours import Row, of_rank, rows
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import DOT, LINE, clip, count, size
from nbtorchjob.ui.elements import DIM, MONO, fold, screen, tag, text_line

_LEAD_BYTES = 9_000
_OTHER_BYTES = 3_000
_FRAME_BYTES = 760  # the most that one rank's log takes around its lines
_LEAST_BYTES = 1_100  # with less, a log isn't worth its place
_LEAD_LINES = 30
_OTHER_LINES = 12
_MAX_RANKS = 16
_MOST_OTHERS = 4
_LAST = f"{MONO};white-space:pre;{DIM}"


class Tail(FrozenDataclass):
    """The newest lines of a log: as HTML, and how many lines are known in all."""

    lines: tuple[str, ...]
    total: int
    last: str  # the newest line without colour, not escaped
    truncated: bool
    size: int  # bytes, over all known rounds

    def __str__(self) -> str:
        if len(self.lines) == self.total and not self.truncated:
            return count(self.total, "line")
        text = f"last {count(len(self.lines), 'line')}"
        return f"{text} of {size(self.size)}" if self.truncated else f"{text} of {self.total}"


# Most ranks' logs don't change between two drawings, and reading 32 KiB takes a millisecond.
@lru_cache(maxsize=64)
def html_tail(log: LogTail, most: int, room: int) -> Tail:
    """Return the newest lines of ``log``: at most ``most``, in at most ``room`` bytes of HTML."""
    log_rows = _rows(log)
    lines: list[str] = []
    for row in reversed(log_rows[-most:]):
        # The line in colour, or without if that takes too much room
        forms = (row.html(LINE), escape(row.text(LINE), quote=False))
        html = next((form for form in forms if len(form.encode()) < room), None)
        if html is None and not lines:  # one line at least, whatever it holds
            html = escape(row.text(max(2, room // 6)), quote=False)
        if html is None:
            break
        lines.insert(0, html)
        room -= len(html.encode()) + 1
    last = log_rows[-1].text(LINE) if log_rows else ""
    return Tail(tuple(lines), len(log_rows), last, log.truncated, log.size)


def text_tail(log: LogTail, most: int) -> list[str]:
    """Return the newest ``most`` lines of ``log`` without colour."""
    return [row.text(LINE) for row in _rows(log)[-most:]]


# The node table shows it for ranks whose logs the card may leave out.
@lru_cache(maxsize=64)
def newest(log: LogTail) -> str:
    """Return the newest line of ``log`` without colour, not escaped; empty where there is none."""
    log_rows = _rows(log)
    return log_rows[-1].text(LINE).strip() if log_rows else ""


def printed(log: LogTail, name: str, *, deleted: bool = False) -> str:
    """Return the known part of a log as a cell prints it, with its last line ended."""
    text = log.text()
    rest = "" if deleted else f" all of it: {hint('logs', name)}"
    cut = f"[…{rest}]\n" if log.pieces and log.pieces[0].offset else ""
    return cut + text + "\n" * (bool(text) and not text.endswith("\n"))


def others(logs: Mapping[int, LogTail], name: str, *, deleted: bool = False) -> list[str]:
    """Say how much each other rank printed, and how to see it; empty if they printed nothing.

    For a job that is ``deleted``, show the last lines themselves.
    """
    notes: list[str] = []
    for rank in sorted(logs):
        many = len(_rows(logs[rank]))
        if rank and many:
            lines = [f"  {text}" for text in text_tail(logs[rank], _OTHER_LINES)] if deleted else []
            last = f", last {count(len(lines), 'line')}" if deleted and len(lines) < many else ""
            where = "" if deleted else f" {hint('logs', name, f'--rank {rank}')}"
            notes.append("\n".join([f"rank {rank} printed {count(many, 'line')}{last}:{where}", *lines]))
    more = len(notes) - _MOST_OTHERS
    return [*notes[:_MOST_OTHERS], *([f"and {count(more, 'more rank')}"] if more > 0 else [])]


def folds(
    logs: Mapping[int, LogTail],
    lead: int,
    room: int,
    opened: Collection[int],
    silent: Collection[int] = (),
    *,
    total: int | None = None,
) -> list[str]:
    """Return the ranks' logs as HTML in at most ``room`` bytes: the ``lead``'s first, and most of it.

    Logs of ranks in ``opened`` are unfolded; the last line of those in ``silent`` is shown elsewhere.
    ``total`` is how many ranks have a log, by default the number of ``logs``.
    """
    order = sorted(logs, key=lambda rank: (rank != lead, rank))
    shown = order[: max(1, min(_MAX_RANKS, room // _LEAST_BYTES))]
    room -= _FRAME_BYTES * len(shown)
    first = min(_LEAD_BYTES, room // 2)
    other = min(_OTHER_BYTES, (room - first) // max(1, len(shown) - 1))
    out = []
    for rank in shown:
        lines, most = (_LEAD_LINES, first) if rank == lead else (_OTHER_LINES, other)
        tail = html_tail(logs[rank], lines, most)
        if tail.lines:
            snippet = tag("span", escape(clip(tail.last.strip(), 44), quote=False), _LAST)
            last = "" if rank in opened or rank in silent else DOT + snippet
            mark = tag("span", "", f"border-left:3px solid {of_rank(rank)};padding-left:5px")
            title = f"{mark}rank {rank}{DOT}{tail}{last}"
            out.append(fold(title, screen(tail.lines), opened=rank in opened))
    more = (len(order) if total is None else total) - len(shown)
    return [*out, text_line(f"… and {count(more, 'more rank')}")] if more else out


def _rows(log: LogTail) -> list[Row]:
    log_rows = rows(log.text())
    while log_rows and not log_rows[-1].text().strip():
        log_rows.pop()
    return log_rows
