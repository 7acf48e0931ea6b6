"""The package that ``import nbtorchjob`` imports on a rank: the payload has this file in its place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from nbtorchjob.runtime.api.artifacts import artifacts_dir, data_dir
    from nbtorchjob.runtime.api.checkpoints import attempt, checkpoint_dir
    from nbtorchjob.runtime.api.points import Leaving, swap_point
    from nbtorchjob.runtime.api.report import report
    from nbtorchjob.runtime.api.sampler import GlobalBatchSampler
    from nbtorchjob.runtime.api.training import ResumableTraining
    from nbtorchjob.runtime.facts.errors import RecoverableError

__all__ = [
    "GlobalBatchSampler",
    "Leaving",
    "RecoverableError",
    "ResumableTraining",
    "artifacts_dir",
    "attempt",
    "checkpoint_dir",
    "data_dir",
    "leaving",
    "report",
    "swap_point",
]

leaving: Callable[[], "float | bool"]  # see `__getattr__`

# Each is imported on first use: two of them import torch, whose DCP takes a second more, and listing jobs
# needs only the names.
_HOMES = {
    "GlobalBatchSampler": "api.sampler",
    "Leaving": "api.points",
    "RecoverableError": "facts.errors",
    "ResumableTraining": "api.training",
    "artifacts_dir": "api.artifacts",
    "attempt": "api.checkpoints",
    "checkpoint_dir": "api.checkpoints",
    "data_dir": "api.artifacts",
    "report": "api.report",
    "swap_point": "api.points",
}


def __getattr__(name: str) -> object:
    if name == "leaving":
        from nbtorchjob.runtime.api import points  # imported late, as below

        points.expect()
        return points.leaving
    if name in _HOMES:
        value = getattr(importlib.import_module("nbtorchjob.runtime." + _HOMES[name]), name)
        globals()[name] = value  # a training loop may look it up in each step
        return value
    raise AttributeError(
        "nbtorchjob.%s works in the notebook only; on a rank there are %s" % (name, ", ".join(__all__))
    )
