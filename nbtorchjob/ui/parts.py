"""What is said of jobs in titled parts, as text and as HTML (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.text.words import columns
from nbtorchjob.ui.elements import BOX, CARD, PLAIN, grid, pre, tag, told

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
        lines += [f"  {each}".rstrip() for each in (*columns(part.rows), *part.said, *part.wrote)]
    return "\n".join(lines)


def html(heading: str, parts: Iterable[Part]) -> str:
    """Return the same as :func:`text`, as HTML that a sanitiser leaves whole."""
    body = [tag("div", tag("b", escape(heading)), PLAIN)]
    for part in parts:
        body.append(tag("div", tag("b", escape(part.title)), "margin:8px 0 0"))
        body += [grid(part.rows, MAX_CELL)] if part.rows else []
        body += [told(each) for each in part.said]
        body += [pre([escape(each, quote=False) for each in part.wrote], BOX)] if part.wrote else []
    return tag("div", "\n".join(body), CARD, cls="nbtorchjob")
