"""Delays and ends of a job from outside, and a peer that fails along with the culprit, on every kind."""

import json
import time
from typing import Any

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Budget, Phase, failure
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.stage import collection, running, until
from tests.patience import LIMIT

OURS = Retry(retries=1, preemptions=1, backoff=0)
HANG = "begin(); wait('never')"
BY_OPERATOR = {
    "volcano": Retry(1, preemptions=0, backoff=0),
    "indexedjob": Retry(1, backoff=0),
}  # by operators
kinds = pytest.mark.parametrize("kind", KINDS)

TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "token"}}}
KEY = {"spec": {"containers": [{"env": [TOKEN]}]}}
VOLUME = {
    "spec": {
        "volumes": [{"name": "token", "secret": {"secretName": "absent"}}],
        "containers": [{"volumeMounts": [{"name": "token", "mountPath": "/token"}]}],
    }
}
# A pod shows what it waits for, whatever its job's kind; ``test_recordings`` has those of other kinds.
WAITS: dict[str, tuple[str, Any, str, Cause]] = {
    "an image that can't be pulled": (
        "volcano",
        {"image": "nowhere.invalid/torch:1"},
        "can't be pulled",
        Cause.CONFIG,
    ),
    "an image whose name is none": (
        "pytorchjob",
        {"pod_patch": json.dumps({"spec": {"containers": [{"image": "localhost/Torch:1"}]}})},
        "an invalid name",
        Cause.CONFIG,
    ),
    "a key that is absent": ("trainjob", {"pod_patch": json.dumps(KEY)}, "can't be configured", Cause.CONFIG),
    "a volume that is absent": ("indexedjob", {"pod_patch": json.dumps(VOLUME)}, "volume", Cause.CONFIG),
    "no host that fits": ("indexedjob", {"node_selector": {"nowhere": "yes"}}, "no host", Cause.WAIT),
}


def spent(state):
    return [budget.used for budget in state.budgets]


def ends(state):
    return [(a.number, a.failure and a.failure.reason.cause, a.budget) for a in state.attempts]


@pytest.mark.parametrize("name", WAITS)
def test_a_job_that_waits_says_for_what_and_draws_on_no_budget(stage, name):
    kind, options, words, cause = WAITS[name]
    job = stage.submit(kind=kind, retry=OURS, **options)
    wait = until(lambda: next((w for w in job.state.waiting if words in w.text), None))
    assert (job.state.phase, failure.of_waiting(wait).cause) == (Phase.PENDING, cause)

    job.cancel()
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    assert ends(job.state) == [(1, Cause.CANCELLED, None)]
    assert spent(job.state) == [0, 0]


@pytest.mark.parametrize(("kind", "how"), [*((kind, "cancelled") for kind in KINDS), ("trainjob", "deleted")])
def test_a_job_that_somebody_ends_draws_on_no_budget(stage, kind, how):
    job = running(stage.submit(HANG, kind=kind, retry=OURS))
    if how == "cancelled":
        job.cancel()
    else:
        stage.delete(collection(KINDS[kind].api), job.name)

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED
    assert how in job.state.failure.reason.line
    assert ends(job.state) == [(1, Cause.CANCELLED, None)]
    assert spent(job.state) == [0, 0]


@kinds
def test_a_suspension_is_no_preemption(stage, kind):
    job = running(stage.submit("begin()\nif LIFE == 0: wait('never')\nvalue(1)", kind=kind, retry=OURS))
    job.suspend()
    until(lambda: job.state.suspended and not stage.pods())
    job.resume()

    assert job.result(LIMIT) == 1
    assert ends(job.state) == [(1, None, None)]
    assert spent(job.state) == [0, 0]


LEAVES = """
def leave(*_):
    time.sleep(0.3)
    log("; left")
    os._exit(exits.CANCELLED)

signal.signal(signal.SIGTERM, leave)
begin()
log("begun")
sign("ready")
wait("never")
"""


@kinds
def test_what_a_rank_prints_as_it_is_suspended_is_kept_though_nobody_follows_it(stage, kind):
    job = stage.submit(LEAVES, kind=kind)
    until(lambda: (stage.signs / "ready").exists())
    job.suspend()

    until(lambda: not stage.pods())
    assert job.logs(0) == "begun; left"


def two_end(stage, *, peer_last, again, by_operator=False):
    """Return the pod patch of two nodes: one fails, and its peer with it (``parts/peers.py``)."""
    flags = {"PEER_LAST": str(int(peer_last)), "AGAIN": str(int(again)), "BY_OPERATOR": str(int(by_operator))}
    return stage.acting("import tests.backends.kubernetes.parts.peers", **flags)


@pytest.mark.parametrize(
    ("kind", "peer_last", "again"),
    [*((kind, False, True) for kind in KINDS), ("indexedjob", True, True), ("pytorchjob", False, False)],
)
def test_a_peer_that_goes_with_the_culprit_is_never_taken_for_it(stage, kind, peer_last, again):
    patch = two_end(stage, peer_last=peer_last, again=again)
    job = stage.follow(stage.submit(pod_patch=patch, launch=Elastic(nnodes=2), kind=kind, retry=OURS))

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.FAILED
    budget = Budget.FAILURES if again else None
    assert ends(job.state) == [(number, Cause.USER, budget) for number in ((1, 2) if again else (1,))]
    assert spent(job.state) == [int(again), 0]
    assert {attempt.failure.node for attempt in job.state.attempts} == {1}


@pytest.mark.parametrize("kind", BY_OPERATOR)
@pytest.mark.parametrize("peer_last", [True, False], ids=["culprit-first", "peer-first"])
def test_an_operator_that_keeps_the_budgets_takes_no_peer_for_a_failure(stage, kind, peer_last):
    patch = two_end(stage, peer_last=peer_last, again=True, by_operator=True)
    handle = stage.submit(pod_patch=patch, launch=Elastic(nnodes=2), kind=kind, retry=BY_OPERATOR[kind])
    job = stage.follow(handle)

    assert job.wait(LIMIT)
    assert job.state.phase is Phase.FAILED
    assert ends(job.state) == [(1, Cause.USER, Budget.FAILURES), (2, Cause.USER, Budget.FAILURES)]
    assert spent(job.state) == [1, 0]


def test_watches_that_are_late_by_seconds_lose_nothing(stage):
    stage.cluster.lag_watches(2)
    try:
        job = stage.submit("begin(); log('one'); value(7)")
        assert (job.result(LIMIT), job.logs(0)) == (7, "one")
        ended = running(stage.submit("begin(); wait('never')", cell="2"))
        ended.cancel()
        assert ended.wait(LIMIT)
        assert ended.state.phase is Phase.CANCELLED
    finally:
        stage.cluster.lag_watches(0)


def test_a_host_whose_clock_is_an_hour_ahead_runs_a_job_as_any_other(stage):
    stage.cluster.skew_clocks("^ahead-", 3600)
    before = time.time()
    job = stage.submit("begin(); log('one'); value(time.time())", name="ahead")

    assert job.result(LIMIT) > before + 3500
    assert (job.state.phase, job.logs(0)) == (Phase.SUCCEEDED, "one")
