"""Logs of cluster jobs over a websocket: pods' lines as bytes, and the kept log of a job that is gone."""

import asyncio

import pytest

from nbtorchjob.spec.config import Elastic
from nbtorchjob.state import Phase
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import running, until
from tests.frontends.server.conftest import jobs
from tests.frontends.server.sockets import followed_no_more, following
from tests.frontends.server.test_clusters import remote
from tests.patience import LIMIT

TALK = """
begin()
log("line 1\\nline 2\\n")
wait("more")
log("".join(f"line {count}\\n" for count in range(3, 5001)))
wait("go")
value(1)
"""
TEXT = "".join(f"line {count}\n" for count in range(1, 5001)).encode()
FIRST = b"line 1\nline 2\n"


@pytest.fixture
def job(stage):
    """Return a job that runs on the emulator until the test lets it end."""
    return running(stage.submit(TALK))


async def test_a_running_job_is_followed_to_its_end(connect, stage, job):
    socket = await connect(remote(job))
    await socket.until(lambda: socket.logs.get((0, 0)) == (0, FIRST))
    stage.sign("more")
    stage.sign("go")

    assert await socket.all() == {(0, 0): TEXT}
    assert socket.told[0]["job"]["id"] == remote(job)
    assert socket.records[-1]["job"]["phase"] == "SUCCEEDED"
    assert socket.told[-1] == {"end": True}


async def test_a_page_that_comes_again_gets_what_it_misses(connect, stage, job):
    first = await connect(remote(job))
    await first.until(lambda: first.logs.get((0, 0)) == (0, FIRST))
    first.socket.close()
    for sign in ("more", "go"):
        stage.sign(sign)
    assert await asyncio.to_thread(job.wait, LIMIT)

    for offset in (len(FIRST), 20, len(TEXT) - 1, len(TEXT)):
        logs = await (await connect(remote(job), since=f"0.0.{offset}")).all()
        assert b"".join(logs.values()) == TEXT[offset:]


async def test_only_the_ranks_that_are_asked_for_come(connect, stage):
    job = stage.submit("begin(2); log(f'{NODE}'); wait('go')", launch=Elastic(nnodes=2))
    stage.sign("go")

    logs = await (await connect(remote(job), ranks="1")).all()
    assert logs == {(1, 0): b"1"}


async def test_a_job_that_is_cancelled_ends_the_stream(server, connect, job):
    socket = await connect(remote(job))
    await socket.until(lambda: socket.logs)
    assert (await server.post(jobs(remote(job), "cancel"))).code == 204

    assert await socket.all() == {(0, 0): FIRST}
    assert socket.records[-1]["job"]["phase"] == "CANCELLED"
    assert await asyncio.to_thread(lambda: job.wait(LIMIT) and job.state.phase) is Phase.CANCELLED


async def test_of_a_job_that_the_cluster_has_no_more_comes_what_was_kept(connect, stage, job):
    for sign in ("more", "go"):
        stage.sign(sign)
    assert await asyncio.to_thread(job.result, LIMIT) == 1
    stage.delete("apis/batch/v1/{}/jobs", job.name)
    await asyncio.to_thread(until, lambda: not stage.objects("apis/batch/v1/{}/jobs"))

    socket = await connect(remote(job), since="0.0.7")
    assert await socket.all() == {(0, 0): TEXT[7:]}
    assert socket.records[-1]["job"]["phase"] == "SUCCEEDED"


async def test_a_page_that_is_closed_leaves_nothing_behind(connect, stage, job):
    until(lambda: "line 2" in job.logs(0))
    before = following()  # tasks of the job's own handle
    socket = await connect(remote(job))
    await socket.until(lambda: socket.logs)
    assert following() - before
    socket.socket.close()

    await followed_no_more(before)


def test_a_log_is_given_from_an_offset_on(stage, job):
    stage.sign("more")
    until(lambda: job.logs(0).encode() == TEXT)

    for offset in (0, 9, len(TEXT), len(TEXT) + 1):
        assert b"".join(cluster_backend().log(job.info.address, 0, offset)) == TEXT[offset:]
