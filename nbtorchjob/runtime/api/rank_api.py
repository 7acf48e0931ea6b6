"""What ``import nbtorchjob`` gives on a rank: the payload carries this file as the package itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Callable

from nbtorchjob.runtime.api import points as _points
from nbtorchjob.runtime.api.artifacts import artifacts_dir, data_dir
from nbtorchjob.runtime.api.checkpoints import attempt, checkpoint_dir
from nbtorchjob.runtime.api.points import Leaving, swap_point
from nbtorchjob.runtime.api.report import report
from nbtorchjob.runtime.facts.errors import RecoverableError

if TYPE_CHECKING:
    from nbtorchjob.runtime.api.sampler import GlobalBatchSampler
    from nbtorchjob.runtime.api.training import ResumableTraining

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

leaving: Callable[[], "float | bool"]  # from below

# They import torch, and DCP takes it a second more.
_LATE = {"GlobalBatchSampler": "sampler", "ResumableTraining": "training"}


def __getattr__(name: str) -> object:
    if name == "leaving":
        _points.expect()
        return _points.leaving
    if name in _LATE:
        return getattr(importlib.import_module("nbtorchjob.runtime.api." + _LATE[name]), name)
    raise AttributeError(
        "nbtorchjob.%s works in the notebook only; on a rank there are %s" % (name, ", ".join(__all__))
    )
