"""That jobs have changed, as Jupyter events, which pages get over the server's own ``/api/events/subscribe``.

Who may read that stream need not be allowed to see jobs, so an event says nothing of them: who hears it
asks for what is new.
"""

from __future__ import annotations

from pathlib import Path

SCHEMA_ID = "https://events.nbtorchjob.dev/jobs/v1"
SCHEMA = Path(__file__).with_suffix(".yaml")
