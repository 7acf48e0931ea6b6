"""Ranks that stop in the debugger, told once where nothing that was written can be updated."""

from __future__ import annotations

import time

from nbtorchjob.state import JobState
from nbtorchjob.state.events import STEPS
from nbtorchjob.state.text import facts


class Stops:
    """Which of them were told."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def new(self, state: JobState) -> str:
        """Return lines about the stopped ranks where there is another one; else nothing."""
        stopped = {stop.rank for stop in state.stopped}
        new = stopped - self._told
        # One that somebody steps through stops at each line.
        steps = {rank for rank in self._told & state.goes_on.keys() if state.goes_on[rank].how == STEPS}
        self._told = stopped | steps
        return "".join(f"{each}\n" for each in facts.stops(state, time.time())) if new else ""
