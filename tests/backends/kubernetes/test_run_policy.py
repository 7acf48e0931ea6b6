"""Run policies on each kind: those that the cluster enforces, and those that a job's follower enforces."""

import logging
import subprocess
import sys
import threading
from contextlib import suppress
from time import time as now
from urllib.error import HTTPError

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.api.connection import ServerClock
from nbtorchjob.backends.kubernetes.control import controller
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.errors import ClusterError
from nbtorchjob.job import Job
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import Phase
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.mortal import Kernel, elsewhere
from tests.backends.kubernetes.stage import collection, running, until
from tests.patience import LIMIT

BY_US = ["pytorchjob", "volcano"]  # their operators enforce no deadline
RETRY = Retry(retries=2, preemptions=2, backoff=0)
SLOW = Retry(retries=2, preemptions=2, backoff=600)
AGAIN = "begin()\nlog(f'{ATTEMPT}\\n')\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
DONE = "begin()\nlog(f'{ATTEMPT}\\n')\nvalue(ATTEMPT)"
HANGS = "begin()\nwait('never')"
FOLLOWED = "wait('followed')\n"


@pytest.fixture
def attach(stage, monkeypatch, tmp_path):
    """Return a function that attaches to a job as on another machine."""
    return lambda job: elsewhere(stage, job, monkeypatch, tmp_path)


def policy(**asked):
    """Return a launch with this run policy."""
    return Elastic(run_policy=RunPolicy(**asked))


def ttl(seconds):
    """Return a launch of a job that is kept for that many seconds once it has ended."""
    return policy(ttl_seconds_after_finished=seconds)


def deadline(seconds):
    """Return a launch of a job that may run for that many seconds."""
    return policy(active_deadline_seconds=seconds)


# An operator removes the job if it can, as its manifest asks; otherwise, or with several attempts, we do.
@pytest.mark.parametrize(
    ("kind", "retry"),
    [("volcano", None), ("indexedjob", None), ("trainjob", None), ("pytorchjob", RETRY)],
    ids=["volcano-once", "indexedjob-once", "trainjob-once", "pytorchjob-retried"],
)
def test_a_job_whose_time_has_come_is_removed_and_its_value_and_log_stay_here(stage, kind, retry):
    part = FOLLOWED + (AGAIN if retry else DONE)
    job = stage.submit(part, kind=kind, retry=retry, launch=ttl(0 if retry or kind == "trainjob" else 1))
    assert stage.follow(job).wait(LIMIT)
    until(lambda: not stage.left())

    later = api.attach(job.name)
    for run in (job, later):
        assert run.result(LIMIT) == (2 if retry else 1)
        assert set(run.logs(0).split()) == ({"1", "2"} if retry else {"1"})
    assert api.jobs() == []


@pytest.mark.parametrize("kind", ["volcano", "trainjob"])
def test_a_cancelled_job_whose_time_has_come_is_removed(stage, kind):
    job = running(stage.submit("begin()\nlog('told')\nwait('never')", kind=kind, launch=ttl(0)))
    until(lambda: job.logs(0) == "told")
    job.cancel()
    assert job.wait(LIMIT)

    until(lambda: not stage.left())
    later = api.attach(job.name)
    assert later.wait(LIMIT)
    assert (later.state.phase, later.logs(0)) == (Phase.CANCELLED, "told")


# Nor does an operator see the end of a job that we ended by a suspension, or by Volcano's AbortJob.
@pytest.mark.parametrize("kind", ["pytorchjob", "volcano", "indexedjob"])
def test_a_job_that_never_started_is_removed_when_its_time_has_come(stage, kind):
    stage.cluster.hold("^never-")
    launch = policy(start_within="1s", ttl_seconds_after_finished=0)
    job = stage.submit(HANGS, name="never", kind=kind, launch=launch)
    assert job.wait(LIMIT)

    until(lambda: not stage.left())
    assert job.state.phase is Phase.FAILED


