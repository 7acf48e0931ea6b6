"""Why something ended or waits: what was seen of it in, a cause in plain words out (pure).

All that is known of signs lies in one table (``table.py``); ``reading.py`` finds a job's events in it.
"""

from __future__ import annotations

from nbtorchjob.state.failure.cause import Cause, Reason
from nbtorchjob.state.failure.reading import (
    of_agent,
    of_agent_error,
    of_deadline,
    of_disruption,
    of_end,
    of_error,
    of_exit,
    of_gone,
    of_queue,
    of_signal,
    of_start,
    of_waiting,
    tells,
    trouble,
)
from nbtorchjob.state.failure.table import (
    AGENT_KILLED,
    DEADLINE_EXCEEDED,
    INIT_FAILED,
    NEVER_STARTED,
    NO_LIMIT,
    PODS_REFUSED,
)

__all__ = [
    "AGENT_KILLED",
    "DEADLINE_EXCEEDED",
    "INIT_FAILED",
    "NEVER_STARTED",
    "NO_LIMIT",
    "PODS_REFUSED",
    "Cause",
    "Reason",
    "of_agent",
    "of_agent_error",
    "of_deadline",
    "of_disruption",
    "of_end",
    "of_error",
    "of_exit",
    "of_gone",
    "of_queue",
    "of_signal",
    "of_start",
    "of_waiting",
    "tells",
    "trouble",
]
