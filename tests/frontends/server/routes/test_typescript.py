"""TypeScript that the page takes from Python: ``GOLDEN=write pytest`` on this file regenerates it."""

import os
from pathlib import Path

from labextension import typescript
from nbtorchjob.commands.table import CHANGES, OFFERS
from nbtorchjob.frontends.server.routes import SHAPES

PAGE = Path(__file__).parents[4] / "labextension/src"
SHAPED = "nbtorchjob/frontends/server/routes/__init__.py"
RECORD = f"The server's records of jobs. Made from its schema (`{SHAPED}`) by a test."
TABLE = "What can be done to a job. Made from the table of verbs (`nbtorchjob/commands/table.py`) by a test."
NAMES = (
    *("Phase", "Change", "Budget", "Progress", "Still", "Strip", "Use", "Lab", "Job", "Jobs"),
    *("Artifact", "Artifacts", "Value", "Values", "Note", "RunFile", "Files", "Chart", "Part", "Page"),
)


def held(path, text):
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_page_s_record_is_the_server_s_schema():
    held(PAGE / "model/record.ts", typescript.module(RECORD, SHAPES, NAMES))


def test_the_page_s_commands_are_the_verbs_that_are_offered():
    held(PAGE / "commands/table.ts", typescript.table(TABLE, OFFERS, CHANGES))
