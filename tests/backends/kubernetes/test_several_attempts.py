"""A job of several attempts is one job: listed, read, exported and removed as one."""

from contextlib import suppress
from urllib.error import HTTPError

import pytest
import yaml

from nbtorchjob import api
from nbtorchjob.backends import backend_of
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.machine import loop
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Budget, Phase
from nbtorchjob.state.facts.events import LogChunk
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.mortal import elsewhere
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
QUICK = Retry(retries=2, preemptions=2, backoff=0)


@pytest.fixture
def attach(stage, monkeypatch, tmp_path):
    """Return a function that attaches to a job as on another machine."""
    return lambda job: elsewhere(stage, job, monkeypatch, tmp_path)


# A TrainJob's container restarts until its attempt is stopped, which removes the attempt's pods.
LOGS = "begin()\nlog(f'attempt {ATTEMPT}\\n')\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"


@pytest.mark.parametrize("kind", ["trainjob", "indexedjob"])
def test_a_job_of_several_attempts_is_one_job_wherever_it_is_looked_at(stage, attach, kind):
    job = stage.submit(LOGS, kind=kind, retry=QUICK)
    assert job.result(LIMIT) == 2
    assert set(job.logs(0).splitlines()) == {"attempt 1", "attempt 2"}
    later = attach(job)
    logs = "attempt 2\n" if kind == "trainjob" else "attempt 1\nattempt 2\n"

    for state in (*api.jobs(), api.snapshot(job.name)):
        assert (state.info.name, state.phase, len(state.attempts)) == (job.name, Phase.SUCCEEDED, 2)
    assert (later.logs(0), later.result(LIMIT)) == (logs, 2)
    ((backend, left),) = api.leftovers()
    assert left.name == job.name
    assert left.state is not None
    assert left.state.phase is Phase.SUCCEEDED
    backend.clear(left)
    until(lambda: not stage.left())
    assert (later.logs(0), later.result(LIMIT)) == (logs, 2)


def test_a_list_shows_an_attempt_that_waits_as_waiting(stage):
    job = stage.submit(AGAIN, retry=QUICK)
    stage.cluster.hold(f"^{job.name}-a2")
    until(lambda: job.state.tries == 2 and any(wait.node == 0 for wait in job.state.waiting))

    assert [state.phase for state in api.jobs()] == [Phase.PENDING]


def test_an_exported_job_begins_with_its_first_attempt(stage, tmp_path):
    job = stage.submit(AGAIN, retry=QUICK)
    job.wait(LIMIT)

    manifests = [
        yaml.safe_load(file.read_text()) for file in job.export(tmp_path / "out") if file.suffix == ".yaml"
    ]
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in manifests]
    assert names[-1][1] == job.name
    assert len([name for kind, name in names if kind == "Service"]) == 1
    assert all(labelling.attempt(obj) == 1 for obj in manifests)


def test_a_name_is_free_again_once_its_job_is_deleted(stage):
    for _ in range(2):
        job = stage.submit(AGAIN, name="same", retry=QUICK)
        assert job.result(LIMIT) == 2
        assert len(job.state.attempts) == 2
        job.delete()


def test_what_a_rank_said_of_its_end_is_kept_of_each_attempt(stage):
    job = running(stage.submit("begin()\nwait(f'go-{ATTEMPT}')\nfail(recoverable=True)", retry=QUICK))
    for number in (1, 2, 3):
        until(lambda number=number: job.state.tries == number)
        stage.sign(f"go-{number}")
    job.wait(LIMIT)

    assert [attempt.failure.reason.cause for attempt in job.state.attempts] == [Cause.USER] * 3
    assert [attempt.failure.round for attempt in job.state.attempts] == [0, 1, 2]


def test_what_an_attempt_was_paid_from_is_known_when_its_pods_are_gone(stage, attach):
    part = "begin()\nwait('go') if ATTEMPT == 2 else wait('never')\nvalue(ATTEMPT)"
    job = running(stage.submit(part, retry=QUICK))
    evicted = stage.pod()
    stage.cluster.evict(stage.namespace, evicted)
    until(lambda: job.state.tries == 2)
    with suppress(HTTPError):  # its host may have been faster
        stage.delete("api/v1/{}/pods", evicted)
    until(lambda: stage.pods() and evicted not in [pod["metadata"]["name"] for pod in stage.pods()])
    later = attach(job)
    stage.sign("go")

    for run in (later, job):
        assert run.result(LIMIT) == 2
        assert [attempt.budget for attempt in run.state.attempts] == [Budget.PREEMPTIONS, None]
        assert "evicted" in run.state.attempts[0].failure.reason.line


# Ranks swap their nodes between the attempts. The pod of node 1 ends first: the Job's failure would delete
# it, with its log, if it still ran.
MOVES = """
from nbtorchjob.runtime.store import frames
begin(2)
say(frames.log((NODE + LIFE) % 2, LIFE, 0, f"attempt {ATTEMPT}\\n".encode()))
sign(f"wrote-{NODE}")
wait(f"wrote-{1 - NODE}")
if ATTEMPT == 2: value(ATTEMPT)
elif NODE == 0: wait("ended"); fail(recoverable=True)
"""


@pytest.mark.parametrize("late", [0, 1])
def test_whoever_follows_a_log_hears_an_attempt_after_the_one_before_it(stage, attach, late):
    job = stage.submit(MOVES, kind="indexedjob", retry=QUICK, launch=Elastic(2))
    until(lambda: "Succeeded" in [pod["status"].get("phase") for pod in stage.pods()])
    stage.sign("ended")
    assert job.result(LIMIT) == 2
    info = attach(job).info
    stage.cluster.trouble(500, f"/{job.name}-{late}-[^-]+/log")  # requested again, after all others

    async def heard():
        events = backend_of("kubernetes", info.address).follow(info.address, since={})
        return [event async for event in events if isinstance(event, LogChunk)]

    chunks = loop.run(heard())
    for rank in (0, 1):
        assert [chunk.data for chunk in chunks if chunk.rank == rank] == [b"attempt 1\n", b"attempt 2\n"]
