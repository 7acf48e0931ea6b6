"""What the server says of itself, and whether it keeps to it."""

import asyncio
import json
import sys
from functools import reduce

import pytest
from jsonschema import Draft202012Validator
from tornado.web import RequestHandler

from nbtorchjob import JobSpec, api
from nbtorchjob.commands.table import CHANGES
from nbtorchjob.frontends.server.routes.shapes import PARAMETERS, SHAPES, ref
from nbtorchjob.frontends.server.routes.table import ROUTES
from nbtorchjob.state import US, JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.ui.record import record
from tests.patience import LIMIT

METHODS = ("get", "post", "put", "patch", "delete")

# Of each operation so many requests beside the examples and the corner cases, which are most.
EACH = 3
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance"),
)


async def document(server):
    """Return what the server says of itself."""
    answer = await server.get("nbtorchjob/api/openapi.json")
    assert answer.code == 200
    return json.loads(answer.body)


async def test_it_is_an_openapi_document(server):
    # Here, where one worker of several imports it: it takes more than a second.
    from schemathesis.specs.openapi.definitions import OPENAPI_31

    found = await document(server)

    Draft202012Validator(OPENAPI_31).validate(found)
    for shape in found["components"]["schemas"].values():
        Draft202012Validator.check_schema(shape)


async def test_it_tells_every_route_and_where_they_are(server):
    found = await document(server)

    assert list(found["paths"]) == [f"/{route.path}" for route in ROUTES]
    assert found["servers"] == [{"url": f"{server.base}nbtorchjob/api"}]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_it_tells_each_method_that_is_answered(route):
    # What tornado leaves unanswered is one function, whatever the method.
    own = [name for name in METHODS if getattr(route.handler, name) is not RequestHandler.get]

    assert [name.upper() for name in own] == list(route.answers)


def test_it_tells_each_verb():
    assert SHAPES["Change"]["enum"] == [*CHANGES]
    assert PARAMETERS["verb"]["schema"] == ref("Change")


def state(*events, **info):
    told = JobInfo(**{"name": "train-2222", "created": 100.0, **info})
    return reduce(apply, events, JobState(told))


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


# Of a cluster that isn't there 502 is what is to be said; methods that no route has are tested elsewhere.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 502]
[phases.coverage]
unexpected-methods = []
"""


@pytest.fixture
def job(state_dir, monkeypatch, folder):
    """Yield an ended job with the name in the document's examples, where there is no cluster."""
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))
    (folder / "schemathesis.toml").write_text(CONFIG)
    job = api.submit(print, "line", spec=JobSpec(name="train-2222"))
    job.result(LIMIT)
    yield job
    for state in api.jobs():  # retries of it, too
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
    told, _ = await process.communicate()

    assert process.returncode == 0, told.decode()
    # All but the document itself.
    assert f"Tested: {sum(len(route.answers) for route in ROUTES) - 1}" in told.decode()
