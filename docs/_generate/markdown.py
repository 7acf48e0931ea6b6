"""Tables as Markdown has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar within a cell ends no cell."""
    lines = (heads, ["---"] * len(heads), *([_cell(text) for text in row] for row in rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return ``text`` as it is typed; nothing for none."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
