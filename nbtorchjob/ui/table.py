"""Many jobs at once, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbtorchjob.state import JobState
from nbtorchjob.text import facts, words

_HEAD = ("name", "phase", "elapsed", "nodes × ranks", "where", "what")


def text(states: Sequence[JobState], now: float) -> str:
    """Give a table, newest job last; a sentence where there are none."""
    if not states:
        return "There are no jobs."
    rows = [_HEAD, *(_row(state, now) for state in states)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def html(states: Sequence[JobState], now: float) -> str:
    """Give the same as :func:`text`, as an HTML table that a sanitiser leaves whole."""
    if not states:
        return "<p>There are no jobs.</p>"
    head = "".join(f'<th style="text-align:left">{cell}</th>' for cell in _HEAD)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in _row(state, now))
        + "</tr>"
        for state in states
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(state: JobState, now: float) -> tuple[str, ...]:
    fewest, most = state.info.nodes
    nodes = str(most) if fewest == most else f"{fewest}:{most}"
    return (
        state.info.name,
        facts.phase(state),
        words.duration(state.elapsed(now)),
        f"{nodes} × {state.info.nproc_per_node}",
        facts.where(state.info),
        state.info.label,
    )
