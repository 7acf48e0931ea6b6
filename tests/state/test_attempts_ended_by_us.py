"""Our interventions in a job that its operator continues are no attempt of it, no loss and no cause."""

import pytest

from nbtorchjob.backends.kubernetes.control.selection import Troubles
from nbtorchjob.runtime.facts import exits
from nbtorchjob.state import OPERATOR, US, Budget, Phase
from nbtorchjob.state.blame import STOPPED
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import DEADLINE_EXCEEDED, Cause
from tests.backends.kubernetes.recordings import ROOT, Recording
from tests.state.test_attempts import ended, fold, info, raised, used

SECOND = ROOT.with_name("recordings-2")


def pod(node, number, time, round_=None):
    name = f"pod-{node}-{number}"
    begun = [] if round_ is None else [ev.WorkersStarted(time, node, 0, round_, (node,), 2, name)]
    born = ev.Waiting(time, "waiting for a host", node, name)
    return [born, ev.NodeStarted(time, node, "host", pod=name), *begun]


def failing(number, time):
    """Return the facts of an attempt in which node 0 fails and both nodes end."""
    begun = [*pod(0, number, time, number), *pod(1, number, time, number)]
    failed = [raised(0, time + 2.5, number, "RecoverableError", recoverable=True)]
    return [*begun, *failed, *(ended(node, time + 3, number, exits.RECOVERABLE_ERROR) for node in (0, 1))]


def deleted(node, number, time):
    return [ev.NodeDisrupted(time, node, f"pod-{node}-{number}", ev.DELETED)]


@pytest.mark.parametrize("code", [exits.CANCELLED, 143, None])
def test_pods_that_an_operator_makes_behind_a_budget_are_no_attempt(code):
    late = [*pod(0, 3, 23.0), *pod(1, 3, 24.0, 3), *deleted(0, 3, 25.0), *deleted(1, 3, 25.0)]
    ends = [ended(node, 26.0, 3, code) for node in (0, 1)] if code else []
    story = [*failing(1, 10.0), *failing(2, 20.0), *late, *ends]
    state = fold(info(OPERATOR, retries=1), *story, ev.Verdict(22.5, False, STOPPED), ev.Closed(27.0))

    assert [attempt.budget for attempt in state.attempts] == [Budget.FAILURES] * 2
    assert used(state) == [(1, 1), (0, float("inf"))]
    assert (state.phase, state.failure.error.type) == (Phase.FAILED, "RecoverableError")


def test_a_pod_that_came_while_a_peer_of_the_attempt_before_had_still_to_end_is_of_that_attempt():
    story = [
        *pod(0, 1, 1.0, 100),
        *pod(1, 1, 1.0, 100),
        ended(1, 3.0, 1, 137, signal=9),
        *pod(1, 2, 12.0),
        ended(0, 20.0, 1, exits.INFRASTRUCTURE_ERROR),
        ended(1, 21.0, 2, exits.INFRASTRUCTURE_ERROR),
        *pod(0, 3, 39.0, 139),
        *pod(1, 3, 39.0, 139),
    ]
    state = fold(info(OPERATOR, retries=1), *story)

    assert [attempt.budget for attempt in state.attempts] == [Budget.FAILURES, None]
    assert used(state) == [(1, 1), (0, float("inf"))]


def test_an_attempt_takes_no_longer_than_its_job():
    about = info(US)
    late = [ended(node, 25.0, 1, exits.CANCELLED) for node in (0, 1)]
    story = [*pod(0, 1, 1.0, 100), *pod(1, 1, 1.0, 100), *deleted(0, 1, 21.0), *deleted(1, 1, 21.0), *late]
    state = fold(about, *story, ev.Verdict(20.0, False, DEADLINE_EXCEEDED, attempt=1), ev.Closed(20.0))

    assert (state.ended, state.attempts[-1].end) == (20.0, 20.0)
    assert state.failure.reason.cause is Cause.DEADLINE


