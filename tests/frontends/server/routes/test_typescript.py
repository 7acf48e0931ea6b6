"""The page's types: ``GOLDEN=write pytest tests/frontends/server/routes`` writes them anew."""

import os
from pathlib import Path

from labextension import typescript
from nbtorchjob.frontends.server.routes.shapes import SHAPES

RECORD = Path(__file__).parents[4] / "labextension/src/model/record.ts"
SOURCE = "nbtorchjob/frontends/server/routes/shapes.py"
ABOUT = f"What the server says of jobs. Made of its schema (`{SOURCE}`): a test says how."
NAMES = ("Phase", "Budget", "Progress", "Job", "Jobs")


def test_the_page_s_record_is_the_server_s_schema():
    made = typescript.module(ABOUT, SHAPES, NAMES)
    if os.environ.get("GOLDEN") == "write":
        RECORD.write_text(made)

    assert made == RECORD.read_text()
