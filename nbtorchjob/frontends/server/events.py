"""Notices that jobs have changed, as Jupyter events from the server's own ``/api/events/subscribe``.

Readers of that stream may not be allowed to see jobs, so an event carries nothing about them: its
listeners request what is new.
"""

from __future__ import annotations

from pathlib import Path

SCHEMA_ID = "https://events.nbtorchjob.dev/jobs/v1"
SCHEMA = Path(__file__).with_suffix(".yaml")
