"""A job as JSON (pure): what a list of jobs shows, and a program asks for."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from nbtorchjob.server.ids import JobId
from nbtorchjob.state import JobState, Spent
from nbtorchjob.text import attempts, facts
from nbtorchjob.text.words import line
from nbtorchjob.ui import metrics

Record: TypeAlias = dict[str, Any]

_MAX_LABEL = 120


def record(state: JobState, now: float) -> Record:
    """Give what is known of a job, as plain data; times are in seconds, since the epoch where they are dates.

    ``status`` is the phase in the word a card shows ("CANCELLING", "SUSPENDED"), a budget's ``limit`` is
    null where it is unlimited, ``progress`` where nothing was reported or the logs weren't read.
    """
    info = state.info
    return {
        "id": str(JobId.of(info)),
        "name": info.name,
        "label": line(info.label, _MAX_LABEL),
        "backend": info.backend,
        "where": facts.where(info),
        "phase": state.phase.value,
        "status": facts.phase(state),
        "terminal": state.phase.terminal,
        "created": info.created,
        "ended": state.ended,
        "elapsed": state.elapsed(now),
        "nodes": {"asked": list(info.nodes), "now": len(state.members)},
        "nproc_per_node": info.nproc_per_node,
        "attempts": len(state.attempts),
        "restarts": {"used": state.restarts, "limit": info.max_restarts},
        "budgets": {spent.budget.value: _budget(spent) for spent in state.budgets},
        "pending": attempts.pending(state, now),
        "failure": facts.heading(state.failure, state) if state.failure else None,
        "progress": _progress(state, now),
    }


def _budget(spent: Spent) -> dict[str, Any]:
    return {"used": spent.used, "limit": int(spent.limit) if math.isfinite(spent.limit) else None}


def _progress(state: JobState, now: float) -> dict[str, Any] | None:
    series = state.series.get(0)
    found = metrics.progress(series, now) if series else None
    if found is None:
        return None
    return {"unit": found.unit, "done": found.done, "total": found.total, "left": found.left}
