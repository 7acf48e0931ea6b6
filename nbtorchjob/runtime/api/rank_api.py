"""What ``import nbtorchjob`` gives on a rank: the payload carries this file as the package itself."""

from __future__ import annotations

from typing import Callable

from nbtorchjob.runtime.api import leaving as _leaving
from nbtorchjob.runtime.api.artifacts import artifacts_dir
from nbtorchjob.runtime.api.checkpoints import attempt, checkpoint_dir
from nbtorchjob.runtime.api.leaving import Leaving
from nbtorchjob.runtime.api.report import report
from nbtorchjob.runtime.facts.errors import RecoverableError

__all__ = ["Leaving", "RecoverableError", "artifacts_dir", "attempt", "checkpoint_dir", "leaving", "report"]

leaving: Callable[[], "float | bool"]  # from below


def __getattr__(name: str) -> object:
    if name == "leaving":
        _leaving.expect()
        return _leaving.leaving
    raise AttributeError(
        "nbtorchjob.%s works in the notebook only; on a rank there are %s" % (name, ", ".join(__all__))
    )
