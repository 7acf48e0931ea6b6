"""What was done in operators' place by this process: a line for each in the log, and how often."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Literal, TypeAlias

from nbtorchjob.state import JobInfo

Deed: TypeAlias = Literal[
    "started a run", "began an attempt", "ended an attempt", "deleted pods", "removed the job"
]

LOG = logging.getLogger("nbtorchjob.tending")
done: Counter[Deed] = Counter()


def note(info: JobInfo, deed: Deed, why: str) -> None:
    """Note that something was done to a job, and why."""
    done[deed] += 1
    LOG.info("%s: %s: %s", info.address, deed, why)
