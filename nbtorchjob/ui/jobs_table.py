"""Many jobs at once, and a group's phases as one, as text and as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.runs import STOPPED
from nbtorchjob.state.text import facts
from nbtorchjob.text import words
from nbtorchjob.text.words import DOT
from nbtorchjob.ui.elements import grid
from nbtorchjob.ui.record import MAX_LABEL, Record

# In this order from left to right, and what each is called of runs.
CALLED: Mapping[str, str] = {
    "SUCCEEDED": "done",
    "RUNNING": "running",
    "FAILED": "failed",
    STOPPED: "stopped early",
    "CANCELLED": "cancelled",
    "PENDING": "waiting",
    "SUBMITTED": "submitted",
}


def word(state: JobState) -> str:
    """Return what a run is counted as: its phase, or that it was stopped early."""
    return STOPPED if state.stopped_early else state.phase.value


def phase(words: Iterable[str]) -> Phase:
    """Return where a group stands, as a job would: it goes on while one of its runs does."""
    # That some are stopped early is what was asked for.
    phases = {Phase.SUCCEEDED if item == STOPPED else Phase(item) for item in words}
    live = next((item for item in (Phase.RUNNING, Phase.PENDING, Phase.SUBMITTED) if item in phases), None)
    if live is not None:
        return Phase.RUNNING if any(item.terminal for item in phases) else live
    return next((item for item in (Phase.FAILED, Phase.CANCELLED) if item in phases), Phase.SUCCEEDED)


def counted(words: Iterable[str]) -> str:
    """Return ``5 done, 2 running, 1 failed``."""
    counts = Counter(words)
    return ", ".join(f"{counts[key]:,} {name}" for key, name in CALLED.items() if counts[key])


_MAX_NOTE = 60
_HEAD = ("name", "phase", "elapsed", "nodes × ranks", "where", "what")


def text(jobs: Sequence[Record]) -> str:
    """Return a table of jobs' records, a line each; a sentence if there are none."""
    if not jobs:
        return "No jobs."
    return "\n".join(words.columns([_HEAD, *_rows(jobs)]))


def html(jobs: Sequence[Record]) -> str:
    """Return the same as :func:`text`, as an HTML table that a sanitiser leaves whole."""
    if not jobs:
        return "<p>No jobs.</p>"
    return grid([_HEAD, *_rows(jobs)], MAX_LABEL)


def _doing(job: Record) -> str:
    """Return what a lab does, and for how long nobody has used it; "" of another job."""
    lab = job["lab"]
    if lab is None or lab["since"] is None:
        return "" if lab is None else str(lab["doing"])
    return f"{lab['doing']} {words.about(max(0.0, job['created'] + job['elapsed'] - lab['since']))}"


def _rows(jobs: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each job, and for all runs of a group one, where its first one stands."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for job in jobs:
        groups.setdefault((job["where"], job["group"]) if job["group"] else ("", job["id"]), []).append(job)
    for runs in groups.values():
        yield _row(runs[0]) if not runs[0]["group"] else _folded(runs)


def _folded(jobs: Sequence[Record]) -> tuple[str, ...]:
    # Of a run that was retried the newest job counts.
    newest = {job["run"]: job for job in sorted(jobs, key=lambda job: float(job["created"]))}
    runs, first = [*newest.values()], jobs[0]
    counts = [STOPPED if job["status"] == STOPPED else job["phase"] for job in runs]
    took = max(job["created"] + job["elapsed"] for job in runs) - first["created"]
    name, call, _ = first["label"].partition("(")
    return (
        first["group"],
        DOT.join((phase(counts).value.lower(), counted(counts))),
        words.duration(took),
        f"{words.count(len(runs), 'run')} of {_size(first)}",
        first["where"],
        f"{name}(…)" if call else name,
    )


def _size(job: Record) -> str:
    fewest, most = job["nodes"]["asked"]
    return f"{most if fewest == most else f'{fewest}:{most}'} × {job['nproc_per_node']}"


def _row(job: Record) -> tuple[str, ...]:
    waited = None if job["started"] is None else job["started"] - job["created"]
    elapsed, tried = facts.ran(job["elapsed"], waited), job["attempts"]
    return (
        job["name"],
        DOT.join(filter(None, (job["status"].lower(), _doing(job)))),
        f"{elapsed} in {words.count(tried, 'attempt')}" if tried > 1 else elapsed,
        _size(job),
        job["where"],
        DOT.join(filter(None, (job["label"], annotated(job)))),
    )


def annotated(job: Record) -> str:
    """Return a job's tags, and the beginning of its note."""
    tags = " ".join(f"#{tag}" for tag in job["tags"])
    return DOT.join(filter(None, (tags, words.line(job["note"], _MAX_NOTE))))


def matches(job: Record, searched: Sequence[str]) -> bool:
    """Whether each word occurs in a job's name, label, notebook, place, state, note or tags."""
    tags = " ".join(f"#{tag}" for tag in job["tags"])
    parts = ("name", "label", "notebook", "where", "status", "group", "note")
    text = "\n".join([*(job[part] for part in parts), tags]).lower()
    return all(word.lower() in text for word in searched)
