"""The owner of a job's retries, and its end once they are used up. For each cause see ``test_causes``."""

import pytest

from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import OPERATOR, US, Phase
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
SLOW = Retry(retries=1, preemptions=1, backoff=600)
# With these budgets an operator owns the retries if it can.
OPERATORS = {"indexedjob": Retry(retries=2, backoff=0), "volcano": Retry(2, preemptions=0, backoff=0)}


def budgets(job):
    return [(spent.used, spent.limit) for spent in job.state.budgets]


@pytest.mark.parametrize("kind", list(OPERATORS))
def test_an_operator_that_can_keep_the_budgets_does_so_with_nobody_there(stage, kind):
    part = "begin()\nif LIFE < 2: fail(recoverable=True)\nvalue(LIFE)"
    job = stage.submit(part, kind=kind, retry=OPERATORS[kind])
    until(lambda: len(list(stage.signs.glob("life-0-*"))) == 3)

    assert job.result(LIMIT) == 2
    assert job.info.retry_owner == OPERATOR
    # Volcano deletes the pods that it starts again, so a later reader sees only the last ones.
    counts = {"indexedjob": (2, 2), "volcano": (0, 2)}
    assert budgets(job)[0] == counts[kind]


def test_the_same_cell_meets_its_job_between_two_attempts(stage):
    job = stage.submit(AGAIN, retry=SLOW)
    until(lambda: job.state.next)

    assert stage.submit(AGAIN, retry=SLOW).name == job.name


def test_a_job_has_no_next_attempt_that_would_begin_after_its_deadline(stage):
    launch = Elastic(run_policy=RunPolicy(active_deadline_seconds=300))
    job = stage.submit(AGAIN, launch=launch, retry=SLOW)
    job.wait(LIMIT)

    assert (job.state.phase, job.state.next) == (Phase.FAILED, None)


def test_an_elastic_pytorchjob_with_budgets_is_tried_again_by_us_as_its_operator_counts_nothing(stage):
    launch = Elastic(nnodes="1:2")
    retry = Retry(retries=1, preemptions=0, backoff=0)
    part = "begin(2)\nif NODE: wait('never')\nfail(recoverable=True)"
    job = stage.submit(part, kind="pytorchjob", launch=launch, retry=retry)
    job.wait(LIMIT)

    assert job.info.retry_owner == US
    assert (job.state.phase, budgets(job)[0], len(job.state.attempts)) == (Phase.FAILED, (1, 1), 2)
    assert job.state.failure.error.type == "ValueError"
