"""Changes of jobs as Jupyter events."""

import asyncio
import json

import pytest
from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException

from nbtorchjob.server import events
from nbtorchjob.server.looks import Changes
from tests.backends.local.acted import Acted
from tests.server.conftest import jobs


def record(number):
    return {"id": f"local:job-{number}"}


@pytest.fixture
def logger():
    """Give a logger that knows the schema, and a list of what a listener is told."""
    logger = EventLogger()
    logger.register_event_schema(events.SCHEMA)
    return logger


def test_the_schema_is_the_one_that_pages_wait_for(logger):
    assert logger.schemas.get(events.SCHEMA_ID).version == "1"
    with pytest.raises(SchemaRegistryException):
        logger.register_event_schema(events.SCHEMA)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (Changes([record(1)], ["local:job-2"]), {"changed": [record(1)], "removed": ["local:job-2"]}),
        (Changes([*map(record, range(51))]), {"changed": [], "removed": [], "many": True}),
        (Changes([], ["local:x"] * 51), {"changed": [], "removed": [], "many": True}),
    ],
)
async def test_changes_are_told_as_the_schema_says(logger, changes, told):
    heard = asyncio.Queue[tuple[str, dict[str, object]]]()

    async def listen(logger, schema_id, data):
        heard.put_nowait((schema_id, data))

    logger.add_listener(schema_id=events.SCHEMA_ID, listener=listen)
    logger.emit(schema_id=events.SCHEMA_ID, data=events.data(changes))
    schema_id, data = await heard.get()

    assert schema_id == events.SCHEMA_ID
    assert {key: value for key, value in data.items() if not key.startswith("__")} == told


async def test_a_page_hears_of_a_job_over_jupyters_own_websocket(server, jp_ws_fetch):
    socket = await jp_ws_fetch("api/events/subscribe")
    before = json.loads((await server.get(jobs())).body)["jobs"]
    job = Acted()
    told = json.loads(await socket.read_message())
    job.remove()
    gone = json.loads(await socket.read_message())
    socket.close()

    assert told["schema_id"] == events.SCHEMA_ID
    assert [each["name"] for each in told["changed"]] == [job.name]
    assert told["removed"] == []
    assert job.name not in [each["name"] for each in before]
    assert (gone["changed"], gone["removed"]) == ([], [f"local:{job.name}"])
