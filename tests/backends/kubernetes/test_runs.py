"""A group's runs on a cluster: what differs comes in their pods' environment."""

import pytest

from nbtorchjob import Retry, api, capture
from nbtorchjob.errors import JobFailedError, JobStoppedError, SpecError
from nbtorchjob.spec.early import Early
from nbtorchjob.state import Phase
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

GIVEN = [{"lr": 1}, {"lr": 2}, {"lr": 3}]
# As a rank takes it, which checks that it is signed with the job's key.
TAKES = """
from nbtorchjob.runtime import given
call = {"names": []}
given.lay(call, KEY)
lr = call["names"][0][1]
"""


def sweep(stage, part, kind="indexedjob", at_once=None, early=None, **asked):
    call = capture.from_cell("lr", {}, given=GIVEN[0])
    spec = stage.spec(name="sweep", kind=kind, pod_patch=stage.acting(TAKES + part), **asked)
    return api.submit_runs(call, GIVEN, api.prepare(spec), at_once=at_once, early=early)


@pytest.mark.parametrize("kind", ["indexedjob", "pytorchjob", "volcano"])
def test_each_run_is_given_its_own_and_found_again(stage, kind):
    runs = sweep(stage, "begin(); value(lr) if lr != 2 else fail()", kind)

    assert runs.wait(LIMIT)
    assert [state.phase for state in runs.states()] == [Phase.SUCCEEDED, Phase.FAILED, Phase.SUCCEEDED]
    one, failed, three = runs.results(errors="return")
    assert (one, three) == (1, 3)
    assert isinstance(failed, JobFailedError)
    (again,) = runs.retry_failed()
    assert isinstance(again.exception(LIMIT), JobFailedError)  # it is given the same
    assert [job.name for job in api.group("sweep")] == [job.name for job in runs]
    assert again.info.given == {"lr": 2}


@pytest.mark.parametrize("kind", ["indexedjob", "volcano"])
def test_a_run_is_stopped_early_by_what_its_log_tells(stage, kind):
    part = """
begin()
tell("Reported", rank=0, round=LIFE, seq=0, metrics={"loss": lr})
value(lr) if lr < 3 else wait("never")
"""
    sweep(stage, part, kind, early=Early(stop_when="loss > 2 * best_loss"))

    *values, stopped = api.group("sweep").results(LIMIT)

    assert values == [1, 2]
    assert isinstance(stopped, JobStoppedError)
    states = api.group("sweep").states()  # as who comes later reads it
    assert states[2].stopped_early
    assert states[2].early == "loss > 2 * best_loss (loss=3, best_loss=1)"


def test_a_further_attempt_is_given_the_same(stage):
    runs = sweep(
        stage, "begin(); value(lr) if ATTEMPT == 2 else fail(True)", retry=Retry(retries=1, backoff=0)
    )

    assert runs.results(LIMIT) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["indexedjob", "pytorchjob", "trainjob"])
def test_who_waits_for_a_group_starts_the_next_one(stage, kind):
    runs = sweep(stage, "begin(); wait(f'go-{lr}'); value(lr)", kind, at_once=1)
    looks = runs.looks()

    def begun():
        return [bool(state.nodes) for state in next(looks)]

    until(lambda: begun() == [True, False, False])
    stage.sign("go-1")
    stage.sign("go-2")
    until(lambda: begun() == [True, True, True])
    stage.sign("go-3")
    assert api.group("sweep").results(LIMIT) == [1, 2, 3]


def test_a_volcano_jobs_queue_decides_how_many_run(stage):
    with pytest.raises(SpecError, match="at_once can't be given on a Job, which can't be made suspended"):
        sweep(stage, "begin(); value(lr)", "volcano", at_once=1)
    assert not stage.left()
