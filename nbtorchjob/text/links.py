"""Addresses of pages in a text: only those, as a log may contain anything that looks like a link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from nbtorchjob.text.colours import INK

_URL = re.compile(r"\bhttps?://[^\s<>\"'`\x00-\x1f\x7f-\x9f]+", re.IGNORECASE)
_AFTER = ".,;:!?…*_~"  # what follows an address in a sentence
_PAIRS = {")": "(", "]": "[", "}": "{"}
# A page colours links for its own ground, and a sanitiser leaves no "inherit".
_STYLE = f"color:{INK};text-decoration:underline"


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each ``http`` or ``https`` address starts and ends."""
    for found in _URL.finditer(text):
        url = found[0]
        while url[-1] in _AFTER or (url[-1] in _PAIRS and url.count(url[-1]) > url.count(_PAIRS[url[-1]])):
            url = url[:-1]
        if not url.endswith("//"):
            yield found.start(), found.start() + len(url)


def link(url: str, body: str) -> str:
    """Return a link around ``body``, which is HTML."""
    return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer" style="{_STYLE}">{body}</a>'
