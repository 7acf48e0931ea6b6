"""Attempts and budgets on each kind: who starts the next one, and what is left when a kernel dies."""

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes import attempts, objects
from nbtorchjob.config import Elastic, RunPolicy
from nbtorchjob.failure import Cause
from nbtorchjob.policies import Retry
from nbtorchjob.state import OPERATOR, US, Budget, Phase
from tests.kubernetes.stage import COLLECTIONS, until
from tests.patience import LIMIT

KINDS = ["pytorchjob", "trainjob", "volcano", "indexedjob"]
AGAIN = "begin()\nif ATTEMPT <= {fails}: fail(recoverable=True)\nvalue(ATTEMPT)"
# With these budgets an operator keeps them where it can, and with those nobody but us does.
OPERATORS = {"indexedjob": Retry(retries=2, backoff=0), "volcano": Retry(2, preemptions=0, backoff=0)}
OURS = Retry(retries=2, preemptions=2, backoff=0)


def budgets(job):
    return [(spent.used, spent.limit) for spent in job.state.budgets]


def causes(job):
    return [(attempt.number, attempt.budget) for attempt in job.state.attempts]


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_be_tried_again_is_tried_again_and_counted(stage, kind):
    job = stage.submit(AGAIN.format(fails=2), kind=kind, retry=OURS)

    assert job.result(LIMIT) == 3
    assert job.info.keeper == US
    assert causes(job) == [(1, Budget.FAILURES), (2, Budget.FAILURES), (3, None)]
    assert budgets(job) == [(2, 2), (0, 2)]
    assert job.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("kind", list(OPERATORS))
def test_an_operator_that_can_keep_the_budgets_does_so_with_nobody_there(stage, kind):
    part = "begin()\nif LIFE < 2: fail(recoverable=True)\nvalue(LIFE)"
    job = stage.submit(part, kind=kind, retry=OPERATORS[kind])
    until(lambda: len(list(stage.signs.glob("life-0-*"))) == 3)

    assert job.result(LIMIT) == 2
    assert job.info.keeper == OPERATOR
    # Volcano deletes the pods that it starts again, so who comes later sees the last ones only.
    seen = {"indexedjob": (2, 2), "volcano": (0, 2)}
    assert budgets(job)[0] == seen[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_is_used_up_ends_the_job_with_its_last_failure(stage, kind):
    retry = OPERATORS.get(kind, OURS)
    job = stage.submit("begin()\nfail(recoverable=True)", kind=kind, retry=retry)
    job.wait(LIMIT)

    assert job.state.phase is Phase.FAILED
    assert job.state.failure.error.message == "boom"
    assert len(job.state.attempts) == 3
    assert budgets(job)[0] == (2, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_that_nobody_called_recoverable_ends_the_job_at_once(stage, kind):
    job = stage.submit("begin()\nfail()", kind=kind, retry=OURS)
    job.wait(LIMIT)

    assert (job.state.phase, len(job.state.attempts)) == (Phase.FAILED, 1)
    assert job.state.failure.reason.cause is Cause.USER


@pytest.mark.parametrize("kind", KINDS)
def test_a_preemption_draws_on_a_budget_of_its_own(stage, kind):
    part = "begin()\n(SIGNS / f'attempt-{ATTEMPT}').touch()\nif ATTEMPT < 3: wait('never')\nvalue(ATTEMPT)"
    job = stage.submit(part, kind=kind, retry=Retry(retries=0, preemptions=2, backoff=0))
    for number in (1, 2):
        until(lambda number=number: (stage.signs / f"attempt-{number}").exists())
        until(lambda number=number: job.state.working and len(job.state.attempts) == number)
        name = until(lambda: [p for p in stage.pods() if p["status"].get("phase") == "Running"])
        stage.cluster.evict(stage.namespace, name[0]["metadata"]["name"])

    assert job.result(LIMIT) == 3
    assert [budget for _, budget in causes(job)] == [Budget.PREEMPTIONS, Budget.PREEMPTIONS, None]
    assert budgets(job) == [(0, 0), (2, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_that_comes_later_carries_on(stage, kind, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(attempts, "begin", _killed)
        job = stage.submit(AGAIN.format(fails=1), kind=kind, retry=OURS)
        until(lambda: job.state.next)
        with pytest.raises(AssertionError):
            job.wait(LIMIT)
    later = api.attach(job.name)

    assert later.result(LIMIT) == 2
    assert len(later.state.attempts) == 2


async def _killed(*args):
    raise AssertionError("the kernel was killed")


def test_of_two_kernels_that_start_an_attempt_one_does(stage):
    job = stage.submit(AGAIN.format(fails=1), kind="indexedjob", retry=OURS)
    other = api.attach(job.name)

    assert (job.result(LIMIT), other.result(LIMIT)) == (2, 2)
    jobs = stage.objects(next(path for path in COLLECTIONS if path.startswith("apis/batch/v1/")))
    assert sorted(item["metadata"]["name"] for item in jobs) == [job.name, f"{job.name}-a2"]
    assert [objects.attempt(item) for item in jobs] == [1, 2]


def test_a_job_is_deleted_with_all_its_attempts(stage):
    job = stage.submit(AGAIN.format(fails=1), retry=OURS)
    job.wait(LIMIT)
    job.delete()

    until(lambda: not stage.left())


def test_the_same_cell_meets_its_job_between_two_attempts(stage):
    slow = Retry(retries=1, preemptions=1, backoff=600)
    job = stage.submit(AGAIN.format(fails=1), retry=slow)
    until(lambda: job.state.next)

    assert stage.submit(AGAIN.format(fails=1), retry=slow).name == job.name
    job.cancel()
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


def test_a_deadline_ends_a_job_between_two_attempts(stage):
    launch = Elastic(run_policy=RunPolicy(active_deadline_seconds=300))
    slow = Retry(retries=1, preemptions=1, backoff=600)
    job = stage.submit(AGAIN.format(fails=1), launch=launch, retry=slow)
    job.wait(LIMIT)

    assert (job.state.phase, job.state.next) == (Phase.FAILED, None)


def test_an_elastic_pytorchjob_that_its_operator_would_go_on_with_is_stopped_at_its_budgets(stage):
    launch = Elastic(nnodes="1:2")
    retry = Retry(retries=1, preemptions=0, backoff=0)
    part = "begin(2)\nif NODE: wait('never')\nfail(recoverable=True)"
    job = stage.submit(part, kind="pytorchjob", launch=launch, retry=retry)
    job.wait(LIMIT)

    assert job.info.keeper == OPERATOR
    # It counts none of the pods that it replaces, and was faster.
    assert (job.state.phase, budgets(job)[0]) == (Phase.FAILED, (2, 1))
