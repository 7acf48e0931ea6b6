"""A rank's error with its frames, and folded under each what its variables were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

from nbtorchjob.runtime.errors import Error
from nbtorchjob.state.text import failures
from nbtorchjob.state.text.tracebacks import ARROW, SourceLookup, pieces
from nbtorchjob.text.words import LINE, clip, count, fit, line
from nbtorchjob.ui.elements import BOX, SMALL, fold, preformatted, tag

Variables: TypeAlias = Sequence[tuple[str, str]]

_MOST_BYTES = 6_000  # of all frames' variables; the innermost frames' come first
_MAX_NAMES = 60
_INDENTED = "padding-left:16px"


def html(error: Error, source: SourceLookup) -> str:
    """Return the traceback in a box; of a long one the middle is left out."""
    lines: list[str] = []
    found: dict[int, Variables] = {}  # by the last line of their frame
    for text, frame in pieces(error, source):
        lines += [_marked(escape(clip(each, LINE), quote=False)) for each in text.split("\n")]
        if frame is not None and frame.variables:
            found[len(lines) - 1] = frame.variables
    shown = fit(lines, failures.MOST_BYTES)
    out, begin = [], 0
    for at, drawn in sorted(_folds(_moved(found, lines, shown)).items()):
        out += [preformatted(shown[begin : at + 1]), drawn]
        begin = at + 1
    return tag("div", "".join([*out, preformatted(shown[begin:])]), BOX)


def _marked(line: str) -> str:
    """Return a line of HTML, with a class where it is the one that failed."""
    return tag("span", line, cls="nbt-line") if line.startswith(ARROW) else line


def _moved(found: Mapping[int, Variables], lines: list[str], shown: list[str]) -> dict[int, Variables]:
    """Return what comes after which line, where some lines in the middle are left out."""
    if len(shown) == len(lines):
        return {**found}
    gone = len(lines) - len(shown)
    head = next(at for at, each in enumerate(shown) if each != lines[at])
    kept = {at: each for at, each in found.items() if at < head}
    return kept | {at - gone: each for at, each in found.items() if at > head + gone}


def _folds(found: Mapping[int, Variables]) -> dict[int, str]:
    room, folds = _MOST_BYTES, {}
    for at in sorted(found, reverse=True):
        rows = [*_fitting(found[at], room)]
        room -= sum(len(row.encode()) for row in rows)
        if rows:
            more = len(found[at]) - len(rows)
            rest = [f"… and {more} more: describe lists them"] if more else []
            names = line(", ".join(name for name, _ in found[at]), _MAX_NAMES)
            summary = tag("span", escape(f"{count(len(found[at]), 'variable')}: {names}"), SMALL)
            folds[at] = fold(summary, tag("div", preformatted([*rows, *rest]), _INDENTED), opened=False)
    return folds


def _fitting(variables: Variables, room: int) -> Iterator[str]:
    for name, told in variables:
        row = f"<b>{escape(line(name, LINE))}</b> = {escape(line(told, LINE), quote=False)}"
        room -= len(row.encode())
        if room < 0:
            return
        yield row
