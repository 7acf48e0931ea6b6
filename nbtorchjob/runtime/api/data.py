"""``data_dir()``: the data that a job names with ``--data``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Dict

from nbtorchjob.runtime.api.report import ROUND

DATA = "NBTORCHJOB_DATA"  # JSON: paths by name, set by the node once all of them are complete


def data_dir(name: str) -> Path:
    """Return the folder, or the single file's folder, that ``--data NAME=WHERE`` stands for on this node.

    It is complete before the first rank starts, for reading only, and may be shared with other jobs.

    Raises ``RuntimeError`` in a notebook, and ``KeyError`` for a name that the job doesn't have.
    """
    if ROUND not in os.environ:
        raise RuntimeError("data_dir() is for ranks, and this isn't one: call it in what the job runs")
    places: Dict[str, str] = json.loads(os.environ.get(DATA) or "{}")
    if name not in places:
        there = ", ".join(sorted(places)) or "none: --data %s=WHERE names it" % name
        raise KeyError("this job has no data named %r; available: %s" % (name, there))
    return Path(places[name])
