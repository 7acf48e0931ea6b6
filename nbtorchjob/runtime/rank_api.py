"""What ``import nbtorchjob`` gives on a rank: the payload carries this file as the package itself."""

from __future__ import annotations

from typing import Callable

from nbtorchjob.runtime import leaving as _leaving
from nbtorchjob.runtime.artifacts import artifacts_dir
from nbtorchjob.runtime.checkpoints import attempt, checkpoint_dir
from nbtorchjob.runtime.errors import RecoverableError
from nbtorchjob.runtime.leaving import Leaving
from nbtorchjob.runtime.report import report

__all__ = ["Leaving", "RecoverableError", "artifacts_dir", "attempt", "checkpoint_dir", "leaving", "report"]

leaving: Callable[[], "float | bool"]  # from below


def __getattr__(name: str) -> object:
    if name == "leaving":
        _leaving.expect()
        return _leaving.leaving
    raise AttributeError(
        "nbtorchjob.%s works in the notebook only; on a rank there are %s" % (name, ", ".join(__all__))
    )
