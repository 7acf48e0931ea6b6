"""Ends that are easily mistaken for others: the API's times are whole seconds, and operators go on."""

from functools import reduce

import pytest

from nbtorchjob.backends.kubernetes.control import controller
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import OPERATOR, Budget, JobInfo, JobState, apply, conclusive
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause
from tests.backends.kubernetes.stage import running, until, working
from tests.patience import LIMIT

ONCE_MORE = Retry(retries=1, preemptions=1, backoff=0)
BY_OPERATOR = JobInfo("job", retry_owner=OPERATOR, spec=JobSpec(retry=Retry(retries=1)).to_json())


def fold(info, *events):
    return reduce(apply, events, JobState(info))


def pod(name, round_, *, ended=True):
    """Return the facts of a pod that ran in second 1 and, if it ``ended``, ran out of memory."""
    facts = [
        ev.Waiting(1.0, "waiting for a host", 0, name),
        ev.NodeStarted(1.0, 0, "host", pod=name),
        ev.WorkersStarted(1.1 + round_ / 10, 0, 0, round_, (0,), 1, pod=name),
    ]
    return [*facts, *([ev.NodeExited(1.0, 0, 137, 9, name, "OOMKilled")] if ended else [])]


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_pods_that_lived_in_one_second_are_told_apart_by_their_rounds(names):
    over = ev.Verdict(1.0, False, "BackoffLimitExceeded")
    state = fold(BY_OPERATOR, *pod(names[0], 0), *pod(names[1], 1), over, ev.Closed(1.0))

    attempts = [(a.number, a.failure.reason.cause, a.budget, a.hosts) for a in state.attempts]
    assert attempts == [(n, Cause.USER, Budget.FAILURES, ("host",)) for n in (1, 2)]


def test_what_ended_an_attempt_doesnt_explain_the_end_of_the_next():
    over = ev.Verdict(1.0, False, "BackoffLimitExceeded")
    *begun, end = pod("b", 1)
    state = fold(BY_OPERATOR, *pod("a", 0), *begun, over)

    assert not conclusive(state)
    assert conclusive(apply(state, end))


def test_a_rank_that_was_killed_isnt_told_of_by_the_end_of_its_containers_next_run():
    killed = ev.RankExited(2.5, 0, 0, 0, 0, signal=9)
    runs = [
        ev.NodeExited(2.0, 0, 1, pod="a", reason="Error", run=0),
        ev.NodeExited(3.0, 0, None, pod="a", reason="ContainerStatusUnknown", run=1),
    ]
    state = fold(
        JobInfo("job"), *pod("a", 0, ended=False), killed, *runs, ev.Verdict(3.0, False), ev.Closed(3.0)
    )

    assert state.failure.reason.line == "killed by SIGKILL"


def test_memory_that_ran_out_in_the_second_of_a_start_is_the_cause_and_not_its_peers_word():
    closed = Error("torch.distributed.DistBackendError", "Connection closed by peer", time=4.8)
    begun = [
        fact
        for node in (0, 1)
        for fact in (
            ev.NodeStarted(2.0, node, "host", pod=f"pod-{node}"),
            ev.WorkersStarted(4.2, node, 0, 5, (node,), 2, pod=f"pod-{node}"),
        )
    ]
    story = [
        *begun,
        ev.NodeExited(4.0, 1, 137, 9, "pod-1", "OOMKilled", "its limit was 1Gi"),
        ev.NodeStarted(4.0, 1, "host", pod="pod-1", run=1),  # in place, by its kubelet
        ev.RankFailed(4.8, 0, 0, 0, 5, closed),
        ev.NodeExited(5.0, 0, exits.INFRASTRUCTURE_ERROR, pod="pod-0"),
        ev.Verdict(9.0, False),
        ev.Closed(9.0),
    ]
    state = fold(JobInfo("job", nodes=(2, 2)), *story)

    assert (state.failure.node, state.failure.reason.cause) == (1, Cause.USER)
    assert "OOMKilled" in state.failure.reason.line


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_pod_that_failed_before_it_met_anybody_is_older_than_one_of_its_second_that_did(names):
    failed, goes_on = names
    story = [
        ev.Waiting(1.0, "waiting for a host", 0, failed),
        ev.NodeStarted(1.0, 0, "host", pod=failed),
        ev.NodeExited(1.0, 0, exits.INFRASTRUCTURE_ERROR, pod=failed, reason="Error"),
        *pod(goes_on, 1, ended=False),
    ]
    state = fold(BY_OPERATOR, *story)

    assert [attempt.failure is None for attempt in state.attempts] == [False, True]


def started(number, node, created, *, begun, ended=None, round_=None):
    """Return the facts of a pod of Volcano's start ``number``; with a round, its log was read."""
    name = f"{number}-{node}"
    facts = [
        ev.Waiting(created, "waiting for a host", node, name, restarts=number),
        ev.NodeStarted(begun, node, "host", pod=name),
    ]
    if round_ is not None:
        facts.append(ev.WorkersStarted(begun + 0.9, node, 0, round_, (node,), 2, pod=name))
    if ended is not None:
        facts.append(ev.NodeExited(ended, node, exits.RECOVERABLE_ERROR, pod=name, reason="Error"))
    return facts


@pytest.mark.parametrize("unread", [0, 1])
def test_nodes_that_were_started_together_are_one_attempt_though_the_log_of_one_was_never_read(unread):
    story = [
        *(fact for node in (0, 1) for fact in started(0, node, 15.0, begun=20.0, ended=21.0, round_=0)),
        *started(1, 1 - unread, 21.0, begun=21.0, ended=22.0, round_=1),
        *started(1, unread, 21.0, begun=22.0, ended=22.0),
        *(fact for node in (0, 1) for fact in started(2, node, 22.0, begun=22.0, round_=2)),
    ]
    state = fold(JobInfo("job", nodes=(2, 2), retry_owner=OPERATOR, spec=BY_OPERATOR.spec), *story)

    assert [attempt.budget for attempt in state.attempts] == [Budget.FAILURES, Budget.FAILURES, None]


def test_a_pod_that_its_operator_replaces_unseen_draws_on_the_budget(stage):
    part = "begin()\nif ATTEMPT == 1: wait('never')\nvalue(ATTEMPT)"
    job = working(stage.submit(part, kind="pytorchjob", retry=ONCE_MORE))
    # The pod is gone before the operator can see its deletion.
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{stage.pod()}?gracePeriodSeconds=0"
    stage.cluster.request("DELETE", path)

    assert job.result(LIMIT) == 2
    assert [spent.used for spent in job.state.budgets] == [0, 1]


def test_an_end_that_the_cluster_explains_waits_for_no_log(stage, monkeypatch):
    # Longer than any test lasts, in case the job does wait for the log.
    monkeypatch.setattr(controller, "TOLD_WITHIN_S", 1e9)
    part = "begin()\nif ATTEMPT == 1: wait('never')\nvalue(ATTEMPT)"
    job = running(stage.submit(part, kind="trainjob", retry=ONCE_MORE))
    until(lambda: job.state.round == 0)
    stage.cluster.oom_kill(stage.namespace, stage.pod())

    assert job.result(LIMIT) == 2
    assert job.state.attempts[0].budget is Budget.FAILURES