@pytest.mark.parametrize(("kind", "again"), [("indexedjob", 0), ("volcano", 0), ("volcano", 1)])
def test_a_job_that_its_cluster_removes_just_then_is_removed_once(stage, caplog, kind, again):
    """A deadline looks the same whoever ended the job, and the cluster also removes jobs that it ended."""
    api_, removed = KINDS[kind].api, threading.Event()
    newer: list[Job[object]] = []

    def remove():
        with suppress(HTTPError):  # the cluster was even faster
            stage.delete(collection(api_), "same")
        newer.extend(stage.submit(HANGS, name="same", kind=kind) for _ in range(again))
        removed.set()

    if kind == "volcano":
        stage.cluster.hold("^same-")  # a running pod would end by its own deadline
    stage.cluster.meanwhile("DELETE", f"{stage.namespace}/{api_.plural}/same$", remove)
    launch = policy(active_deadline_seconds=1, ttl_seconds_after_finished=1)
    job = stage.submit(HANGS, name="same", kind=kind, launch=launch)
    assert job.wait(LIMIT)
    assert kind == "indexedjob" or removed.wait(LIMIT)
    until(lambda: [state.info.run for state in api.jobs()] == [run.info.run for run in newer])

    assert job.state.failure.reason.cause is Cause.DEADLINE
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


LIST = "from nbtorchjob import api; print(len(api.jobs()))"


def test_a_list_removes_what_ended_while_nobody_followed(stage, attach):
    job = stage.submit(DONE, kind="trainjob", launch=ttl(0))
    until(lambda: any(pod["status"].get("phase") == "Succeeded" for pod in stage.pods()))
    until(lambda: stage.left() == [] or list_elsewhere() == "0")

    until(lambda: not stage.left())
    assert job.result(LIMIT) == 1


def list_elsewhere():
    """List the jobs in a new kernel of this machine."""
    done = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_job_that_is_kept_longer_stays(stage):
    job = stage.submit(DONE, kind="trainjob", launch=ttl(600))
    job.wait(LIMIT)

    assert [state.info.name for state in api.jobs()] == [job.name]
    assert job.name in stage.left()


@pytest.mark.parametrize("look", ["list", "follow"])
def test_somebody_elses_job_is_left_alone_by_who_looks(stage, attach, monkeypatch, look):
    ended = stage.submit(DONE, kind="trainjob", launch=ttl(0))
    job = stage.submit(AGAIN, retry=RETRY)
    monkeypatch.setenv("JUPYTERHUB_USER", "eve")
    assert api.jobs() == []
    if look == "follow":
        assert attach(ended).result(LIMIT) == 1
        later = attach(job)
        until(lambda: later.state.next)
    until(lambda: sum(state.next is not None or state.ended is not None for state in everyones()) == 2)

    assert {ended.name, job.name} < set(stage.left())
    assert f"{job.name}-a2" not in stage.left()


def everyones():
    """List the jobs of all users."""
    return api.jobs(everyone=True)


def test_a_value_that_is_damaged_keeps_no_job(stage):
    job = stage.submit(
        "begin()\nvalue(1, spoil=lambda data: data[:-1] + bytes([data[-1] ^ 1]))",
        kind="trainjob",
        launch=ttl(0),
    )
    job.wait(LIMIT)

    until(lambda: not stage.left())


