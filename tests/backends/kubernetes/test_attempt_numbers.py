"""Attempts that an operator starts: as many as the budget allows, whichever nodes fail, and numbered."""

import pytest

from nbtorchjob.runtime.facts import exits
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import OPERATOR, Budget, Phase
from tests.backends.kubernetes.mortal import elsewhere
from tests.backends.kubernetes.stage import until, working
from tests.patience import LIMIT

OPERATORS = {"indexedjob": Retry(retries=2, backoff=0), "volcano": Retry(2, preemptions=0, backoff=0)}
FAIL = "fail(recoverable=True)"
# How two nodes end an attempt; a failed node's peer ends with the same code, and reports nothing.
PEER = f"time.sleep(0.1); os._exit({exits.RECOVERABLE_ERROR})"
ENDS = {
    "both at once": FAIL,
    "node 1 first": f"{FAIL} if NODE else None; {PEER}",
    "in turns": f"{FAIL} if NODE == ATTEMPT % 2 else None; {PEER}",
}


@pytest.mark.parametrize("kind", list(OPERATORS))
@pytest.mark.parametrize("ends", ENDS)
def test_nodes_that_fail_in_any_order_are_one_attempt_and_know_its_number(stage, kind, ends):
    part = f"begin(2)\nif ATTEMPT < 3: wait('followed'); {ENDS[ends]}\nvalue(ATTEMPT)"
    job = working(stage.submit(part, kind=kind, launch=Elastic(2), retry=OPERATORS[kind]))
    stage.sign("followed")

    assert job.result(LIMIT) == 3
    assert job.info.retry_owner == OPERATOR
    assert [attempt.budget for attempt in job.state.attempts] == [Budget.FAILURES, Budget.FAILURES, None]


@pytest.mark.parametrize("ends", ENDS)
def test_an_indexed_job_has_failed_after_as_many_attempts_as_there_are_with_nobody_there(stage, ends):
    # A pod that ends before it begins counts no life.
    both = "wait('followed'); begin(2); wait(f'life-{1 - NODE}-{LIFE}')"
    job = stage.submit(f"{both}\n{ENDS[ends]}", launch=Elastic(2), retry=Retry(retries=1, backoff=0))
    stage.follow(job).wait(LIMIT)

    assert (job.state.phase, len(job.state.attempts)) == (Phase.FAILED, 2)
    assert job.state.failure.error.message == "boom"
    assert (job.state.budgets[0].used, job.state.budgets[0].limit) == (1, 1)
    assert len(list(stage.signs.glob("life-*"))) == 4


RESUMED = """
begin(2)
if LIFE == 0: wait('followed'); fail(recoverable=True)
if LIFE == 1: wait('never')
value(ATTEMPT)
"""


# As docs/failures.md states: a Job's controller counts anew; Volcano treats the resume as a restart,
# and has deleted the pods of the attempts before (recorded: vcjob-abort-resume).
@pytest.mark.parametrize(("kind", "number", "count"), [("indexedjob", 1, 2), ("volcano", 3, 1)])
def test_the_card_counts_on_over_a_resume_though_its_operator_counts_otherwise(
    stage, monkeypatch, tmp_path, kind, number, count
):
    job = working(stage.submit(RESUMED, kind=kind, launch=Elastic(2), retry=OPERATORS[kind]))
    until(lambda: len(list(stage.signs.glob("life-*-0"))) == 2)  # else a node may end without a life
    stage.sign("followed")
    until(lambda: len(job.state.attempts) == 2 and len(list(stage.signs.glob("life-*-1"))) == 2)
    job.suspend()
    until(lambda: job.state.suspended)
    job.resume()

    assert job.result(LIMIT) == number
    assert [attempt.budget for attempt in job.state.attempts] == [Budget.FAILURES, None]
    assert job.state.budgets[0].used == 1
    later = elsewhere(stage, job, monkeypatch, tmp_path)
    assert later.wait(LIMIT)
    assert len(later.state.attempts) == count


def test_ranks_know_the_number_of_an_attempt_that_a_runtimes_jobset_starts(stage):
    path = "/apis/trainer.kubeflow.org/v1alpha1"
    stock = stage.cluster.request("GET", f"{path}/clustertrainingruntimes/torch-distributed")
    stock["metadata"] = {"name": "again"}
    jobset = stock["spec"]["template"]["spec"]
    jobset["failurePolicy"] = {"maxRestarts": 2}
    for replicated in jobset["replicatedJobs"]:
        replicated["template"]["spec"] |= {"backoffLimit": 0}
        replicated["template"]["spec"]["template"]["spec"] |= {"restartPolicy": "Never"}
    own = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime"}
    stage.cluster.request("POST", f"{path}/namespaces/{stage.namespace}/trainingruntimes", stock | own)

    job = stage.submit(f"begin()\nif ATTEMPT < 3: {FAIL}\nvalue(ATTEMPT)", kind="trainjob", runtime="again")
    assert job.result(LIMIT) == 3
