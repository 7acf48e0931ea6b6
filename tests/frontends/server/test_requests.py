"""Requests that the server refuses."""

import pytest

from tests.frontends.server.conftest import error, jobs

JOB = "local:train-2222"
ABOUT_ONE = [
    ("GET", jobs(JOB)),
    ("DELETE", jobs(JOB)),
    ("GET", jobs(JOB, "card")),
    ("GET", jobs(JOB, "describe")),
    ("GET", jobs(JOB, "manifests")),
    ("GET", jobs(JOB, "logs", "0")),
    ("POST", jobs(JOB, "cancel")),
    ("POST", jobs(JOB, "suspend")),
    ("POST", jobs(JOB, "resume")),
    ("POST", jobs(JOB, "retry")),
]


@pytest.mark.parametrize(("method", "path"), ABOUT_ONE)
async def test_a_job_that_is_not_there_is_not_found(server, method, path):
    status, message = error(await server.ask(method, path))

    assert status == 404
    assert message == "there is no job named 'train-2222' on this machine"


@pytest.mark.parametrize("id", ["train-2222", "local:..", "local:../../etc", "slurm:a", "kubernetes:a", "%"])
@pytest.mark.parametrize(("method", "path"), ABOUT_ONE)
async def test_what_is_no_id_is_refused(server, method, path, id):
    status, message = error(await server.ask(method, path.replace(jobs(JOB), jobs(id))))

    assert status == 400
    assert repr(id) in message


async def test_a_path_leads_nowhere_else(server, state_dir):
    beside = state_dir / "jobs" / "beside"
    beside.mkdir(parents=True, exist_ok=True)
    for id in ("local:..", "local:../jobs/beside", "local:%2e%2e", "local:jobs/../beside"):
        assert error(await server.ask("DELETE", jobs(id)))[0] == 400

    assert (await server.ask("DELETE", f"{jobs()}/local:../jobs/beside")).code == 404
    assert (await server.ask("DELETE", f"{jobs()}/../jobs/beside")).code == 404
    assert beside.is_dir()
    beside.rmdir()


@pytest.mark.parametrize("rank", ["-1", "one", "..", "1e3"])
async def test_what_is_no_rank_is_refused(server, rank):
    status, message = error(await server.get(jobs(JOB, "logs", rank)))

    assert status == 400
    assert message.startswith(f"rank: got {rank!r}")


async def test_an_unknown_verb_is_not_found(server):
    assert error(await server.post(jobs(JOB, "explode"))) == (
        404,
        "a POST to a job must be one of stacks, cancel, suspend, resume, start, end",
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", jobs(JOB, "cancel")),
        ("POST", jobs()),
        ("POST", jobs(JOB)),
        ("POST", jobs(JOB, "describe")),
        ("POST", jobs(JOB, "logs", "0")),
        ("DELETE", jobs()),
    ],
)
async def test_a_route_takes_its_own_methods_only(server, method, path):
    assert error(await server.ask(method, path))[0] == 405
