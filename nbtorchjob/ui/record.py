"""A job as JSON, and many jobs at once as a table, in text and in HTML (pure).

Also what pages offer to do with a job, by its record: JupyterLab's commands and menus, a card's buttons.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, TypeAlias

from nbtorchjob.backends import ROWS
from nbtorchjob.backends.base import TenderStatus
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import Attempt, JobState, Phase, turns
from nbtorchjob.state.progress import REPORT, progress, still
from nbtorchjob.state.runs import STOPPED
from nbtorchjob.state.text import attempts, facts, lifetime, usage
from nbtorchjob.text import words
from nbtorchjob.text.words import DOT, line

Record: TypeAlias = dict[str, Any]

MAX_LABEL = 120
MAX_NOTE = 2000
_MOST_METRICS = 3
_MOST_NODES = 4  # whose resource use is shown: a page has little room for a job


def record(state: JobState, now: float) -> Record:
    """Return a job as plain data; times are in seconds, since the epoch for dates.

    ``status`` is the phase as a card shows it ("QUEUED", "CANCELLING", "SUSPENDED", …). A budget's ``limit``
    is null if it is unlimited, ``progress`` if nothing was reported or the logs weren't read, ``still``
    unless the job has been silent for longer than usual. ``metrics`` are the newest in words, ``loss 0.41``.
    ``uses`` is empty if nothing was measured, ``artifacts`` null if it isn't known whether any exist;
    ``resumable`` says whether the job left a checkpoint, and ``curves`` whether there is anything for
    TensorBoard, each null if that isn't known. ``note`` and ``tags`` come from people. ``lab`` is null for a
    job that isn't ``kept``, as labs are; ``promoted`` is the lab whose cells the job runs again, else empty,
    and ``run`` is the job's number in its ``group``, 0 and empty if it is in none.
    ``notebook`` is a path: a server's pages have one :func:`below` its roots.
    """
    from nbtorchjob.ui.card import metrics  # late: a list whose rows are kept draws none

    info = state.info
    newest = metrics.newest(state.spoken, counting=False)
    return {
        "id": info.id,
        "name": info.name,
        "label": line(info.full_label, MAX_LABEL),
        "backend": info.backend,
        "where": facts.where(info),
        "phase": state.phase.value,
        "status": facts.status(state, now),
        "terminal": state.phase.terminal,
        "notebook": info.notebook,
        "cell": info.cell,
        "created": info.created,
        "started": state.first_start,
        "ended": state.ended,
        "elapsed": state.elapsed(now),
        "nodes": {"asked": list(info.nodes), "now": len(state.members)},
        "nproc_per_node": info.nproc_per_node,
        "attempts": state.attempt_count,
        "restarts": {"used": state.restarts, "limit": info.max_restarts},
        "budgets": {
            budget.budget.value: {
                "used": budget.used,
                "limit": int(budget.limit) if math.isfinite(budget.limit) else None,
            }
            for budget in state.budgets
        },
        "kept": info.lab is not None,
        "lab": _lab(state),
        "promoted": info.promoted,
        "note": line(state.annotated.note, MAX_NOTE) if state.annotated else "",
        "tags": [line(tag, MAX_LABEL) for tag in state.annotated.tags] if state.annotated else [],
        "group": info.group,
        "run": info.number,
        "pending": attempts.pending(state, now),
        "failure": facts.heading(state.failure, state) if state.failure else None,
        "progress": _progress(state, now),
        "metrics": [f"{name} {value}" for name, value in newest[:_MOST_METRICS]],
        "still": _still(state, now),
        "artifacts": _artifacts(state),
        "resumable": state.resumable,
        "curves": state.shows_curves,
        "uses": [
            {"node": node, "strips": [{**strip._asdict(), "parts": [*strip.parts]} for strip in strips]}
            for node, strips in usage.strips(state, _MOST_NODES)
        ],
    }


def detail(
    state: JobState, now: float, enforced: Mapping[str, str], tended: TenderStatus | None = None
) -> Record:
    """Return a job's :func:`record`, and everything else that is known of it.

    ``enforced`` is who enforces each policy, by field; ``tended`` is who tends the job, null if it needs no
    tending.

    ``error`` is what the first failing rank raised, with its frames' variables; null if none did.
    ``environment`` is what its ranks can import and ``checkout`` the git state of the notebook's folder, each
    null if that isn't known; ``captured`` has the type and digest of each value that was taken along, by
    name.
    """
    error = state.failure.error if state.failure else None
    swaps: list[Record] = []
    for swap in state.swapped:
        shown = asdict(swap)
        kept = ("number", "time", "by", "names", "point", "call", "diff", "back")
        swaps.append({**{name: shown[name] for name in kept}, "step": swap.metrics.get("step")})
    environment: Record | None = None
    if (importable := state.importable) is not None:
        environment = {
            "image": state.image,
            "python": importable.python,
            "platform": importable.platform,
            "distributions": {**importable.distributions, **importable.installed},
            "installed": [*importable.installed],
            "origins": dict(importable.origins),
        }
    checkout: Record | None = None
    if (git := state.checkout) is not None:
        checkout = {
            "commit": git.commit,
            "branch": git.branch,
            "dirty": len(git.changed) + git.more > 0,
            "changed": [*git.changed],
            "more": git.more,
        }
    return {
        **record(state, now),
        "ships": state.info.ships,
        "captured": {name: [*pair] for name, pair in (state.info.captured or {}).items()},
        "environment": environment,
        "checkout": checkout,
        "spec": dict(state.info.spec),
        "enforced": dict(enforced),
        "tended": asdict(tended) if tended is not None else None,
        "history": [_attempt(attempt) for attempt in state.attempts],
        "told": attempts.lines(state),
        "error": error.to_json() if error else None,
        "swaps": swaps,
    }


def below(record: Record, roots: Sequence[str]) -> Record:
    """Return a record whose notebook is a path below one of the roots; empty where none contains it."""
    path = os.path.normpath(record["notebook"])
    starts = (os.path.join(root, "") for root in roots)
    relative = next((path.removeprefix(start) for start in starts if path.startswith(start)), "")
    return {**record, "notebook": relative}


def as_of(record: Record, now: float) -> Record:
    """Return an earlier record, updated with what the clock alone has changed since."""
    return record if record["terminal"] else {**record, "elapsed": max(0.0, now - record["created"])}


def _attempt(attempt: Attempt) -> Record:
    failure = attempt.failure
    return {
        "number": attempt.number,
        "start": attempt.start,
        "end": attempt.end,
        "hosts": list(attempt.hosts),
        "cause": failure.reason.cause.value if failure else None,
        "why": failure.reason.line if failure else None,
        "budget": attempt.budget.value if attempt.budget else None,
        "lines": list(attempt.lines),
    }


def _lab(state: JobState) -> dict[str, Any] | None:
    """Return what a lab is doing, since when it is idle, when that ends it, and what its ranks hold."""
    if state.info.lab is None:
        return None
    return {
        "doing": attempts.doing_now(state),
        "since": turns.idle_since(state),
        "ends": turns.ends_at(state),
        "memory": attempts.memory(state),
        "cells": len(turns.turns(state)),
        "ended": state.lab_ends.why if state.lab_ends is not None else None,
    }


def _artifacts(state: JobState) -> int | None:
    if not state.artifacts:
        return None if state.info.cluster else 0  # on a cluster, logs that weren't read may name some
    last = max((number for number, _ in state.artifacts), default=1)
    return sum(sent.files for (number, _), sent in state.artifacts.items() if number == last)


def _still(state: JobState, now: float) -> dict[str, Any] | None:
    """Return since when a running job has been silent, what is overdue, and how long that usually takes."""
    stillness, current = still(state, now), progress(state)
    if lifetime.advances(state) and current is not None and current.overdue(now) is not None:
        by_unit = current.told_each
        unit, usual = (current.unit, current.pace) if by_unit else (REPORT, current.every)
        return {"since": current.reported_at, "unit": unit, "usual": usual}
    return None if stillness is None else {"since": stillness.since, "unit": None, "usual": None}


def _progress(state: JobState, now: float) -> dict[str, Any] | None:
    current = progress(state)
    if current is None or current.unit == REPORT:
        return None
    left = current.left(now) if lifetime.advances(state) else None
    if left is not None and not math.isfinite(left):  # JSON can't express it
        left = None
    return {"unit": current.unit, "done": current.done, "total": current.total, "left": left}


# From left to right, with the word for runs in each.
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
    """Return a group's phase, as if it were one job: it goes on while one of its runs does."""
    # Stopping some early was requested, so it counts as success.
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


