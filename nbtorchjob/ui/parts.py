"""Titled parts about jobs, and a doctor's findings, as lines and as HTML (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from nbtorchjob.backends.base import Finding
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.text import words
from nbtorchjob.text.words import columns
from nbtorchjob.ui.elements import BOX, CARD, PLAIN, grid, pre, tag, text_line

MAX_CELL = 470  # characters of a table's cell


class Part(FrozenDataclass):
    """A titled part: a table whose first row is its head, sentences, and lines as they were written."""

    title: str
    rows: Sequence[tuple[str, ...]] = ()
    said: Sequence[str] = ()
    wrote: Sequence[str] = ()


def text(heading: str, parts: Iterable[Part]) -> str:
    """Return them in plain text."""
    lines = [heading]
    for part in parts:
        lines += ["", f"{part.title}:"]
        lines += [f"  {row}".rstrip() for row in (*columns(part.rows), *part.said, *part.wrote)]
    return "\n".join(lines)


def html(heading: str, parts: Iterable[Part], top: str = "") -> str:
    """Return the same as :func:`text`, as HTML that a sanitiser leaves whole; ``top`` comes first, if any."""
    body = [tag("div", tag("b", escape(heading)), PLAIN), *([top] if top else [])]
    for part in parts:
        body.append(tag("div", tag("b", escape(part.title)), "margin:8px 0 0"))
        body += [grid(part.rows, MAX_CELL)] if part.rows else []
        body += [text_line(row) for row in part.said]
        body += [pre([escape(row, quote=False) for row in part.wrote], BOX)] if part.wrote else []
    return tag("div", "\n".join(body), CARD, cls="nbtorchjob")


_WIDTH = 110  # characters that a cell's output shows without wrapping


def finding_lines(findings: Iterable[Finding]) -> str:
    """Return each finding after its mark, with what to do about it, and how many are bad."""
    listed = list(findings)
    wrong = sum(not finding.good for finding in listed)
    end = f"{words.count(wrong, 'line')} marked !! above" if wrong else "No problems found."
    return "\n".join([*(line for finding in listed for line in _lines(finding)), "", end])


def _lines(finding: Finding) -> Iterator[str]:
    yield _wrapped("ok  " if finding.good else "!!  ", finding.text)
    if finding.remedy:
        # At the margin, so that it can be pasted: in YAML an indented "---" ends no document.
        yield finding.remedy


def _wrapped(mark: str, said: str) -> str:
    # A name or an address that is split can't be copied.
    return textwrap.fill(
        said,
        _WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
