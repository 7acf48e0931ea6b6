"""The few HTML elements that cards are made of, and titled parts about jobs, as lines and as HTML (pure).

They must survive JupyterLab's sanitiser in an untrusted notebook (4.4, sanitizer.ts): semantic tags, and
inline styles without ``var()``, ids or scripts. Text keeps the page's colour, so that it is readable in
any theme; elements with colours of their own have a background of their own.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from nbtorchjob.backends.base import Finding
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import JobInfo, Phase
from nbtorchjob.text import words
from nbtorchjob.text.colours import GROUND, INK, RGB
from nbtorchjob.text.words import LINE, columns, line

# The JupyterLab extension takes the theme's colours, by the same phases (``style/logs.css``).
PHASES: Mapping[Phase, RGB] = {
    Phase.SUBMITTED: (128, 128, 128),
    Phase.PENDING: (191, 135, 0),
    Phase.RUNNING: (9, 105, 218),
    Phase.SUCCEEDED: (45, 164, 78),
    Phase.FAILED: (209, 36, 47),
    Phase.CANCELLED: (128, 128, 128),
}
STALLED: RGB = (191, 135, 0)  # like a waiting job

BORDER = "rgba(128,128,128,0.4)"
CARD = f"border:1px solid {BORDER};border-radius:4px;padding:8px 12px;max-width:960px"
BOX = "margin:4px 0;padding:6px 8px;background-color:rgba(128,128,128,0.12)"
# Laid out from its end, so that a box that is too small shows the newest lines.
_SCREEN = (
    f"margin:4px 0;padding:6px 8px;background-color:{GROUND};border-radius:3px;"
    "display:flex;flex-direction:column-reverse;max-height:136px;overflow:auto"
)
# nbconvert's page shows a pre in its text font, which misaligns a log's columns.
MONO = "font:12px monospace"
DIM = "opacity:0.7"
PLAIN = "margin:4px 0"
_WRAPPED = f"{PLAIN};overflow-wrap:anywhere"  # one word may be longer than the card is wide
SMALL = f"{PLAIN};font-size:12px;{DIM}"
_PRE = f"margin:0;flex-shrink:0;background:transparent;white-space:pre-wrap;overflow-wrap:break-word;{MONO}"
_CELL = "text-align:left"
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]{1,40}")


@cache
def asset(module: str, name: str) -> str:
    """Return the text of a file that lies beside a module's own: a script or a style sheet."""
    return Path(module).with_name(name).read_text(encoding="utf-8").strip()


def tag(name: str, body: str, style: str = "", *, cls: str = "") -> str:
    """Return an element around ``body``, which is HTML."""
    attributes = (f' class="{cls}"' if cls else "") + (f' style="{style}"' if style else "")
    return f"<{name}{attributes}>{body}</{name}>"


def text_line(text: str, style: str = _WRAPPED) -> str:
    """Return a line of text; nothing for an empty one."""
    return tag("div", prose(line(text, LINE)), style) if text else ""


def prose(text: str) -> str:
    """Return a text as HTML that keeps each option on one line: browsers break lines after hyphens."""
    return _OPTION.sub(r'<span style="white-space:nowrap">\g<0></span>', escape(text))


def titled(title: str, lines: Sequence[str]) -> str:
    """Return a list of texts below a title; nothing where there are none."""
    items = "".join(tag("li", prose(line(text, LINE))) for text in lines)
    return tag("div", escape(title), "margin:4px 0 0") + tag("ul", items, "margin:0 0 4px") if lines else ""


def grid(rows: Sequence[Sequence[str]], most: int) -> str:
    """Return a table of texts whose first row is its head, each cut to ``most`` characters."""
    body = ""
    for number, row in enumerate(rows):
        cell = "td" if number else "th"
        body += tag("tr", "".join(tag(cell, escape(line(text, most)), _CELL) for text in row))
    # Set once for all cells: a card may have a hundred of them.
    return f'<table cellpadding="4" style="border-collapse:collapse;{PLAIN}">{body}</table>'


def pre(lines: Sequence[str], box: str) -> str:
    """Return lines of HTML as they are, in a box of the style ``box``."""
    return tag("div", preformatted(lines), box)


def preformatted(lines: Sequence[str]) -> str:
    """Return lines of HTML as they are; nothing where there are none."""
    return tag("pre", "\n".join(lines), _PRE) if lines else ""


