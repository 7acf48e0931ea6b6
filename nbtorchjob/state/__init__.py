"""All that is known of one job. ``apply(state, event)`` gives the next state; nothing else does."""

from __future__ import annotations

from nbtorchjob.state.attempts import Attempt, Budget, BudgetUse, Next
from nbtorchjob.state.blame import Failure
from nbtorchjob.state.facts.series import MAX_POINTS, Point, Series
from nbtorchjob.state.fold import apply
from nbtorchjob.state.info import OPERATOR, US, JobInfo, Origin
from nbtorchjob.state.job import JobState, Phase, conclusive
from nbtorchjob.state.nodes import Life, Node

__all__ = [
    "MAX_POINTS",
    "OPERATOR",
    "US",
    "Attempt",
    "Budget",
    "BudgetUse",
    "Failure",
    "JobInfo",
    "JobState",
    "Life",
    "Next",
    "Node",
    "Origin",
    "Phase",
    "Point",
    "Series",
    "apply",
    "conclusive",
]
