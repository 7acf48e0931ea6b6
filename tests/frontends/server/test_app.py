"""How Jupyter Server finds the extension."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException
from jupyter_server.extension.manager import ExtensionPackage

from nbtorchjob.frontends.server import app
from nbtorchjob.frontends.server.watch import Changes, History
from tests.backends.local.acted import Acted
from tests.frontends.server.conftest import jobs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]


def test_what_is_installed_with_the_package_switches_the_extension_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    [source] = [
        here for here, there in shared.items() if there.startswith("etc/jupyter/jupyter_server_config.d/")
    ]

    [name] = json.loads((ROOT / source).read_text())["ServerApp"]["jpserver_extensions"]
    package = ExtensionPackage(name=name, enabled=True)

    assert list(package.extension_points) == ["nbtorchjob"]
    assert importlib.import_module(name)._jupyter_server_extension_points() == package.metadata


def test_it_can_be_switched_on_by_its_own_name():
    package = ExtensionPackage(name="nbtorchjob.frontends.server", enabled=True)

    assert list(package.extension_points) == ["nbtorchjob"]


class TestSettings:
    """A server whose administrator has set something."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set how long requests wait, as a config file would."""
        jp_server_config["TorchJobApp"] |= {"patience_s": 3, "at_once": 2}
        return jp_server_config

    async def test_they_are_taken(self, jp_serverapp):
        [found] = jp_serverapp.extension_manager.extension_apps["nbtorchjob"]

        assert (found.patience_s, found.at_once) == (3, 2)


def record(number):
    return {"id": f"local:job-{number}"}


def ids(news):
    return [job["id"][-1] for job in news.jobs], [id_[-1] for id_ in news.removed], news.whole


def test_the_schema_is_the_one_that_pages_wait_for():
    logger = EventLogger()
    logger.register_event_schema(app.SCHEMA)

    known: Any = logger.schemas.get(app.SCHEMA_ID)
    assert known.version == "1"
    with pytest.raises(SchemaRegistryException):
        logger.register_event_schema(app.SCHEMA)


def test_who_has_a_mark_is_told_what_is_new_since_then():
    history = History()
    first = history.since("", [])
    history.add(Changes([record(1), record(2)]))
    second = history.since(first.mark, [record(1), record(2)])
    history.add(Changes([record(3)], ["local:job-1"]))
    third = history.since(second.mark, [record(2), record(3)])

    assert ids(second) == (["1", "2"], [], False)
    assert ids(third) == (["3"], ["1"], False)
    assert ids(history.since(first.mark, [record(2), record(3)])) == (["2", "3"], ["1"], False)
    assert ids(history.since(third.mark, [record(2), record(3)])) == ([], [], False)
    history.add(Changes([record(1)]))
    assert ids(history.since(third.mark, [record(1)])) == (["1"], [], False)


@pytest.mark.parametrize(
    "mark", ["", "x", "0.0", "{born}.99", "{born}.-1", "{born}.²", "{born}." + "9" * 5000]
)
def test_a_mark_that_is_not_known_is_told_all(mark):
    history = History()
    history.add(Changes([record(1)]))
    born = history.since("", []).mark.partition(".")[0]

    assert ids(history.since(mark.replace("{born}", born), [record(1)])) == (["1"], [], True)


def test_what_was_removed_is_remembered_to_a_bound():
    history = History()
    first = history.since("", []).mark
    for number in range(5000):
        history.add(Changes([], [f"local:job-{number}"]))
    later = history.since(history.since("", []).mark, [])

    assert ids(history.since(first, [record(1)])) == (["1"], [], True)
    assert ids(later) == ([], [], False)


async def test_a_page_hears_that_there_is_news_over_jupyters_websocket_and_asks_what(server, jp_ws_fetch):
    async def asked(known):
        return json.loads((await server.get(f"{jobs()}?known={known}")).body)

    socket = await jp_ws_fetch("api/events/subscribe")
    before = await asked("")
    job = Acted()
    told = json.loads(await socket.read_message())
    new = await asked(before["mark"])
    job.remove()
    await socket.read_message()
    gone = await asked(new["mark"])
    socket.close()

    assert told["schema_id"] == app.SCHEMA_ID
    assert job.name not in json.dumps(told)  # who may hear events need not be allowed to see jobs
    assert (before["whole"], new["whole"], gone["whole"]) == (True, False, False)
    assert [each["name"] for each in new["jobs"]] == [job.name]
    assert (gone["jobs"], gone["removed"]) == ([], [f"local:{job.name}"])
