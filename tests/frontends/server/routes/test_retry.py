"""Retries of ended jobs through the server, without a kernel."""

import asyncio
import json
import pickle
import sys
import threading

import cloudpickle
import pytest

from nbtorchjob import api
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.frontends.server.handlers import Lanes
from tests.backends.kubernetes.stage import running, until
from tests.frontends.server.conftest import error, jobs
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


async def retried(server, id, verb="retry"):
    """Run a job once more; return the new job's record and handle."""
    answer = await server.post(jobs(id, verb))
    assert answer.code == 201, answer.body
    record = json.loads(answer.body)
    assert answer.headers["Location"] == server.base + jobs(record["id"])
    again = api.attach(record["id"].partition(":")[2])
    assert await asyncio.to_thread(again.wait, LIMIT)
    return record, again


@pytest.mark.torch
async def test_a_job_of_this_machine_is_run_again_and_nothing_is_unpickled(server, monkeypatch):
    job = api.submit(lambda: 42)
    assert await asyncio.to_thread(job.wait, LIMIT)

    with monkeypatch.context() as patch:
        for module in (pickle, cloudpickle):
            for name in ("load", "loads", "Unpickler"):
                patch.setattr(module, name, None, raising=False)  # any unpickling fails
        record, again = await retried(server, f"local:{job.name}")

    assert record["id"] == f"local:{again.name}" != f"local:{job.name}"
    assert (record["phase"], record["label"]) == ("SUBMITTED", job.info.label)
    assert again.result() == job.result() == 42


@pytest.mark.torch
async def test_a_job_is_resumed_from_its_checkpoint_unless_it_has_none(server):
    def counts():
        from nbtorchjob import checkpoint_dir

        saved = checkpoint_dir() / "count"
        saved.write_text((saved.read_text() if saved.exists() else "") + "x")
        return saved.read_text()

    job, bare = api.submit(counts), api.submit(lambda: 1)
    for ended in (job, bare):
        assert await asyncio.to_thread(ended.wait, LIMIT)

    assert json.loads((await server.get(jobs(f"local:{job.name}"))).body)["resumable"]
    _, again = await retried(server, f"local:{job.name}", "continue")
    assert again.result() == "xx"
    code, message = error(await server.post(jobs(f"local:{bare.name}", "continue")))
    assert (code, "left no checkpoint" in message) == (409, True)


@pytest.mark.torch
async def test_a_second_click_gets_the_job_that_the_first_one_starts(server, monkeypatch):
    job = api.submit(lambda: 1)
    assert await asyncio.to_thread(job.wait, LIMIT)
    both, clicks = threading.Event(), []

    async def run(lanes, lane, work, once=""):
        if once:
            clicks.append(once)
            if len(clicks) == 2:
                both.set()
        return await real_run(lanes, lane, work, once)

    def retry(backend, name, *, resume):
        assert both.wait(LIMIT)
        return real_retry(backend, name, resume=resume)

    real_run, real_retry = Lanes.run, LocalBackend.retry
    monkeypatch.setattr(Lanes, "run", run)
    monkeypatch.setattr(LocalBackend, "retry", retry)
    answers = await asyncio.gather(*(server.post(jobs(f"local:{job.name}", "retry")) for _ in range(2)))

    assert [answer.code for answer in answers] == [201, 201]
    (id,) = {json.loads(answer.body)["id"] for answer in answers}
    assert await asyncio.to_thread(api.attach(id.partition(":")[2]).wait, LIMIT)


async def test_a_job_that_is_not_there_is_told(server):
    assert error(await server.post(jobs("local:train-2222", "retry")))[0] == 404


async def test_a_job_of_a_cluster_is_run_again_once_it_has_ended(server, stage):
    job = running(stage.submit("begin(); wait('go'); value(1)"))
    path = f"kubernetes:{job.info.address}"

    status, message = error(await server.post(jobs(path, "retry")))
    assert (status, message) == (
        409,
        f"{job.name} hasn't ended: cancel it first, %torchjob cancel {job.name}",
    )

    stage.sign("go")
    await asyncio.to_thread(until, job.done)
    record, again = await retried(server, path)
    assert record["id"] == f"kubernetes:{again.info.address}"
    assert again.result() == 1
