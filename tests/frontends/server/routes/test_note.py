"""A user's note and tags on a job, set from a page."""

import json

import pytest

from nbtorchjob import api
from tests.backends.local.acted import Acted
from tests.frontends.server.conftest import error, jobs
from tests.frontends.server.routes.test_jobs import local


@pytest.fixture
def job():
    """Yield a job with a folder that the test writes."""
    job = Acted()
    yield job
    job.remove()


async def test_both_are_replaced_and_the_list_has_them_at_once(server, job):
    path = jobs(local(job), "note")
    await server.get(jobs())

    done = await server.ask("PUT", path, body=json.dumps({"note": "a  line", "tags": ["v2", "#lr"]}))
    listed = json.loads((await server.get(jobs())).body)["jobs"]
    assert done.code == 204
    (record,) = [entry for entry in listed if entry["id"] == local(job)]
    assert (record["note"], record["tags"]) == ("a line", ["v2", "lr"])

    await server.ask("PUT", path, body=json.dumps({"note": "", "tags": []}))
    annotated = api.snapshot(job.name).annotated
    assert annotated is not None
    assert (annotated.note, annotated.tags) == ("", ())


@pytest.mark.parametrize(
    "body", ["", "[]", "x", '{"note": 1, "tags": []}', '{"note": ""}', '{"note": "", "tags": [1]}']
)
async def test_a_body_of_another_shape_is_refused(server, job, body):
    answer = await server.ask("PUT", jobs(local(job), "note"), body=body)
    assert answer.code == 400
    assert api.snapshot(job.name).annotated is None


async def test_what_can_be_no_tag_or_is_no_job_is_one_line(server, job):
    body = json.dumps({"note": "", "tags": ["two words"]})
    code, message = error(await server.ask("PUT", jobs(local(job), "note"), body=body))
    assert (code, "a word of at most 63 letters" in message) == (409, True)
    body = json.dumps({"note": "", "tags": []})
    assert error(await server.ask("PUT", jobs("local:nobody-2222", "note"), body=body))[0] == 404
