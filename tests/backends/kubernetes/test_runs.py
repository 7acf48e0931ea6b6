"""A group's runs on a cluster: the values that differ come in the environment of their pods."""

import pytest

from nbtorchjob import Retry, api, capture, submission
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.backends.kubernetes.submit import submitter
from nbtorchjob.errors import (
    AlreadyExistsError,
    JobFailedError,
    JobStoppedError,
    SpecError,
    SubmitError,
    UnreachableError,
)
from nbtorchjob.machine import folders
from nbtorchjob.spec.grid import Early
from nbtorchjob.state import Phase
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

GIVEN = [{"lr": 1}, {"lr": 2}, {"lr": 3}]
# Takes the values as a rank does, which checks that they are signed with the job's key.
TAKES = """
from nbtorchjob.runtime.store.payload import lay_given
call = {"names": []}
lay_given(call, KEY)
lr = call["names"][0][1]
"""


def sweep(stage, part, kind="indexedjob", at_once=None, early=None, **asked):
    call = capture.from_cell("lr", {}, run_values=GIVEN[0])
    spec = stage.spec(name="sweep", kind=kind, pod_patch=stage.acting(TAKES + part), **asked)
    return submission.send_runs(
        submission.prepare(call, submission.check(spec)), GIVEN, at_once=at_once, early=early
    )


@pytest.mark.parametrize("kind", ["indexedjob", "pytorchjob", "volcano"])
def test_each_run_is_given_its_own_and_found_again(stage, kind):
    runs = sweep(stage, "begin(); value(lr) if lr != 2 else fail()", kind)

    assert runs.wait(LIMIT)
    assert [state.phase for state in runs.states()] == [Phase.SUCCEEDED, Phase.FAILED, Phase.SUCCEEDED]
    first, failed, third = runs.results(errors="return")
    assert (first, third) == (1, 3)
    assert isinstance(failed, JobFailedError)
    (again,) = runs.retry_failed()
    assert isinstance(again.exception(LIMIT), JobFailedError)  # with the same values
    assert [job.name for job in api.group("sweep")] == [job.name for job in runs]
    assert again.info.given == {"lr": 2}


def test_a_job_of_somebody_else_is_no_run_of_a_group_though_it_says_so(stage, tmp_path, monkeypatch):
    runs = sweep(stage, "begin(); value(lr)")
    assert runs.wait(LIMIT)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(folders.STATE, str(tmp_path / "another machine"))
        find.forget()
        forged = api.attach(runs[1].info.address).retry()
        assert forged.wait(LIMIT)
        assert forged.info.group == "sweep"
        assert [job.name for job in api.group("sweep")]  # none of them is this machine's
    find.forget()

    with pytest.warns(UserWarning, match=rf"^{forged.name}: not submitted from here"):
        group = api.group("sweep")
    assert [job.name for job in group] == [job.name for job in runs]
    assert forged.name in [job.name for job in api.group("sweep", trust=True)]


@pytest.mark.parametrize("kind", ["indexedjob", "pytorchjob", "trainjob", "volcano"])
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
    states = api.group("sweep").states()  # as a later reader sees it
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


def test_a_run_that_a_cluster_did_not_start_is_started_once_it_does(stage, monkeypatch):
    def refused_twice(name):
        tries.append(name)
        if len(tries) < 3:
            raise UnreachableError("the API server can't be reached")
        begin(name)

    backend = cluster_backend()
    tries: list[str] = []
    begin = backend.begin
    monkeypatch.setattr(backend, "begin", refused_twice)  # a real outage would refuse other requests, too
    runs = sweep(stage, "begin(); value(lr)", at_once=1)

    with pytest.warns(UserWarning, match=r"sweep-r2 could not be started yet: the API server") as warned:
        assert runs.results(LIMIT) == [1, 2, 3]
    assert len(warned) == 1
    assert tries[0] == tries[1] == tries[2]


def held(secret):
    return sum(map(len, secret["data"].values()))


@pytest.mark.parametrize("kind", ["indexedjob", "pytorchjob", "trainjob", "volcano"])
def test_what_runs_share_is_sent_once_and_goes_with_the_last_of_them(stage, kind, monkeypatch):
    monkeypatch.setattr(package, "SECRET_BYTES", 40_000)  # so that the payload is split into parts, too
    runs = sweep(stage, "begin(); value(lr)", kind)
    assert runs.results(LIMIT) == [1, 2, 3]

    big = [secret for secret in stage.objects("api/v1/{}/secrets") if held(secret) > 10_000]
    assert [obj["metadata"]["labels"][labelling.GROUP] for obj in big] == ["sweep"] * len(big)
    assert 1 < len(big) < 4  # no more for three runs than for one

    runs[0].delete()
    runs[2].delete()
    again = runs[1].retry()
    assert again.result(LIMIT) == 2
    runs[1].delete()
    again.delete()
    until(lambda: not stage.left())


def test_what_runs_share_is_left_over_only_without_them(stage, monkeypatch):
    runs = sweep(stage, "begin(); value(lr)")
    assert runs.results(LIMIT) == [1, 2, 3]
    secrets_ = f"api/v1/namespaces/{stage.namespace}/secrets"
    (shared,) = (s["metadata"]["name"] for s in stage.objects("api/v1/{}/secrets") if held(s) > 10_000)
    # As if the kernel had been killed long ago, before the first run owned the Secret.
    stage.cluster.request("PATCH", f"/{secrets_}/{shared}", {"metadata": {"ownerReferences": None}})
    monkeypatch.setattr(submitter, "HALF_MADE_S", 0.0)

    def left_over():
        return [left.name for _, left in api.leftovers() if left.state is None]

    assert left_over() == []
    for run in runs:
        run.delete()
    until(lambda: stage.left() == [shared])
    assert left_over() == [shared]


def test_a_secret_of_others_that_has_the_name_of_what_runs_share_stays(stage, monkeypatch):
    path, real = f"/api/v1/namespaces/{stage.namespace}/secrets", package.shared

    def named(name, labels, payload):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        stage.cluster.request("POST", path, body)
        return real(name, labels, payload)

    monkeypatch.setattr(package, "shared", named)
    with pytest.raises(AlreadyExistsError):
        sweep(stage, "begin(); value(lr)")

    (left,) = stage.left()
    assert left.startswith("sweep-payload-")


def test_where_one_run_is_refused_none_is_left(stage):
    stage.cluster.quota(stage.namespace, **{"count/jobs.batch": "2"})
    with pytest.raises(SubmitError, match="exceeded quota"):
        sweep(stage, "begin(); wait('never')")
    until(lambda: not stage.left())


def test_a_volcano_jobs_queue_decides_how_many_run(stage):
    with pytest.raises(SpecError, match="at_once can't be given on a Job, which can't be created suspended"):
        sweep(stage, "begin(); value(lr)", "volcano", at_once=1)
    assert not stage.left()