def screen(lines: Sequence[str]) -> str:
    """Return lines of HTML on a terminal's background, in a box that scrolls, also by keys."""
    # A page colours a pre itself: JupyterLab with its own text colour, whatever surrounds it.
    text = tag("pre", "\n".join(lines), f"{_PRE};color:{INK}")
    return f'<div class="nbt-log" style="{_SCREEN}" tabindex="0">{text}</div>'


def meant(info: JobInfo) -> dict[str, object]:
    """Return what identifies a job to a page, but not a later one that has its id once it was deleted."""
    # The creation time of a lab's turn may be known only once the lab has accepted it.
    return {"id": info.id, **({} if info.of_lab else {"created": info.created})}


def action(label: str, command: str, arguments: Mapping[str, object], *, of: str = "") -> str:
    """Return a button that runs a command of our JupyterLab extension; the style there shows its label.

    Elsewhere it is invisible: it has no text that a page could show without the button. If several buttons
    have one label, ``of`` tells them apart for screen readers.
    """
    attributes = (
        f'data-commandlinker-command="{command}" data-commandlinker-args="{escape(json.dumps(arguments))}"'
    )
    named = f'aria-label="{escape(f"{label} of {of}")}" ' if of else ""
    return _button(label, named + attributes)


def inserting(label: str, text: str) -> str:
    """Return a button as above that puts ``text``, a ``%%torchjob`` line, into a cell.

    JupyterLab (4.6) trusts no widget's output, and asks before it runs a command for one. Our extension
    handles this button itself, as it runs nothing.
    """
    return _button(label, f'data-nbtorchjob-line="{escape(text)}"')


def _button(label: str, attributes: str) -> str:
    hidden = 'style="display:none" hidden'
    return f'<button class="nbtorchjob-do" title="{escape(label)}" {hidden} {attributes}></button>'


def fold(summary: str, body: str, *, opened: bool = False) -> str:
    """Return ``body`` folded under ``summary``; both are HTML."""
    head = f'<details style="{PLAIN}"{" open" if opened else ""}>'
    return f"{head}{tag('summary', summary)}{body}</details>"


MAX_CELL = 470  # characters of a table's cell


class Part(FrozenDataclass):
    """A titled part: a table whose first row is its head, sentences, and lines as they were written."""

    title: str
    rows: Sequence[tuple[str, ...]] = ()
    sentences: Sequence[str] = ()
    wrote: Sequence[str] = ()


def text(heading: str, parts: Iterable[Part]) -> str:
    """Return the parts below a heading in plain text."""
    lines = [heading]
    for part in parts:
        lines += ["", f"{part.title}:"]
        lines += [f"  {row}".rstrip() for row in (*columns(part.rows), *part.sentences, *part.wrote)]
    return "\n".join(lines)


def html(heading: str, parts: Iterable[Part], top: str = "") -> str:
    """Return the same as :func:`text`, as HTML that a sanitiser leaves whole; ``top`` comes first, if any."""
    body = [tag("div", tag("b", escape(heading)), PLAIN), *([top] if top else [])]
    for part in parts:
        body.append(tag("div", tag("b", escape(part.title)), "margin:8px 0 0"))
        body += [grid(part.rows, MAX_CELL)] if part.rows else []
        body += [text_line(row) for row in part.sentences]
        body += [pre([escape(row, quote=False) for row in part.wrote], BOX)] if part.wrote else []
    return tag("div", "\n".join(body), CARD, cls="nbtorchjob")


_WIDTH = 110  # characters that a cell's output shows without wrapping


def finding_lines(findings: Iterable[Finding]) -> str:
    """Return each finding after its mark, with what to do about it, and how many are bad."""
    listed = list(findings)
    wrong = sum(not finding.good for finding in listed)
    end = f"{words.count(wrong, 'line')} marked !! above" if wrong else "No problems found."
    lines: list[str] = []
    for finding in listed:
        mark = "ok  " if finding.good else "!!  "
        # A name or an address that is split can't be copied.
        text = textwrap.fill(
            finding.text,
            _WIDTH,
            initial_indent=mark,
            subsequent_indent=" " * len(mark),
            break_long_words=False,
            break_on_hyphens=False,
        )
        # At the margin, so that it can be pasted: in YAML an indented "---" ends no document.
        lines += [text, finding.remedy] if finding.remedy else [text]
    return "\n".join([*lines, "", end])
