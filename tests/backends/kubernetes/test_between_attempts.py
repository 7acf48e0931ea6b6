"""Actions on a job, and troubles of a job, while it awaits or makes its next attempt."""

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.control import controller
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.errors import SpecError
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Phase
from tests.backends.kubernetes.mortal import Kernel, elsewhere, made
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

JOBS, SERVICES = "apis/batch/v1/{}/jobs", "api/v1/{}/services"
AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
STAYS = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nwait('go'); value(ATTEMPT)"
SLOW = Retry(retries=2, preemptions=2, backoff=600)
QUICK = Retry(retries=2, preemptions=2, backoff=0)


@pytest.fixture
def attach(stage, monkeypatch, tmp_path):
    """Return a function that attaches to a job from another machine."""
    return lambda job: elsewhere(stage, job, monkeypatch, tmp_path)


@pytest.fixture
def impatient(monkeypatch):
    """Retry a refused attempt at once."""
    # The default is ten seconds, and no setting changes it.
    monkeypatch.setattr(controller, "AGAIN_S", 0.05)


def between(stage, **asked):
    """Return a job that waits for its second attempt."""
    job = stage.submit(AGAIN, retry=SLOW, **asked)
    until(lambda: job.wait(0) or job.state.next)
    return job


def told(job):
    """Return a list that collects the texts of the job's waits."""
    texts: list[str] = []
    job.subscribe(lambda state: texts.extend(wait.text for wait in state.waiting))
    return texts


# Cancelling a Volcano job takes a Command beside the mark.
@pytest.mark.parametrize("kind", ["volcano", "indexedjob"])
def test_a_job_that_is_cancelled_between_two_attempts_has_ended_for_everybody(stage, attach, kind):
    job = between(stage, kind=kind)
    job.cancel()

    for handle in (job, attach(job)):
        assert handle.wait(LIMIT)
        assert handle.state.phase is Phase.CANCELLED
    assert [state.phase for state in api.jobs()] == [Phase.CANCELLED]
    assert made(stage)[0] == [job.name]


def test_a_job_that_is_deleted_between_two_attempts_is_gone(stage):
    job = between(stage)
    job.delete()

    assert job.wait(LIMIT)
    until(lambda: not stage.left())


def test_between_two_attempts_there_is_nothing_to_suspend(stage):
    job = between(stage)

    with pytest.raises(SpecError, match=f"suspend: got '{job.name}'.*attempt 2"):
        job.suspend()
    with pytest.raises(SpecError, match=f"resume: got '{job.name}'.*attempt 2"):
        job.resume()


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_attempt_is_suspended_and_resumed(stage, kind):
    job = stage.submit(STAYS, kind=kind, retry=QUICK)
    until(lambda: job.state.phase is Phase.RUNNING and job.state.tries == 2)
    job.suspend()
    until(lambda: job.state.suspended)
    job.resume()
    stage.sign("go")

    assert job.result(LIMIT) == 2
    assert len(job.state.attempts) == 2


@pytest.mark.parametrize("kind", ["volcano", "indexedjob"])
def test_a_later_attempt_is_suspended_before_it_runs(stage, attach, kind):
    job = stage.submit(AGAIN, kind=kind, retry=QUICK)
    stage.cluster.hold(f"^{job.name}-a2")
    until(lambda: job.state.tries == 2 and any(wait.node == 0 for wait in job.state.waiting))
    job.suspend()
    until(lambda: job.state.suspended and all("-a2" not in pod["metadata"]["name"] for pod in stage.pods()))
    later = attach(job)
    until(lambda: later.state.suspended)
    assert not later.done()
    stage.cluster.release(f"^{job.name}-a2")
    later.resume()

    assert later.result(LIMIT) == job.result(LIMIT) == 2


def test_a_job_that_is_cancelled_while_an_attempt_is_made_ends(stage):
    job = stage.submit(STAYS, retry=QUICK)
    stage.cluster.meanwhile("POST", f"{stage.namespace}/jobs$", job.cancel)
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    assert all(labelling.cancelled(item) for item in stage.objects(JOBS))


