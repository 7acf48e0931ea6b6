"""An elastic job that loses a node for good goes on, ends well, and its value comes home."""

import pytest

from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Budget, Phase
from nbtorchjob.state.blame import STOPPED
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.stage import until, working
from tests.patience import LIMIT

DIES = "os.kill(os.getpid(), signal.SIGKILL); wait('never')"
# A spare node, or the lost node's replacement, runs on: node 0 ends the job.
LOSES = f"begin(2)\nif NODE == 1 and LIFE == 0: wait('go'); {DIES}\nif NODE: sign('another'); wait('never')\n"
ELASTIC = Elastic("1:2", max_restarts=3)


def lives(stage, node):
    return len(list(stage.signs.glob(f"life-{node}-*")))


# Volcano makes no other pod; an Indexed Job makes one with a new index.
@pytest.mark.parametrize(("kind", "ends", "spares"), [("indexedjob", "another", 1), ("volcano", "go", 0)])
def test_a_node_that_is_killed_takes_no_value_along(stage, kind, ends, spares):
    job = stage.submit(f"{LOSES}wait('{ends}'); value(7)", kind=kind, launch=ELASTIC)
    until(lambda: lives(stage, 0) and lives(stage, 1))
    stage.sign("go")

    assert job.result(LIMIT) == 7
    assert job.state.phase is Phase.SUCCEEDED
    assert (lives(stage, 1), lives(stage, 2)) == (1, spares)


def test_an_indexed_job_that_loses_node_0_for_good_ends_with_nobody_there(stage):
    part = (
        f"begin(2)\nif NODE == 0: {DIES}\nwait('never') if NODE > 1 else os._exit(exits.INFRASTRUCTURE_ERROR)"
    )
    job = stage.submit(part, launch=ELASTIC)
    job.wait(LIMIT)

    assert (job.state.phase, job.state.failure.node) == (Phase.FAILED, 0)
    assert job.state.failure.reason.cause is Cause.UNKNOWN
    assert len(job.state.attempts) == 1


def test_a_node_that_is_replaced_is_an_attempt_that_its_next_pod_is_told_of(stage):
    part = LOSES.replace("LIFE == 0", "ATTEMPT == 1") + "wait('another'); value(7)"
    job = stage.submit(part, launch=ELASTIC, retry=Retry(retries=1, backoff=0))
    working(job)
    until(lambda: lives(stage, 0) and lives(stage, 1))
    stage.sign("go")

    assert job.result(LIMIT) == 7
    assert [attempt.budget for attempt in job.state.attempts] == [Budget.FAILURES, None]


TURNS = f"""
begin(3)
if NODE == 1 and LIFE == 0: wait('go'); {DIES}
wait('life-1-1')
tell("WorkersStarted", node=NODE, restart=0, round=1, ranks=[NODE], world_size=3)
if NODE == 2 and LIFE == 0: wait('again'); {DIES}
wait('never')
"""


def test_nodes_that_fail_in_turns_are_stopped_by_who_counts_though_each_has_its_own_budget(stage):
    job = stage.submit(TURNS, launch=Elastic("1:3"), retry=Retry(retries=1, backoff=0))
    working(job)
    until(lambda: lives(stage, 1) and lives(stage, 2))
    stage.sign("go")
    until(lambda: job.state.nodes[2].round == 1 and len(job.state.attempts) == 2)
    stage.sign("again")
    assert job.wait(LIMIT)

    assert (job.state.phase, job.state.verdict.reason) == (Phase.FAILED, STOPPED)
    (limit,) = {obj["spec"]["backoffLimitPerIndex"] for obj in stage.objects("apis/batch/v1/{}/jobs")}
    assert limit == 1


def test_a_loss_after_a_good_end_is_none(stage):
    job = stage.submit("begin(2)\nif NODE == 0: wait('go')\nvalue(NODE)", launch=Elastic(2))
    (done,) = until(lambda: [pod for pod in stage.pods() if pod["status"].get("phase") == "Succeeded"])
    stage.delete("api/v1/{}/pods", done["metadata"]["name"])
    stage.sign("go")

    assert job.result(LIMIT) == 0
    assert (job.state.phase, len(job.state.attempts)) == (Phase.SUCCEEDED, 1)
