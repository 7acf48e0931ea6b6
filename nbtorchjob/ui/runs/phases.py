"""Where a group stands: its runs' phases, counted, and as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.runs import STOPPED

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
    found = {Phase.SUCCEEDED if each == STOPPED else Phase(each) for each in words}
    live = next((each for each in (Phase.RUNNING, Phase.PENDING, Phase.SUBMITTED) if each in found), None)
    if live is not None:
        return Phase.RUNNING if any(each.terminal for each in found) else live
    return next((each for each in (Phase.FAILED, Phase.CANCELLED) if each in found), Phase.SUCCEEDED)


def counted(words: Iterable[str]) -> str:
    """Return ``5 done, 2 running, 1 failed``."""
    found = Counter(words)
    return ", ".join(f"{found[each]:,} {name}" for each, name in CALLED.items() if found[each])
