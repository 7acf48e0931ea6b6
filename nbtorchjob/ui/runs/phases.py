"""Where a group stands: its runs' phases, counted, and as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nbtorchjob.state import Phase

# In this order from left to right, and what each is called of runs.
CALLED: Mapping[Phase, str] = {
    Phase.SUCCEEDED: "done",
    Phase.RUNNING: "running",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
    Phase.PENDING: "waiting",
    Phase.SUBMITTED: "submitted",
}


def phase(phases: Iterable[Phase]) -> Phase:
    """Return where a group stands, as a job would: it goes on while one of its runs does."""
    found = {*phases}
    live = next((each for each in (Phase.RUNNING, Phase.PENDING, Phase.SUBMITTED) if each in found), None)
    if live is not None:
        return Phase.RUNNING if any(each.terminal for each in found) else live
    return next((each for each in (Phase.FAILED, Phase.CANCELLED) if each in found), Phase.SUCCEEDED)


def counted(phases: Iterable[Phase]) -> str:
    """Return ``5 done, 2 running, 1 failed``."""
    found = Counter(phases)
    return ", ".join(f"{found[each]:,} {name}" for each, name in CALLED.items() if found[each])


def of_group(values: Iterable[str]) -> tuple[str, str]:
    """Return both of phases by their values."""
    found = [Phase(value) for value in values]
    return phase(found).value, counted(found)
