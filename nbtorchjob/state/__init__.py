"""All that is known of one job. ``apply(state, event)`` gives the next state; nothing else does."""

from __future__ import annotations

from nbtorchjob.state.blame import Failure
from nbtorchjob.state.fold import apply
from nbtorchjob.state.info import JobInfo
from nbtorchjob.state.job import JobState, Phase, settled
from nbtorchjob.state.nodes import Life, Node
from nbtorchjob.state.series import MAX_POINTS, Point, Series

__all__ = [
    "MAX_POINTS",
    "Failure",
    "JobInfo",
    "JobState",
    "Life",
    "Node",
    "Phase",
    "Point",
    "Series",
    "apply",
    "settled",
]