@pytest.mark.parametrize("how", ["follow", "cancel"])
def test_an_attempt_that_a_killed_kernel_made_of_a_cancelled_job_is_ended(stage, attach, how):
    job = stage.submit(STAYS, retry=QUICK)
    stage.cluster.meanwhile("POST", f"{stage.namespace}/jobs$", job.cancel)
    with Kernel(stage, job, ("after", "create", "jobs")) as kernel:
        kernel.dies()
    later = attach(job)
    if how == "cancel":
        later.cancel()
        assert all(labelling.cancelled(item) for item in stage.objects(JOBS))

    assert later.wait(LIMIT)
    assert later.state.phase is Phase.CANCELLED
    assert made(stage)[0] == [job.name, f"{job.name}-a2"]


def test_a_job_that_is_deleted_while_an_attempt_is_made_leaves_nothing(stage):
    job = stage.submit(STAYS, retry=QUICK)
    stage.cluster.meanwhile("POST", f"{stage.namespace}/jobs$", lambda: stage.delete(JOBS, job.name))
    assert job.wait(LIMIT)
    until(lambda: not stage.left())


def test_trouble_that_passes_while_an_attempt_is_made_is_waited_out_without_a_word(stage, impatient):
    job = stage.submit(AGAIN, retry=QUICK)
    texts = told(job)
    stage.cluster.trouble(500, f"{stage.namespace}/jobs$", method="POST", times=2)

    assert job.result(LIMIT) == 2
    assert not any("can't be started" in text for text in texts)


def test_an_attempt_that_a_quota_refuses_waits_for_room(stage, impatient):
    job = stage.submit(AGAIN, retry=QUICK)
    stage.cluster.quota(stage.namespace, **{"count/jobs.batch": "1"})
    until(lambda: any("can't be started: quota exceeded" in wait.text for wait in job.state.waiting))
    assert (job.state.phase, job.state.next.number) == (Phase.PENDING, 2)
    stage.delete("api/v1/{}/resourcequotas", "team")

    assert job.result(LIMIT) == 2


def test_an_attempt_that_a_kernel_may_not_make_is_made_by_one_that_may(stage, impatient, monkeypatch):
    job = stage.submit(AGAIN, retry=QUICK)
    with monkeypatch.context() as patched:
        stage.become(("create", "jobs"))
        until(lambda: any("may not create jobs" in wait.text for wait in job.state.waiting))
        patched.setenv("KUBECONFIG", str(stage.cluster.kubeconfig))
        later = api.attach(job.name)
        assert later.result(LIMIT) == 2

    assert job.result(LIMIT) == 2


@pytest.mark.parametrize("kind", ["Job", "Service"])
def test_what_a_stranger_has_of_an_attempts_name_is_left_alone(stage, impatient, kind):
    job = stage.submit(AGAIN, retry=QUICK)
    pod = {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"}
    specs = {"Job": {"suspend": True, "template": {"spec": pod}}, "Service": {"ports": [{"port": 80}]}}
    path, version = {"Job": (JOBS, "batch/v1"), "Service": (SERVICES, "v1")}[kind]
    name = f"{job.name}-a2" if kind == "Job" else labelling.run_name(f"{job.name}-a2", job.info)
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": specs[kind]}
    stage.cluster.request("POST", f"/{path.format(f'namespaces/{stage.namespace}')}", body)
    until(lambda: any("isn't this job's, but has a name" in wait.text for wait in job.state.waiting))
    stage.delete(path, name)

    assert job.result(LIMIT) == 2


def test_a_job_whose_payload_was_deleted_ends_with_its_last_failure(stage, attach, impatient):
    part = "begin()\nif ATTEMPT == 1: wait('go'); fail(recoverable=True)\nvalue(ATTEMPT)"
    job = running(stage.submit(part, retry=QUICK))
    stage.delete("api/v1/{}/secrets", package.first_name(job.info))
    stage.sign("go")

    for handle in (job, attach(job)):
        assert handle.wait(LIMIT)
        assert (handle.state.phase, handle.state.failure.error.message) == (Phase.FAILED, "boom")
        assert "was deleted" in handle.state.notices[-1].text
    assert [state.phase for state in api.jobs()] == [Phase.FAILED]
