"""A job as JSON (pure): what a list of jobs shows, and programs read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from nbtorchjob.backends.base import Tended
from nbtorchjob.state import Attempt, JobState, Phase, turns
from nbtorchjob.state.events import Swapped
from nbtorchjob.state.progress import REPORT, progress, still
from nbtorchjob.state.text import attempts, facts, labs, usage
from nbtorchjob.text.words import line
from nbtorchjob.ui.card import metrics

Record: TypeAlias = dict[str, Any]

MAX_LABEL = 120
MAX_NOTE = 2000
_MOST_METRICS = 3
_MOST_NODES = 4  # whose use is told: a page has little room for a job


def record(state: JobState, now: float, roots: Sequence[str] | None = None) -> Record:
    """Return what is known of a job, as plain data; times are in seconds, since the epoch for dates.

    ``status`` is the phase as a card shows it ("QUEUED", "CANCELLING", "SUSPENDED", …), a budget's ``limit``
    is null where it is unlimited, ``progress`` where nothing was reported or the logs weren't read, ``still``
    unless the job has been silent for longer than usual. ``metrics`` are its newest ones in words, ``loss
    0.41``. ``uses`` is empty where nothing was measured, ``artifacts`` null where it isn't known whether any
    exist; ``resumable`` says whether it left a checkpoint, and ``curves`` whether there is anything for
    TensorBoard, null where that isn't known. ``note`` and ``tags`` are a person's. ``lab`` is null of a job
    that isn't ``kept``, as labs are; ``promoted`` is the lab whose cells it runs once more, else empty, and
    ``run`` its place in its ``group``, 0 and empty where it is in none.
    ``notebook`` is relative to the one of the ``roots`` that contains it, empty where none does; without
    roots it is the whole path.
    """
    info = state.info
    newest = metrics.newest(state.spoken, counting=False)
    return {
        "id": info.id,
        "name": info.name,
        "label": line(info.what, MAX_LABEL),
        "backend": info.backend,
        "where": facts.where(info),
        "phase": state.phase.value,
        "status": facts.status(state, now),
        "terminal": state.phase.terminal,
        "notebook": info.notebook if roots is None else _below(roots, info.notebook),
        "cell": info.cell,
        "created": info.created,
        "started": state.first_start,
        "ended": state.ended,
        "elapsed": state.elapsed(now),
        "nodes": {"asked": list(info.nodes), "now": len(state.members)},
        "nproc_per_node": info.nproc_per_node,
        "attempts": len(state.attempts),
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


def detail(state: JobState, now: float, enforced: Mapping[str, str], tended: Tended | None = None) -> Record:
    """Return the same and all else that is known.

    ``enforced`` is who enforces each policy, by its field; ``tended`` who looks after what is left
    to us, null where nothing is.

    ``error`` is what the first failing rank raised, with its frames' variables; null where none did.
    ``environment`` is what its ranks can import and ``checkout`` what git said of the notebook's folder, null
    where that isn't known; ``captured`` are the type and
    digest of what was taken along, by name.
    """
    error = state.failure.error if state.failure else None
    return {
        **record(state, now),
        "ships": state.info.ships,
        "captured": {name: [*pair] for name, pair in (state.info.captured or {}).items()},
        "environment": _environment(state),
        "checkout": _checkout(state),
        "spec": dict(state.info.spec),
        "enforced": dict(enforced),
        "tended": asdict(tended) if tended is not None else None,
        "history": [_attempt(attempt) for attempt in state.attempts],
        "told": attempts.lines(state),
        "error": error.to_json() if error else None,
        "swaps": [_swap(swap) for swap in state.swapped],
    }


def _swap(swap: Swapped) -> Record:
    shown = asdict(swap)
    kept = ("number", "time", "by", "names", "point", "call", "diff", "back")
    return {**{name: shown[name] for name in kept}, "step": swap.metrics.get("step")}


def _environment(state: JobState) -> Record | None:
    fact = state.importable
    if fact is None:
        return None
    return {
        "image": state.image,
        "python": fact.python,
        "platform": fact.platform,
        "distributions": {**fact.distributions, **fact.installed},
        "installed": [*fact.installed],
        "origins": dict(fact.origins),
    }


def _checkout(state: JobState) -> Record | None:
    fact = state.checkout
    if fact is None:
        return None
    changed = len(fact.changed) + fact.more
    return {
        "commit": fact.commit,
        "branch": fact.branch,
        "dirty": changed > 0,
        "changed": [*fact.changed],
        "more": fact.more,
    }


def as_of(record: Record, now: float) -> Record:
    """Return an earlier record with what only the clock has changed since."""
    return record if record["terminal"] else {**record, "elapsed": max(0.0, now - record["created"])}


def _below(roots: Sequence[str], path: str) -> str:
    """Return a path as the contents API has it."""
    normal = os.path.normpath(path)
    starts = (os.path.join(root, "") for root in roots)
    return next((normal.removeprefix(start) for start in starts if normal.startswith(start)), "")


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
    """Return what a lab does, since when nobody uses it, when that ends it, and what its ranks hold."""
    if state.info.lab is None:
        return None
    return {
        "doing": labs.doing_now(state),
        "since": turns.idle_since(state),
        "ends": turns.ends_at(state),
        "memory": labs.memory(state),
        "cells": len(turns.turns(state)),
        "ended": state.lab_ends.why if state.lab_ends is not None else None,
    }


def _artifacts(state: JobState) -> int | None:
    if state.info.cluster and not state.artifacts:
        return None  # logs may have told of some
    newest = max((number for number, _ in state.artifacts), default=1)
    return sum(sent.files for (number, _), sent in state.artifacts.items() if number == newest)


def _still(state: JobState, now: float) -> dict[str, Any] | None:
    """Return since when a running job has been silent, what is overdue, and how long one takes."""
    stillness, known = still(state, now), progress(state)
    if state.phase is Phase.RUNNING and known is not None and known.overdue(now) is not None:
        by_unit = known.told_each
        unit, usual = (known.unit, known.pace) if by_unit else (REPORT, known.every)
        return {"since": known.heard, "unit": unit, "usual": usual}
    return None if stillness is None else {"since": stillness.since, "unit": None, "usual": None}


def _progress(state: JobState, now: float) -> dict[str, Any] | None:
    current = progress(state)
    if current is None or current.unit == REPORT:
        return None
    left = current.left(now)
    if left is not None and not math.isfinite(left):  # JSON can't express it
        left = None
    return {"unit": current.unit, "done": current.done, "total": current.total, "left": left}
