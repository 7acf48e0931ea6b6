"""Many jobs at once, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from nbtorchjob.text import words
from nbtorchjob.text.words import DOT
from nbtorchjob.ui.elements import grid
from nbtorchjob.ui.record import MAX_LABEL, Record

_HEAD = ("name", "phase", "elapsed", "nodes × ranks", "where", "what")


def text(jobs: Sequence[Record]) -> str:
    """Return a table of jobs' records, a line each; a sentence if there are none."""
    if not jobs:
        return "No jobs."
    return "\n".join(words.columns([_HEAD, *map(_row, jobs)]))


def html(jobs: Sequence[Record]) -> str:
    """Return the same as :func:`text`, as an HTML table that a sanitiser leaves whole."""
    if not jobs:
        return "<p>No jobs.</p>"
    return grid([_HEAD, *map(_row, jobs)], MAX_LABEL)


def _doing(job: Record) -> str:
    """Return what a lab does, and for how long nobody has used it; "" of another job."""
    lab = job["lab"]
    if lab is None or lab["since"] is None:
        return "" if lab is None else str(lab["doing"])
    return f"{lab['doing']} {words.about(max(0.0, job['created'] + job['elapsed'] - lab['since']))}"


def _row(job: Record) -> tuple[str, ...]:
    fewest, most = job["nodes"]["asked"]
    nodes = str(most) if fewest == most else f"{fewest}:{most}"
    elapsed, tried = words.duration(job["elapsed"]), job["attempts"]
    return (
        job["name"],
        DOT.join(filter(None, (job["status"], _doing(job)))),
        f"{elapsed} in {words.count(tried, 'attempt')}" if tried > 1 else elapsed,
        f"{nodes} × {job['nproc_per_node']}",
        job["where"],
        job["label"],
    )
