r"""Terminal colours as inline CSS that is readable on one background, and a log as a terminal would show it.

A log has ``\r``, ``\b``, erasing, moving up and colours. Escape sequences are those of ECMA-48. The cursor
never moves past the end of a row, so no sequence can make more characters than were written: the work stays
linear in the input. Only web addresses become links: a log may contain anything that looks like one.
"""

from __future__ import annotations

import colorsys
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from nbtorchjob.text import CONTROLS
from nbtorchjob.text.words import clip

RGB: TypeAlias = tuple[int, int, int]


class Style(NamedTuple):
    """How a character is drawn."""

    fg: RGB | None = None
    bg: RGB | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False


PLAIN = Style()

# A page is light or dark, and no colour has a contrast of 4.5 (WCAG 2.1, 1.4.3) on both #fff and #111: the
# most is 4.35. So coloured text has a terminal's background.
GROUND, INK = "#1b1f24", "#e6edf3"
_DARKEST = 0.24  # the relative luminance from which a colour has a contrast of 4.5 on GROUND

_BASE: tuple[RGB, ...] = (
    (0, 0, 0),
    (205, 49, 49),
    (13, 148, 80),
    (180, 130, 0),
    (36, 114, 200),
    (188, 63, 188),
    (17, 140, 170),
    (200, 200, 200),
    (102, 102, 102),
    (241, 76, 76),
    (35, 170, 100),
    (210, 160, 20),
    (59, 142, 234),
    (214, 112, 214),
    (41, 165, 200),
    (255, 255, 255),
)

# What each SGR code sets (ECMA-48 8.3.117, and the bright colours of aixterm).
_SETS: dict[int, dict[str, Any]] = {
    1: {"bold": True},
    2: {"dim": True},
    3: {"italic": True},
    4: {"underline": True},
    22: {"bold": False, "dim": False},
    23: {"italic": False},
    24: {"underline": False},
    39: {"fg": None},
    49: {"bg": None},
    **{30 + i: {"fg": _BASE[i]} for i in range(8)},
    **{40 + i: {"bg": _BASE[i]} for i in range(8)},
    **{90 + i: {"fg": _BASE[8 + i]} for i in range(8)},
    **{100 + i: {"bg": _BASE[8 + i]} for i in range(8)},
}


def restyle(style: Style, args: str) -> Style:
    """Return the style after an SGR sequence with these arguments; a private one changes nothing."""
    parts = args.replace("::", ":").replace(":", ";").split(";")
    if not all(part.isdigit() or not part for part in parts):
        return style
    codes = iter([int(part[-4:] or "0") for part in parts])
    for code in codes:
        if code == 0:
            style = PLAIN
        elif code in _SETS:
            style = style._replace(**_SETS[code])
        elif code in (38, 48):
            colour: RGB | None = None
            space = next(codes, 0)
            if space == 5:
                colour = _indexed(min(255, next(codes, 0)))
            elif space == 2:
                colour = (min(255, next(codes, 0)), min(255, next(codes, 0)), min(255, next(codes, 0)))
            style = style._replace(fg=colour) if code == 38 else style._replace(bg=colour)
    return style


def _indexed(index: int) -> RGB:
    """Return a colour of xterm's palette: 16 colours, a 6x6x6 cube, 24 greys."""
    if index < 16:
        return _BASE[index]
    if index >= 232:
        grey = 8 + 10 * (index - 232)
        return grey, grey, grey
    steps = (index - 16) // 36, (index - 16) // 6 % 6, (index - 16) % 6
    red, green, blue = (55 + 40 * step if step else 0 for step in steps)
    return red, green, blue


@lru_cache(maxsize=512)
def css(style: Style) -> str:
    """Return inline CSS of properties and values that JupyterLab's sanitiser keeps."""
    out: list[str] = []
    fg = style.fg
    if style.bg is not None:
        # The page's text colour may not be readable on this background.
        fg = fg or ((0, 0, 0) if _luminance(style.bg) > 0.18 else (255, 255, 255))
        out += [f"color:{shade(fg)}", f"background-color:{shade(style.bg)}"]
    elif fg is not None:
        # A page that keeps a card's style sheet uses --c on its own background, mixed with its text colour.
        out += [f"color:{shade(readable(fg))}", f"--c:{shade(fg)}"]
    # A colour that is just readable wouldn't be when dimmed.
    out += ["font-weight:bold"] * style.bold + ["opacity:0.7"] * (style.dim and not out)
    out += ["font-style:italic"] * style.italic + ["text-decoration:underline"] * style.underline
    return ";".join(out)


def readable(colour: RGB) -> RGB:
    """Return the colour nearest in hue that has enough contrast on ``GROUND``."""
    light = _luminance(colour)
    if light >= _DARKEST:
        return colour
    white = (_DARKEST - light) / (1 - light)
    mixed = (c + white * (1 - c) for c in map(_linear, colour))
    encoded = (c * 12.92 if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in mixed)
    red, green, blue = (round(255 * c) for c in encoded)
    return red, green, blue


def _luminance(colour: RGB) -> float:
    red, green, blue = (_linear(c) for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: int) -> float:
    c = channel / 255
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def of_rank(rank: int) -> str:
    """Return a rank's colour, from cyan to magenta, as red, amber and green signal a status.

    The JupyterLab extension has the same ones (``logs/view/row.ts``); steps of a golden angle keep
    neighbours apart.
    """
    hue = math.floor(180 + rank * 137.5 / 360 % 1 * 140 + 0.5)
    red, green, blue = (round(255 * c) for c in colorsys.hls_to_rgb(hue / 360, 0.55, 0.55))
    return shade((red, green, blue))


def shade(colour: RGB, alpha: float = 1.0) -> str:
    """Return a colour as CSS, transparent by ``alpha``."""
    if alpha < 1:
        return f"rgba({','.join(map(str, colour))},{alpha:g})"
    return "#{:02x}{:02x}{:02x}".format(*colour)


_URL = re.compile(r"\bhttps?://[^\s<>\"'`\x00-\x1f\x7f-\x9f]+", re.IGNORECASE)
_AFTER = ".,;:!?…*_~"  # punctuation that may follow an address in a sentence
_PAIRS = {")": "(", "]": "[", "}": "{"}
# A page's link colour suits its own background, and a sanitiser removes "inherit".
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
            if text[:end] == whole[:end]:  # a cut address would be a broken link
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

    def go(self, final: str, distance: int) -> None:
        if final in "AB":
            down = distance if final == "B" else -distance
            self.at = min(max(0, self.at + down), len(self.rows) - 1)
        else:
            self.column = {"C": self.column + distance, "D": self.column - distance, "G": distance - 1}[final]
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


def to_text(text: str) -> str:
    """Return what a terminal would show, without colour."""
    return "\n".join(row.text() for row in rows(text))
