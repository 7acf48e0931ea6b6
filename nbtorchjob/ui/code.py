"""Python code and differences of it as spans, each with its kind, for pages to colour (pure)."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

from nbtorchjob.state import JobState
from nbtorchjob.text.words import LINE, line

# A kind ("keyword", "string", …; "" for plain text), and the text.
Span: TypeAlias = tuple[str, str]

_KINDS = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.STRING: "string"}
# Python 3.12 takes f-strings apart; before, these kinds don't exist.
_KINDS |= {
    getattr(tokenize, name): "string"
    for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
    if hasattr(tokenize, name)
}
_DIFF = {"+": "added", "-": "removed", "@": "hunk"}


def spans(text: str) -> list[Span]:
    """Return the code in spans, which joined are the text again; what isn't Python is plain."""
    found, at = [], 0
    for kind, start, end in _tokens(text):
        if kind and start >= at:
            found += [("", text[at:start]), (kind, text[start:end])]
            at = end
    return [span for span in (*found, ("", text[at:])) if span[1]]


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each token's kind, and where it starts and ends in the text."""
    lines = [0, *accumulate(len(each) + 1 for each in text.split("\n"))]
    defines = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (row, start), (last, end) = token.start, token.end
            kind = _KINDS.get(token.type, "")
            if token.type == tokenize.NAME:
                kind = "def" if defines else "keyword" if keyword.iskeyword(token.string) else ""
                defines = token.string in ("def", "class")
            if last <= len(lines):
                yield kind, lines[row - 1] + start, lines[last - 1] + end
    except (tokenize.TokenError, SyntaxError):  # a magic, a line for the shell
        return


def changes(lines: Iterable[str]) -> list[Span]:
    """Return the lines of a unified diff in spans."""
    return [(_DIFF.get(line[:1], ""), f"{line}\n") for line in lines]


def cells(state: JobState) -> list[tuple[str, str]]:
    """Return the cells whose code travelled by what they are called, the one that was run first."""
    found = [(label, text) for label, text in state.info.sources.values()]
    found.sort(key=lambda each: [int(digits) for digits in re.findall(r"\d{1,9}", each[0])])
    # Where the magic stood in the cell that was run there is an empty line.
    found.sort(key=lambda each: not each[1].startswith("\n"))
    return [(line(label, LINE), text.strip("\n") + "\n") for label, text in found]