def test_a_job_that_may_not_be_removed_is_listed(stage, monkeypatch):
    job = stage.submit(DONE, kind="trainjob", launch=ttl(0))
    stage.become(("delete", "trainjobs"))
    assert api.attach(job.name).result(LIMIT) == 1

    assert [state.info.name for state in api.jobs()] == [job.name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_takes_too_long_is_ended(stage, attach, kind):
    job = stage.submit(HANGS, kind=kind, launch=deadline(1))
    assert job.wait(LIMIT)

    for handle in (job, attach(job)):
        assert handle.wait(LIMIT)
        assert handle.state.phase is Phase.FAILED
        assert handle.state.failure.reason.cause is Cause.DEADLINE
    if kind in BY_US:
        until(lambda: all(pod["status"].get("phase") != "Running" for pod in stage.pods()))


@pytest.mark.parametrize("kind", ["volcano", "indexedjob"])
def test_a_deadline_draws_on_no_budget_and_nothing_follows_it(stage, attach, kind):
    job = stage.submit(HANGS, kind=kind, retry=RETRY, launch=deadline(1))
    assert job.wait(LIMIT)

    for handle in (job, attach(job)):
        assert handle.wait(LIMIT)
        (only,) = handle.state.attempts
        assert (only.failure.reason.cause, only.budget, handle.state.next) == (Cause.DEADLINE, None, None)
        assert [spent.used for spent in handle.state.budgets] == [0, 0]


def test_a_deadline_that_passed_while_nobody_followed_ends_the_job(stage, attach):
    job = stage.submit(HANGS, kind="volcano", launch=deadline(1))
    until(lambda: now() > job.info.created + 1)
    later = attach(job)
    assert later.wait(LIMIT)
    assert later.state.failure.reason.cause is Cause.DEADLINE


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_deadline_counts_by_the_clusters_clock(stage, monkeypatch, ahead):
    monkeypatch.setattr(ServerClock, "now", lambda _: now() + ahead)
    job = running(stage.submit(HANGS, kind="pytorchjob", launch=deadline(1800)))

    assert job.state.deadline_at == pytest.approx(job.info.created + ahead + 1800, abs=1)
    assert not job.done()
    job.cancel()
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


def test_a_deadline_ends_a_job_that_never_found_a_place(stage):
    stage.cluster.hold("^never-")
    job = stage.submit(HANGS, name="never", kind="pytorchjob", launch=deadline(1))
    assert job.wait(LIMIT)

    assert job.state.failure.reason.cause is Cause.DEADLINE
    until(lambda: not stage.pods())


def test_a_suspended_jobs_clock_stands_and_begins_anew(stage):
    seconds = 4
    job = stage.submit(HANGS, kind="volcano", launch=deadline(seconds))
    job.suspend()
    until(lambda: job.state.suspended)
    until(lambda: now() > job.info.created + seconds + 0.5)
    assert not job.done()
    resumed = now()
    job.resume()
    until(lambda: not job.state.suspended)

    # An object's timestamps are whole seconds.
    assert job.state.deadline_at >= int(resumed) + seconds


def test_a_deadline_that_comes_between_two_attempts_ends_the_job(stage, monkeypatch):
    job = stage.submit(AGAIN, retry=RETRY, launch=deadline(3))
    stage.cluster.quota(stage.namespace, **{"count/jobs.batch": "1"})
    # Ten seconds otherwise, which no user can set.
    monkeypatch.setattr(controller, "AGAIN_S", 0.2)
    assert job.wait(LIMIT)

    assert job.state.failure.reason.cause is Cause.DEADLINE
    assert (len(job.state.attempts), job.state.next) == (1, None)


def test_a_kernel_killed_between_a_volcano_jobs_mark_and_its_command_is_succeeded_by_another(stage, attach):
    # The kubelet would end the pods of a running job.
    stage.cluster.hold("^late-")
    job = stage.submit(HANGS, name="late", kind="volcano", launch=deadline(1))
    with Kernel(stage, job, ("after", "patch", "jobs")) as kernel:
        kernel.dies()
    later = attach(job)

    assert later.wait(LIMIT)
    assert later.state.failure.reason.cause is Cause.DEADLINE
    until(lambda: not stage.pods())


@pytest.mark.parametrize("how", ["follow", "cancel"])
def test_a_volcano_job_whose_cancellation_was_cut_short_is_cancelled_by_another(stage, how):
    job = stage.submit(HANGS, kind="volcano")
    # A follower would see that the job is cancelled, and send the command first.
    until(lambda: [pod for pod in stage.pods() if pod["status"].get("phase") == "Running"])
    stage.cluster.trouble(403, f"{stage.namespace}/commands$", method="POST")
    with pytest.raises(ClusterError):
        job.cancel()
    later = api.attach(job.name)
    if how == "cancel":
        later.cancel()
        until(lambda: not [pod for pod in stage.pods() if pod["status"].get("phase") == "Running"])

    assert later.wait(LIMIT)
    assert later.state.phase is Phase.CANCELLED
    until(lambda: not [pod for pod in stage.pods() if pod["status"].get("phase") == "Running"])


# PyTorchJob's operator removes them, otherwise we do.
@pytest.mark.parametrize(
    ("kind", "retry"),
    [("pytorchjob", None), ("volcano", None), ("indexedjob", RETRY)],
    ids=["pytorchjob-once", "volcano-once", "indexedjob-retried"],
)
def test_the_pods_of_an_ended_job_are_removed_where_that_is_asked_for(stage, kind, retry):
    launch = policy(clean_pod_policy="All")
    job = stage.submit(FOLLOWED + (AGAIN if retry else DONE), kind=kind, retry=retry, launch=launch)

    assert stage.follow(job).result(LIMIT) == (2 if retry else 1)
    until(lambda: not stage.pods())
    assert job.name in stage.left()
    assert set(job.logs(0).split()) == ({"1", "2"} if retry else {"1"})
