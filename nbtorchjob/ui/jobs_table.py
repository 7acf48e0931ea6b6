"""Many jobs at once, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from nbtorchjob.state import JobState
from nbtorchjob.state.text import facts
from nbtorchjob.text import words
from nbtorchjob.ui.elements import grid

_HEAD = ("name", "phase", "elapsed", "nodes × ranks", "where", "what")
_MAX_LABEL = 120


def text(states: Sequence[JobState], now: float) -> str:
    """Return a table, newest job last; a sentence if there are none."""
    if not states:
        return "No jobs."
    return "\n".join(words.columns([_HEAD, *(_row(state, now) for state in states)]))


def html(states: Sequence[JobState], now: float) -> str:
    """Return the same as :func:`text`, as an HTML table that a sanitiser leaves whole."""
    if not states:
        return "<p>No jobs.</p>"
    return grid([_HEAD, *(_row(state, now) for state in states)], _MAX_LABEL)


def _row(state: JobState, now: float) -> tuple[str, ...]:
    fewest, most = state.info.nodes
    nodes = str(most) if fewest == most else f"{fewest}:{most}"
    elapsed, tried = words.duration(state.elapsed(now)), len(state.attempts)
    return (
        state.info.name,
        facts.status(state, now),
        f"{elapsed} in {words.count(tried, 'attempt')}" if tried > 1 else elapsed,
        f"{nodes} × {state.info.nproc_per_node}",
        facts.where(state.info),
        words.line(state.info.label, _MAX_LABEL),
    )
