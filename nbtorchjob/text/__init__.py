"""Text made safe for a terminal: only colours and progress bars in it take effect.

A terminal obeys control sequences in the text of a job, a person or a server: they can fill the clipboard,
name windows, hide and replace what is on the screen. Here everything except colours, and moves within the
lines that the text itself has begun, is shown instead of obeyed. Files and pipes get every byte unchanged.
"""

from __future__ import annotations

import codecs
import re
from typing import TextIO

# None of these may be shown as they are: C0 and C1 controls except the tab, marks that change the direction
# of writing or have no width and so can disguise text, separators that some treat as new lines, and halves
# of surrogate pairs, which no encoder accepts.
_HOSTILE = (
    "\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
)
CONTROLS = f"\b\n\r{_HOSTILE}"

_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
# What progress bars write: several bars move up to their lines and down again, and erase within a line.
_ACTING = re.compile(rf"({_COLOUR}|\x1b\[[012]?K)|\x1b\[(?P<rows>[0-9]{{0,4}})(?P<way>[AB])|\n|[{_HOSTILE}]")
_OPENING = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
_COLOURS = re.compile(_COLOUR)
_EXTENDED = re.compile(r"[345]8[;:](?:5[;:]\d*|2(?:[;:]\d*){3,4})")
_RESET = "\x1b[0m"
_CONCEALED = "8"


class Filter:
    """Makes text safe part by part, as it comes: a part may end within a character or a sequence."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._coloured = False
        # Lines below the one where this text began; a terminal that wraps long ones has more, never fewer.
        self._row = self._lowest = 0

    def feed(self, data: bytes) -> str:
        """Return the part of the bytes so far that can be written now."""
        return self.take(self._decoder.decode(data))

    def take(self, text: str) -> str:
        """Return the part of the text so far that can be written now."""
        text = self._rest + text
        opened = _OPENING.search(text)
        self._rest = text[opened.start() :] if opened else ""
        visible = _ACTING.sub(self._seen, text[: len(text) - len(self._rest)])
        colours = _COLOURS.findall(visible)
        self._coloured = self._coloured if not colours else colours[-1] not in (_RESET, "\x1b[m")
        return visible

    def end(self) -> str:
        """Return the rest; text that follows starts below it, without its colour, and can't move into it."""
        rest = _ACTING.sub(self._seen, self._rest + self._decoder.decode(b"", final=True))
        self._rest = ""
        rest += _RESET if self._coloured else ""
        rest += f"\x1b[{self._lowest - self._row}B\n" if self._row < self._lowest else ""
        self._coloured, self._row, self._lowest = False, 0, 0
        return rest

    def _seen(self, match: re.Match[str]) -> str:
        if match[0] == "\n":
            self._row += 1
            self._lowest = max(self._lowest, self._row)
            return "\n"
        if match["way"]:
            rows = int(match["rows"] or 1) or 1  # 0 is 1
            row = self._row + (rows if match["way"] == "B" else -rows)
            if 0 <= row <= self._lowest:
                self._row = row
                return match[0]
        text = match[0]
        if match[1] and not (text.endswith("m") and _CONCEALED in _EXTENDED.sub("", text[2:-1]).split(";")):
            return text
        code, rest = ord(text[0]), text[1:]
        if code < 0x20 or code == 0x7F:
            return f"^{chr(code ^ 0x40)}{rest}"
        return f"<U+{code:04X}>"


def safe(text: str) -> str:
    """Return a whole text as it may be written to a terminal."""
    filtered = Filter()
    return filtered.take(text) + filtered.end()


def shown(text: str, stream: TextIO) -> str:
    """Return a whole text as it may be written to ``stream``: unchanged unless a terminal shows it."""
    return safe(text) if shows(stream) else text


def coloured(text: str, stream: TextIO) -> str:
    """Return a whole text as programs write it to ``stream``: safe, with colours only on a terminal."""
    return safe(text) if shows(stream) else _COLOURS.sub("", safe(text))


def shows(stream: TextIO) -> bool:
    """Whether a terminal shows what is written to ``stream``, directly or as the frontend of a kernel."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel.")
