"""Whole numbers as people write several: ``1,3-5``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPANS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")


class SpansError(ValueError):
    """The text doesn't name numbers."""


def parse(text: str) -> tuple[int, ...]:
    """Return the numbers that are meant, in order, each once; raises ``SpansError``."""
    text = text.replace(" ", "")
    if not _SPANS.fullmatch(text):
        raise SpansError(text)
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (span := range(int(first), int(last or first) + 1)):
            raise SpansError(part)
        found.update(span)
    return tuple(sorted(found))


def spell(numbers: Iterable[int], comma: str = ",") -> str:
    """Return the numbers with runs as spans, smallest first."""
    spans: list[tuple[int, int]] = []
    for each in sorted(set(numbers)):
        if spans and spans[-1][1] == each - 1:
            spans[-1] = (spans[-1][0], each)
        else:
            spans.append((each, each))
    return comma.join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
