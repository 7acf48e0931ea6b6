r"""What a terminal would show of a log: ``\r``, ``\b``, erasing, moving up, colours.

Escape sequences are those of ECMA-48. The cursor never moves past the end of a row, so no
sequence can make more characters than were written: the work stays linear in the input.

Addresses of pages become links, and nothing else: a log may contain anything that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

from nbtorchjob.text.colours import INK, PLAIN, Style, css, restyle
from nbtorchjob.text.terminal import CONTROLS
from nbtorchjob.text.words import clip

_URL = re.compile(r"\bhttps?://[^\s<>\"'`\x00-\x1f\x7f-\x9f]+", re.IGNORECASE)
_AFTER = ".,;:!?…*_~"  # what follows an address in a sentence
_PAIRS = {")": "(", "]": "[", "}": "{"}
# A page colours links for its own ground, and a sanitiser leaves no "inherit".
_STYLE = f"color:{INK};text-decoration:underline"


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each ``http`` or ``https`` address starts and ends."""
    for match in _URL.finditer(text):
        url = match[0]
        while url[-1] in _AFTER or (url[-1] in _PAIRS and url.count(url[-1]) > url.count(_PAIRS[url[-1]])):
            url = url[:-1]
        if not url.endswith("//"):
            yield match.start(), match.start() + len(url)


def link(url: str, body: str) -> str:
    """Return a link around ``body``, which is HTML."""
    return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer" style="{_STYLE}">{body}</a>'


_TOKEN = re.compile(
    f"(?P<text>[^{CONTROLS}]+)"
    r"|(?P<move>[\n\r\b])"
    r"|(?P<csi>(?:\x1b\[|\x9b)(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])?)"
    # OSC, DCS and the like carry text that isn't displayed; a broken one ends with its line.
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_NEWLINE = re.compile("\r+\n")


@dataclass
class Row:
    """One line of the screen: its characters, and the style of each."""

    chars: list[str] = field(default_factory=list)
    styles: list[Style] = field(default_factory=list)

    def text(self, most: int | None = None) -> str:
        """Return the line without colour, cut to ``most`` characters."""
        return "".join(self.chars) if most is None else clip("".join(self.chars), most)

    def html(self, most: int | None = None) -> str:
        """Return the line as escaped HTML with links, cut to ``most`` visible characters."""
        text, whole = self.text(most), self.text()
        at, out = 0, []
        for start, end in spans(whole):
            if text[:end] == whole[:end]:  # half an address leads nowhere
                out += [
                    self._html(text, at, start),
                    link(whole[start:end], self._html(text, start, end)),
                ]
                at = end
        return "".join([*out, self._html(text, at, len(text))])

    def _html(self, text: str, at: int, last: int) -> str:
        out = []
        for style, run in groupby(self.styles[at:last]):
            end = at + sum(1 for _ in run)
            part = escape(text[at:end], quote=False)
            out.append(part if style == PLAIN else f'<span style="{css(style)}">{part}</span>')
            at = end
        return "".join(out)


@dataclass
class _Screen:
    rows: list[Row] = field(default_factory=lambda: [Row()])
    at: int = 0
    column: int = 0
    style: Style = PLAIN

    def write(self, text: str) -> None:
        row, end = self.rows[self.at], self.column + len(text)
        row.chars[self.column : end] = text
        row.styles[self.column : end] = [self.style] * len(text)
        self.column = end

    def move(self, key: str) -> None:
        if key == "\b":
            self.column = max(0, self.column - 1)
            return
        self.column = 0
        if key == "\n":
            self.at += 1
            if self.at == len(self.rows):
                self.rows.append(Row())

    def control(self, final: str, args: str) -> None:
        if final == "m":
            self.style = restyle(self.style, args)
        elif final == "K":
            self.erase(args)
        elif final in "ABCDG" and (not args or args.isdigit()):
            self.go(final, int(args[-4:] or "1"))

    def erase(self, args: str) -> None:
        row = self.rows[self.at]
        if args == "2":
            self.column = 0
        if args in ("", "0", "2"):
            del row.chars[self.column :], row.styles[self.column :]

    def go(self, final: str, far: int) -> None:
        if final in "AB":
            down = far if final == "B" else -far
            self.at = min(max(0, self.at + down), len(self.rows) - 1)
        else:
            self.column = {"C": self.column + far, "D": self.column - far, "G": far - 1}[final]
        self.column = min(max(0, self.column), len(self.rows[self.at].chars))


def rows(text: str) -> list[Row]:
    """Return the lines that a terminal as tall as the text would show."""
    screen = _Screen()
    for token in _TOKEN.finditer(_NEWLINE.sub("\n", text)):
        if token["text"] is not None:
            screen.write(token["text"])
        elif token["move"] is not None:
            screen.move(token["move"])
        elif token["final"] is not None:
            screen.control(token["final"], token["args"])
    return screen.rows


def to_html(text: str) -> str:
    """Return what a terminal would show as escaped HTML, with its colours as inline styles."""
    return "\n".join(row.html() for row in rows(text))


def to_text(text: str) -> str:
    """Return what a terminal would show, without colour."""
    return "\n".join(row.text() for row in rows(text))
