"""A job that can't start ends once it was held back for as long as allowed, and names the reason."""

import pytest

from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import Phase
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.mortal import elsewhere
from tests.backends.kubernetes.stage import running, until, waits
from tests.patience import LIMIT

ABSENT = "registry.invalid/absent:1"
PULL = f"its image {ABSENT} can't be pulled"
PLACE = "no host has enough nvidia.com/gpu free"
QUOTA = "the quota team is used up"


def within(seconds, nnodes=1):
    return Elastic(nnodes, run_policy=RunPolicy(start_within=seconds))


def arranged(stage, what, kind):
    """Make something hold back the next job; return that job's options."""
    if what == PULL:
        stage.cluster.fail_pulls(ABSENT)
        return {"image": ABSENT}
    if what == QUOTA:
        stage.cluster.quota(stage.namespace, pods="0")
        return {}
    stage.cluster.hold(f"^{kind}-held-")
    return {"name": f"{kind}-held"}


@pytest.mark.parametrize(
    ("kind", "what", "retry"),
    [
        ("pytorchjob", PULL, None),
        ("trainjob", PLACE, Retry(retries=1)),
        ("volcano", PLACE, None),
        ("volcano", PULL, Retry(retries=1, preemptions=0)),
        ("indexedjob", QUOTA, None),
        ("indexedjob", PULL, Retry(retries=1)),
    ],
)
def test_what_cant_start_is_ended_and_told_why(stage, monkeypatch, tmp_path, kind, what, retry):
    options = arranged(stage, what, kind)
    job = stage.submit(kind=kind, retry=retry, launch=within("1s", 2), **options)
    assert job.wait(LIMIT)

    for handle in (job, elsewhere(stage, job, monkeypatch, tmp_path)):
        assert handle.wait(LIMIT)
        failure = handle.state.failure
        assert (handle.state.phase, failure.reason.cause) == (Phase.FAILED, Cause.DEADLINE)
        assert failure.reason.line.startswith("was held back for 1 s, and ended: ")
        assert what in failure.reason.line
        assert [spent.used for spent in handle.state.budgets] == ([0, 0] if retry else [])
    until(lambda: not stage.pods())


def test_what_begins_in_time_goes_on_and_what_only_queues_may(stage):
    stage.cluster.hold("^late-")
    job = stage.submit("begin(); wait('go'); value(1)", name="late", launch=within("1h"))
    until(lambda: PLACE in waits(job))
    stage.cluster.release("^late-")

    running(job)
    stage.sign("go")
    assert job.result(LIMIT) == 1


HALF = {"pytorchjob": "-worker-0$", "trainjob": "-node-0-1-", "volcano": "-1$", "indexedjob": "-1-"}


@pytest.mark.parametrize("kind", list(HALF))
def test_a_node_that_has_its_host_gives_it_back_where_the_other_gets_none(stage, kind):
    stage.cluster.hold(f"^half-{kind}.*{HALF[kind]}")
    job = stage.submit("wait('never')", name=f"half-{kind}", kind=kind, launch=within("1s", 2))

    assert job.wait(LIMIT)
    assert job.state.failure.reason.line == f"was held back for 1 s, and ended: {PLACE}"
    until(lambda: not stage.pods())
    pods = [
        change.object for change in stage.cluster.history(stage.namespace) if change.resource.plural == "pods"
    ]
    assert len({pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}) == 1
