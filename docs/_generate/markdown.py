"""Tables as Markdown has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars within a cell are escaped."""
    lines = (heads, ["---"] * len(heads), *([_cell(text) for text in row] for row in rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return ``text`` as code; nothing for none."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