@pytest.mark.parametrize(("first", "orders"), [(1, ("1002", "998")), (0, ("998", "1002"))])
def test_of_two_pods_deleted_in_one_second_the_first_is_to_blame(first, orders):
    story = [*pod(0, 1, 1.0, 100), *pod(1, 1, 1.0, 100)]
    for node, order in enumerate(orders):
        # A pod's end is a later version of the pod.
        for version in (order, order + "9"):
            story.append(ev.NodeDisrupted(5.0, node, f"pod-{node}-1", ev.DELETED, order=version))
        story.append(ended(node, 6.0, 1, exits.CANCELLED))
    state = fold(info(US, retries=0), *story, ev.Verdict(5.0, False, attempt=1), ev.Closed(6.0))

    assert (state.failure.node, state.failure.reason.line) == (first, "its pod was deleted")


def test_what_failed_by_itself_in_the_second_of_a_suspension_is_an_attempt():
    # The operator deletes the pods that it restarts (Volcano's RestartJob).
    replaced = [*failing(1, 10.0), *deleted(0, 1, 13.0), *deleted(1, 1, 13.0)]
    pod_facts = [*pod(0, 2, 13.0, 2), *pod(1, 2, 13.0, 2), *deleted(0, 2, 14.0), *deleted(1, 2, 14.0)]
    # The node that has to end last may have noticed that the other is gone.
    ends = [ended(0, 14.0, 2, exits.CANCELLED), ended(1, 14.0, 2, exits.INFRASTRUCTURE_ERROR)]
    pauses = [ev.Suspended(14.0, True), ev.Suspended(16.0, False)]
    state = fold(
        info(OPERATOR, retries=2),
        *replaced,
        *pod_facts,
        *ends,
        *pauses,
        *pod(0, 3, 17.0, 3),
        *pod(1, 3, 17.0, 3),
    )

    assert [attempt.budget for attempt in state.attempts] == [Budget.FAILURES, None]
    assert used(state) == [(1, 2), (0, float("inf"))]


recorded = pytest.mark.skipif(not SECOND.is_dir(), reason=f"no recordings at {SECOND}")


def read(name, stopped=None, retry_owner=OPERATOR):
    """Return the final state of a recording, with our mark at ``stopped`` if its client made none."""
    marks = [] if stopped is None else [ev.Verdict(stopped, False, STOPPED)]
    recording = Recording(SECOND / name)
    about = info(retry_owner, nodes=(1, 2), retries=2)
    troubles = Troubles(recording.kind, "")
    events = [fact for change in recording.changes for fact in recording.facts(change, troubles)]
    # With our mark, its suspension doesn't count (``found.of_object``).
    kept = [fact for fact in events if not (stopped and isinstance(fact, ev.Suspended))]
    return fold(about, *kept, *marks, ev.Closed(2.1e9))


@recorded
def test_a_recorded_suspension_of_ours_is_neither_an_attempt_nor_the_cause():
    # The third exit with 200 was at 15:40:57; a fourth pod came 90 ms after the suspension.
    state = read("pytorchjob/ptj-elastic-exitcode-suspended-by-client", 1795362057.0)

    assert (len(state.attempts), used(state)[0]) == (3, (2, 2))
    assert (state.failure.node, state.failure.reason.cause) == (0, Cause.USER)


@recorded
def test_a_recorded_pod_beside_the_old_gang_is_of_its_attempt():
    state = read("job/job-restart-while-old-peer-ends")

    assert (state.phase, len(state.attempts)) == (Phase.SUCCEEDED, 2)
    assert used(state) == [(1, 2), (0, float("inf"))]


@recorded
@pytest.mark.parametrize(("name", "line"), [("oom", "its limit was"), ("sigkill", "SIGKILL")])
def test_runs_in_place_that_a_suspension_of_ours_ended_are_no_attempts(name, line):
    path = f"trainjob/tj-container-restarted-in-place-{name}"
    first = min(exit_.time for node in read(path).nodes.values() for exit_ in node.life.exits if exit_.code)
    state = read(path, first, retry_owner="")

    assert len(state.attempts) == 1
    assert line in state.failure.reason.line
    assert line in state.attempts[0].failure.reason.line
