"""A doctor's findings as lines (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from nbtorchjob.backends.base import Finding
from nbtorchjob.text import words

_WIDTH = 110  # characters that a cell's output shows without wrapping


def text(findings: Iterable[Finding]) -> str:
    """Return each finding after its mark, with what to do about it, and how many are bad."""
    found = list(findings)
    wrong = sum(not finding.good for finding in found)
    end = f"{words.count(wrong, 'line')} marked !! above" if wrong else "No problems found."
    return "\n".join([*(line for finding in found for line in _lines(finding)), "", end])


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
