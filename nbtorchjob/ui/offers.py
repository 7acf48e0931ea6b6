"""What pages offer to do with a job: JupyterLab's commands and menus, a card's buttons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from nbtorchjob.backends import ROWS
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.state import JobState

# Which jobs are meant: those whose record (``ui/record``) has one of the values in each of these fields.
Condition: TypeAlias = Mapping[str, Sequence[Any]]

LIVE: Condition = {"terminal": [False]}
RUNS: Condition = {"phase": ["RUNNING"]}
ENDED: Condition = {"terminal": [True]}
# Of a job on a cluster it may not be known: what it is asked then says so.
RESUMABLE: Condition = {"terminal": [True], "resumable": [True, None]}
CURVES: Condition = {"curves": [True, None]}
KEPT: Condition = {"terminal": [False], "kept": [True]}
SUSPENDED: Condition = {"status": ["SUSPENDED"]}
WAITING: Condition = {
    "backend": [name for name, row in ROWS.items() if row.queues],
    "status": ["SUBMITTED", "PENDING", "WAITING"],
}
SUSPENDABLE: Condition = {
    "backend": [name for name, row in ROWS.items() if row.suspends],
    "status": [
        *("SUBMITTED", "QUEUED", "PENDING", "RUNNING", "CANCELLING"),
        *("HUNG", "STALLED", "LEAVING", "DEBUGGING", "RETRYING", "WAITING"),
    ],
}


class Offer(FrozenDataclass):
    """How pages offer something that can be done to a job.

    It is called ``label`` beside a job and ``asking`` where none is named; ``icon`` is one of JupyterLab's,
    ``rank`` its order in a job's menu. ``warning`` is shown before it is done to a running job, and
    ``warning_ended`` for an ended one: both need a yes. ``on_card`` is whether a card has a button for it,
    given the job and whether a cell waits for it; with ``done``, which it then shows, an unfinished job's
    card also has one wherever there is a server.
    """

    label: str
    asking: str
    caption: str
    icon: str
    rank: int
    when: Condition = field(default_factory=dict)
    warning: str = ""
    warning_ended: str = ""
    on_card: Callable[[JobState, bool], bool] | None = None
    done: str = ""


Offers: TypeAlias = Mapping[str, Offer]  # by their verbs
