"""Every route about jobs with forged facts returns an answer, or an error that is a line of JSON."""

import shutil

import pytest

from nbtorchjob.frontends.server.app import ROUTES
from tests.forging import forged, forged_jobs
from tests.frontends.server.conftest import error, jobs
from tests.frontends.server.test_security import path

JOBS = 10
ABOUT = [route for route in ROUTES if "{id}" in route.path or "job" in route.query]
VERBS = ("stacks", "suspend", "resume", "end", "cancel")  # the last one ends the job


@pytest.fixture
def forgeries(state_dir):
    """Yield jobs with forged facts."""
    handles = forged_jobs(JOBS)
    yield handles
    for job in handles:
        shutil.rmtree(job.path, ignore_errors=True)


async def test_no_forged_fact_keeps_a_route_from_answering(server, forgeries):
    assert (await server.get("nbtorchjob/api/jobs")).code == 200
    for job in forgeries:
        lab = job.info().lab is not None
        name = f"local:{job.path.name}"
        for id_ in (name, f"{name}#1") if lab else (name,):
            requests = [("GET", path(route, id_)) for route in ABOUT]
            requests += [("POST", path(route, id_)) for route in ABOUT if "POST" in route.answers]
            requests += [("POST", jobs(id_, verb)) for verb in VERBS]
            for method, where in requests:
                answer = await server.ask(method, where)
                assert answer.code < 500, (method, where, answer.body, job.events.read_text())
        assert (await server.post(jobs(name, "cancel"))).code == 204
        assert (await server.ask("DELETE", jobs(name))).code == 204
        assert not job.path.exists()


async def test_a_job_whose_record_is_damaged_is_cancelled_and_deleted(server):
    job = forged("damaged", [])
    (job.path / "job.json").write_text("{")

    code, why = error(await server.post(jobs("local:damaged", "suspend")))
    assert (code, why.partition(" (")[0]) == (409, "the record of damaged can't be read")
    assert (await server.post(jobs("local:damaged", "cancel"))).code == 204
    assert job.cancel.exists()
    assert (await server.ask("DELETE", jobs("local:damaged"))).code == 204
    assert not job.path.exists()
