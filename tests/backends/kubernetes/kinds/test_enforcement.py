"""Who sees to a run policy."""

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.kinds.enforcement import enforced, ours, retry_owner
from nbtorchjob.backends.kubernetes.kinds.fit import NEWEST
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, PyTorch, Retry, RunPolicy, Worker
from nbtorchjob.spec.jobspec import JobSpec

SPOT = Cluster(preemptible=True, spot_selector={"spot": "yes"})
UNLIMITED, NO_LOSS, FEW, NOTHING = Retry(3), Retry(3, 0), Retry(3, 2), Retry(0, 0)


def spec(nnodes=2, retry=None, cluster=None, **policy):
    return JobSpec(Elastic(nnodes, run_policy=RunPolicy(**policy)), retry=retry, cluster=cluster or Cluster())


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_keeps_budgets_that_there_are_not(kind):
    assert retry_owner(KINDS[kind], spec(), NEWEST) == ""
    assert "retries" not in enforced(KINDS[kind], spec(), "")


@pytest.mark.parametrize(
    ("kind", "nnodes", "retry", "found"),
    [
        *(("indexedjob", nnodes, UNLIMITED, "operator") for nnodes in (1, 2, "1:2")),
        *(("indexedjob", 2, retry, found) for retry, found in ((FEW, "us"), (NO_LOSS, "us"))),
        *(("indexedjob", "1:2", retry, "us") for retry in (FEW, NO_LOSS, NOTHING)),
        *((kind, 2, NOTHING, "operator") for kind in ("indexedjob", "volcano")),
        *(("pytorchjob", 2, retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
        *(("pytorchjob", "1:2", retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
        *(("trainjob", 2, retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
        *(("volcano", 2, retry, found) for retry, found in ((NO_LOSS, "operator"), (FEW, "us"))),
        *(("volcano", "1:2", retry, "us") for retry in (UNLIMITED, FEW, NO_LOSS, NOTHING)),
    ],
)
def test_an_operator_keeps_the_budgets_that_it_can_keep(kind, nnodes, retry, found):
    assert retry_owner(KINDS[kind], spec(nnodes, retry), NEWEST) == found


def test_a_master_and_its_workers_are_started_again_by_us():
    asked = JobSpec(PyTorch(worker=Worker(1)), retry=UNLIMITED)

    assert retry_owner(KINDS["pytorchjob"], asked, NEWEST) == "us"


def test_a_server_that_counts_pods_and_no_attempts_keeps_no_budgets():
    assert [retry_owner(KINDS["indexedjob"], spec(retry=UNLIMITED), minor) for minor in (28, 29)] == [
        "us",
        "operator",
    ]


@pytest.mark.parametrize(("retry", "kind"), [(0, "volcano"), ("unlimited", "indexedjob")])
def test_no_operator_moves_the_last_attempt_elsewhere(retry, kind):
    last = Retry(3, retry, on_demand_last=True)

    assert retry_owner(KINDS[kind], spec(retry=last), NEWEST) == "operator"
    assert retry_owner(KINDS[kind], spec(retry=last, cluster=SPOT), NEWEST) == "us"


TTL, DEADLINE, CLEAN = "ttl_seconds_after_finished", "active_deadline_seconds", "clean_pod_policy"
ALL = {TTL: 60, DEADLINE: 60, CLEAN: "All"}


@pytest.mark.parametrize(
    ("kind", "nnodes", "retry", "left"),
    [
        ("pytorchjob", 2, None, {DEADLINE}),
        ("pytorchjob", "1:2", None, {DEADLINE, TTL}),
        ("pytorchjob", 2, FEW, {DEADLINE, TTL, "retries", "preemptions"}),
        ("pytorchjob", "1:2", FEW, {DEADLINE, TTL, "retries", "preemptions"}),
        ("trainjob", 2, None, {TTL, CLEAN}),
        ("volcano", "1:2", None, {DEADLINE, CLEAN}),
        ("volcano", 2, NO_LOSS, {DEADLINE, CLEAN}),
        ("indexedjob", 2, None, {CLEAN}),
        ("indexedjob", 2, UNLIMITED, {CLEAN}),
        ("indexedjob", 2, FEW, {TTL, DEADLINE, CLEAN, "retries", "preemptions"}),
    ],
)
def test_what_an_operator_does_not_do_is_left_to_us(kind, nnodes, retry, left):
    asked = spec(nnodes, retry, **ALL)

    assert ours(KINDS[kind], asked, retry_owner(KINDS[kind], asked, NEWEST)) == left


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_asked_for_is_left_to_nobody(kind):
    assert ours(KINDS[kind], spec(), "") == set()
    assert ours(KINDS[kind], spec(**{CLEAN: "Running"}), "") == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_job_is_removed_by_us(kind):
    assert TTL in ours(KINDS[kind], spec(**ALL), "", cancelled=True)
    assert TTL not in ours(KINDS[kind], spec(), "", cancelled=True)


def test_who_sees_to_a_policy_is_said_with_its_reason():
    found = enforced(KINDS["volcano"], spec(), "")

    assert found[DEADLINE].who == "natively and by us"
    assert str(found[DEADLINE]) == (
        "natively: each pod, counted from its own start; by us: the job: Volcano has none (1.15)"
    )
    assert enforced(KINDS["trainjob"], spec(), "")["backoff_limit"].who == "refused"
