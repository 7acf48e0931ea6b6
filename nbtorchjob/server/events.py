"""Changes of jobs as Jupyter events, which pages get over the server's own ``/api/events/subscribe``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbtorchjob.server.looks import Changes

SCHEMA_ID = "https://events.nbtorchjob.dev/jobs/v1"
SCHEMA = Path(__file__).with_suffix(".yaml")

_MAX_RECORDS = 50  # an event is one message to every page; beyond that asking for the list is cheaper


def data(changes: Changes) -> dict[str, Any]:
    """Give the event that tells of the changes; of many only that there are many."""
    if len(changes.changed) + len(changes.removed) > _MAX_RECORDS:
        return {"changed": [], "removed": [], "many": True}
    return {"changed": [*changes.changed], "removed": [*changes.removed]}
