"""How Jupyter Server finds the extension."""

import asyncio
import importlib
import json
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException
from jupyter_server.extension.manager import ExtensionPackage
from tornado.web import RequestHandler

from nbtorchjob import JobSpec, api
from nbtorchjob.commands.table import CHANGES
from nbtorchjob.frontends.server import app
from nbtorchjob.frontends.server.app import ROUTES
from nbtorchjob.frontends.server.routes import PARAMETERS, SHAPES, ref
from nbtorchjob.frontends.server.watch import Changes, History
from nbtorchjob.state import US, JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.record import record
from tests.backends.local.acted import Acted
from tests.frontends.server.conftest import jobs
from tests.patience import LIMIT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]


def test_what_is_installed_with_the_package_switches_the_extension_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    [source] = [
        source for source, dest in shared.items() if dest.startswith("etc/jupyter/jupyter_server_config.d/")
    ]

    [name] = json.loads((ROOT / source).read_text())["ServerApp"]["jpserver_extensions"]
    package = ExtensionPackage(name=name, enabled=True)

    assert list(package.extension_points) == ["nbtorchjob"]
    assert importlib.import_module(name)._jupyter_server_extension_points() == package.metadata


def test_it_can_be_switched_on_by_its_own_name():
    package = ExtensionPackage(name="nbtorchjob.frontends.server", enabled=True)

    assert list(package.extension_points) == ["nbtorchjob"]


class TestSettings:
    """A server with its administrator's settings."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set how long requests wait and how many run at once, as a config file would."""
        jp_server_config["TorchJobApp"] |= {"patience_s": 3, "at_once": 2}
        return jp_server_config

    async def test_they_are_taken(self, jp_serverapp):
        [extension] = jp_serverapp.extension_manager.extension_apps["nbtorchjob"]

        assert (extension.patience_s, extension.at_once) == (3, 2)


def row(number):
    return {"id": f"local:job-{number}"}


def ids(news):
    return [job["id"][-1] for job in news.jobs], [id_[-1] for id_ in news.removed], news.whole


def test_the_schema_is_the_one_that_pages_wait_for():
    logger = EventLogger()
    logger.register_event_schema(app.SCHEMA)

    schema: Any = logger.schemas.get(app.SCHEMA_ID)
    assert schema.version == "1"
    with pytest.raises(SchemaRegistryException):
        logger.register_event_schema(app.SCHEMA)


def test_who_has_a_mark_is_told_what_is_new_since_then():
    history = History()
    first = history.since("", [])
    history.add(Changes([row(1), row(2)]))
    second = history.since(first.mark, [row(1), row(2)])
    history.add(Changes([row(3)], ["local:job-1"]))
    third = history.since(second.mark, [row(2), row(3)])

    assert ids(second) == (["1", "2"], [], False)
    assert ids(third) == (["3"], ["1"], False)
    assert ids(history.since(first.mark, [row(2), row(3)])) == (["2", "3"], ["1"], False)
    assert ids(history.since(third.mark, [row(2), row(3)])) == ([], [], False)
    history.add(Changes([row(1)]))
    assert ids(history.since(third.mark, [row(1)])) == (["1"], [], False)


@pytest.mark.parametrize(
    "mark", ["", "x", "0.0", "{born}.99", "{born}.-1", "{born}.²", "{born}." + "9" * 5000]
)
def test_a_mark_that_is_not_known_is_told_all(mark):
    history = History()
    history.add(Changes([row(1)]))
    born = history.since("", []).mark.partition(".")[0]

    assert ids(history.since(mark.replace("{born}", born), [row(1)])) == (["1"], [], True)


def test_what_was_removed_is_remembered_to_a_bound():
    history = History()
    first = history.since("", []).mark
    for number in range(5000):
        history.add(Changes([], [f"local:job-{number}"]))
    later = history.since(history.since("", []).mark, [])

    assert ids(history.since(first, [row(1)])) == (["1"], [], True)
    assert ids(later) == ([], [], False)