def jobs_text(jobs: Sequence[Record]) -> str:
    """Return a table of jobs' records, a line each; a sentence if there are none."""
    if not jobs:
        return "No jobs."
    return "\n".join(words.columns([_HEAD, *_rows(jobs)]))


def jobs_html(jobs: Sequence[Record]) -> str:
    """Return the same as :func:`jobs_text`, as an HTML table that a sanitiser leaves whole."""
    if not jobs:
        return "<p>No jobs.</p>"
    from nbtorchjob.ui.elements import grid  # late: a terminal shows text

    return grid([_HEAD, *_rows(jobs)], MAX_LABEL)


def _rows(jobs: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each job, and one for all runs of a group, at the place of its first run."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for job in jobs:
        groups.setdefault((job["where"], job["group"]) if job["group"] else ("", job["id"]), []).append(job)
    for runs in groups.values():
        yield _row(runs[0]) if not runs[0]["group"] else _folded(runs)


def _folded(runs: Sequence[Record]) -> tuple[str, ...]:
    # For a run that was retried, the newest job counts.
    newest = {job["run"]: job for job in sorted(runs, key=lambda job: float(job["created"]))}
    runs, first = [*newest.values()], runs[0]
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
    elapsed, tries = facts.ran(job["elapsed"], waited), job["attempts"]
    # What a lab is doing, and for how long it has been idle; "" for other jobs
    lab = job["lab"]
    if lab is None or lab["since"] is None:
        doing = "" if lab is None else str(lab["doing"])
    else:
        doing = f"{lab['doing']} {words.about(max(0.0, job['created'] + job['elapsed'] - lab['since']))}"
    return (
        job["name"],
        DOT.join(filter(None, (job["status"].lower(), doing))),
        f"{elapsed} in {words.count(tries, 'attempt')}" if tries > 1 else elapsed,
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


# Selects the jobs whose record has one of the listed values in each of these fields.
Condition: TypeAlias = Mapping[str, Sequence[Any]]

LIVE: Condition = {"terminal": [False]}
RUNS: Condition = {"phase": ["RUNNING"]}
ENDED: Condition = {"terminal": [True]}
# For a job on a cluster this may be unknown (None): the request then says so.
RESUMABLE: Condition = {"terminal": [True], "resumable": [True, None]}
CURVES: Condition = {"curves": [True, None]}
KEPT: Condition = {"terminal": [False], "kept": [True]}
SUSPENDED: Condition = {"status": ["SUSPENDED"]}
WAITING: Condition = {
    "backend": [name for name, row in ROWS.items() if row.queues],
    "status": ["SUBMITTED", "PENDING", "WAITING"],
}
SUSPENDABLE: Condition = {
    "backend": [name for name, row in ROWS.items() if row.suspends],
    "status": [
        *("SUBMITTED", "QUEUED", "PENDING", "RUNNING", "CANCELLING"),
        *("HUNG", "STALLED", "LEAVING", "DEBUGGING", "RETRYING", "WAITING"),
    ],
}


class Offer(FrozenDataclass):
    """How pages offer something that can be done to a job.

    It is called ``label`` beside a job and ``asking`` where no job is named; ``icon`` is one of JupyterLab's,
    ``rank`` its order in a job's menu. ``warning`` is shown before it is done to a running job, and
    ``warning_ended`` for an ended one: both need a confirmation. ``on_card`` is whether a card has a button
    for it, given the job and whether a cell waits for that; with ``done``, which the button shows afterwards,
    an unfinished job's card also has one wherever there is a server.
    """

    label: str
    asking: str
    caption: str
    icon: str
    rank: int
    when: Condition = field(default_factory=dict)
    warning: str = ""
    warning_ended: str = ""
    on_card: Callable[[JobState, bool], bool] | None = None
    done: str = ""


Offers: TypeAlias = Mapping[str, Offer]  # by their verbs
