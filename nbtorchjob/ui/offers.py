"""What pages offer to do with a job: JupyterLab's commands and menus, the buttons of a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nbtorchjob.state import JobState

# Which jobs are meant: in each of these fields their record (``ui/record``) has one of the values.
Condition: TypeAlias = Mapping[str, Sequence[Any]]

LIVE: Condition = {"terminal": [False]}
ENDED: Condition = {"terminal": [True]}
SUSPENDED: Condition = {"status": ["SUSPENDED"]}
SUSPENDABLE: Condition = {
    "backend": ["kubernetes"],
    "status": ["SUBMITTED", "PENDING", "RUNNING", "CANCELLING"],
}


@dataclass(frozen=True)
class Offer:
    """How something that can be done to a job is offered in pages.

    It is called ``label`` beside a job and ``asking`` where none is named; ``icon`` is one of JupyterLab's,
    ``rank`` its order in a job's menu. ``warning`` is what is said before it is done to a job that runs, and
    ``warning_ended`` to one that has ended: both want a yes. A card has a button when ``on_card`` says so, a
    live card one that, once done, says ``done``, with the fields of what the server answers in braces.
    """

    label: str
    asking: str
    caption: str
    icon: str
    rank: int
    when: Condition = field(default_factory=dict)
    warning: str = ""
    warning_ended: str = ""
    on_card: Callable[[JobState], bool] | None = None
    done: str = ""


Offers: TypeAlias = Mapping[str, Offer]  # by their verbs