async def test_a_page_hears_that_there_is_news_over_jupyters_websocket_and_asks_what(server, jp_ws_fetch):
    async def asked(mark):
        return json.loads((await server.get(f"{jobs()}?known={mark}")).body)

    socket = await jp_ws_fetch("api/events/subscribe")
    before = await asked("")
    job = Acted()
    event = json.loads(await socket.read_message())
    new = await asked(before["mark"])
    job.remove()
    await socket.read_message()
    removal = await asked(new["mark"])
    socket.close()

    assert event["schema_id"] == app.SCHEMA_ID
    assert job.name not in json.dumps(event)  # a user who may receive events may not be allowed to see jobs
    assert (before["whole"], new["whole"], removal["whole"]) == (True, False, False)
    assert [job["name"] for job in new["jobs"]] == [job.name]
    assert (removal["jobs"], removal["removed"]) == ([], [f"local:{job.name}"])


METHODS = ("get", "post", "put", "patch", "delete")

# Generated requests per operation, besides the examples and corner cases, which are the majority.
EACH = 3
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance"),
)


async def document(server):
    """Return the server's OpenAPI document."""
    answer = await server.get("nbtorchjob/api/openapi.json")
    assert answer.code == 200
    return json.loads(answer.body)


async def test_it_is_an_openapi_document(server):
    # Imported here, so that only one of several workers imports it: the import takes more than a second.
    from schemathesis.specs.openapi.definitions import OPENAPI_31

    description = await document(server)

    Draft202012Validator(OPENAPI_31).validate(description)
    for shape in description["components"]["schemas"].values():
        Draft202012Validator.check_schema(shape)


async def test_it_tells_every_route_and_where_they_are(server):
    description = await document(server)

    assert list(description["paths"]) == [f"/{route.path}" for route in ROUTES]
    assert description["servers"] == [{"url": f"{server.base}nbtorchjob/api"}]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_it_tells_each_method_that_is_answered(route):
    # tornado has one function for all methods that a handler leaves out.
    own = [name for name in METHODS if getattr(route.handler, name) is not RequestHandler.get]

    assert [name.upper() for name in own] == list(route.answers)


def test_it_tells_each_verb():
    assert SHAPES["Change"]["enum"] == [*CHANGES]
    assert PARAMETERS["verb"]["schema"] == ref("Change")


def state(*events, **info):
    details = JobInfo(**{"name": "train-2222", "created": 100.0, **info})
    return reduce(apply, events, JobState(details))


BEGUN = (ev.NodeStarted(101.0, 0, "here", 7), ev.WorkersStarted(102.0, 0, 0, 0, (0,), 1))


@pytest.mark.parametrize(
    "state",
    [
        state(),
        state(spec={"retry": {"retries": 3}}, retry_owner=US),
        state(ev.Waiting(101.0, "no room in the queue")),
        state(*BEGUN, ev.Reported(103.0, 0, 0, 0, {"step": 3, "steps": 10})),
        state(*BEGUN, ev.Reported(103.0, 0, 0, 0, {"epoch": 0.5})),
        state(*BEGUN, ev.Lost(150.0, "its supervisor was killed")),
    ],
    ids=["new", "with budgets", "waiting", "reporting", "reporting no total", "lost"],
)
async def test_its_shape_of_a_job_is_that_of_a_record(server, state):
    components = (await document(server))["components"]
    job = Draft202012Validator({"components": components, **ref("Job")})

    job.validate(json.loads(json.dumps(record(state, 160.0))))
    assert not job.is_valid({})


# For an absent cluster, 502 is the right answer; other tests cover methods that no route has.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 502]
[phases.coverage]
unexpected-methods = []
"""


@pytest.fixture
def job(state_dir, monkeypatch, folder):
    """Yield an ended job with the name in the document's examples, without a cluster."""
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))
    (folder / "schemathesis.toml").write_text(CONFIG)
    job = api.submit(print, "line", spec=JobSpec(name="train-2222"))
    job.result(LIMIT)
    yield job
    for state in api.jobs():  # its retries, too
        if state.info.name.startswith(job.name):
            api.attach(state.info.name).delete()


@pytest.mark.torch
async def test_the_server_answers_as_its_document_says(server, http_server_port, job, folder):
    where = f"http://127.0.0.1:{http_server_port[-1]}{server.base}nbtorchjob/api/openapi.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", where, "--no-color", "--warnings=off"),
        *(f"--header={name}:{value}" for name, value in server.headers.items()),
        *("--generation-deterministic", "--generation-with-security-parameters=false"),
        *("--phases=examples,coverage,fuzzing", f"--max-examples={EACH}", f"--checks={','.join(CHECKS)}"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()
    # Every operation except the document itself.
    assert f"Tested: {sum(len(route.answers) for route in ROUTES) - 1}" in output.decode()
