"""A job is held back from the time that its cluster states, in whatever order facts arrive."""

from itertools import permutations

import pytest

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import US, JobInfo, JobState, apply, progress
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause

PLACED = ev.Waiting(1, "waiting for a host", 0, "a")
NO_PLACE = ev.Waiting(5, "no host has enough cpu free", 0, "a", "Unschedulable", ev.Stage.PLACING, since=2)
PULLING = ev.Waiting(20, "pulling image", 0, "a", "", ev.Stage.STARTING)
REFUSED = ev.Waiting(30, "its image can't be pulled", 0, "a", "ErrImagePull", ev.Stage.STARTING, since=30)
AGAIN = ev.Waiting(60, "its image can't be pulled", 0, "a", "ImagePullBackOff", ev.Stage.STARTING, since=45)
UNSAID = ev.Waiting(20, "its image can't be pulled", 0, "a", "ErrImagePull", ev.Stage.STARTING)
QUOTA = ev.Waiting(50, "the quota is used up", reason="FailedCreate", stage=ev.Stage.PLACING, since=40)
LATER = ev.Waiting(90, "the quota is used up", reason="FailedCreate", stage=ev.Stage.PLACING, since=90)
ADMISSION = ev.Waiting(3, "held back", 0, "a", "SchedulingGated", ev.Stage.QUEUED)
BEGUN = ev.WorkersStarted(70, 0, 0, 0, (0,), 1, "a")
RAN = (ev.NodeStarted(65, 0, "h", 0, "a"), BEGUN, ev.NodeExited(85, 0, 1, pod="a"), ev.NodeGone(86, 0, "a"))


def since(*events, **about):
    state = JobState(JobInfo("j", **about))
    for event in events:
        state = apply(state, event)
    wait = progress.held_back(state)
    return wait and progress.held_since(state, wait)


@pytest.mark.parametrize(
    ("events", "began"),
    [
        ((PLACED, NO_PLACE), 2),
        ((PLACED, NO_PLACE, PULLING), None),  # however long pulling takes
        ((PLACED, NO_PLACE, PULLING, REFUSED, AGAIN), 30),  # not since it lacked a place
        ((UNSAID, REFUSED), 30),
        ((UNSAID,), None),
        ((QUOTA, LATER), 40),
        ((ADMISSION,), None),
        ((REFUSED, ev.NodeStarted(65, 0, "h", 0, "a"), BEGUN), None),
        ((QUOTA, *RAN, LATER), 85),  # not since the quota that kept it out earlier
        ((REFUSED, ev.CancelRequested(50)), None),
        ((ev.Suspended(35, True), QUOTA), None),
        ((ev.Suspended(35, True), ev.Suspended(80, False), QUOTA, LATER), 80),
    ],
)
def test_since_when_something_holds_it_back(events, began):
    assert {since(*some) for some in permutations(events)} == {began}


def test_an_attempt_waits_for_itself():
    over = ev.Verdict(60, False, attempt=1)
    retried = {"retry_owner": US, "spec": {"retry": {"retries": 1, "backoff": 10.0}}}

    assert since(QUOTA, over, ev.AttemptBegan(70, 2), LATER, **retried) == 60 + Retry(backoff=10).delay(1)


def test_what_held_it_back_is_its_cause_and_nothing_follows():
    verdict = ev.Verdict(90, False, "NeverStarted", "ErrImagePull its image can't be pulled: no such host")
    info = JobInfo("j", start_within_s=60, retry_owner=US, spec={"retry": {"preemptions": 3}})
    state = JobState(info)
    for event in (REFUSED, verdict, ev.NodeGone(91, 0, "a"), ev.Closed(92)):
        state = apply(state, event)

    assert state.failure is not None
    reason = state.failure.reason
    assert reason.cause is Cause.DEADLINE
    assert reason.line == "was held back for 60 s, and ended: its image can't be pulled: no such host"
    assert "--image" in reason.hint
    assert (state.next, [spent.used for spent in state.budgets]) == (None, [0, 0])


@pytest.mark.parametrize(
    ("duration", "seconds"), [(30, 30), ("30", 30), ("90s", 90), ("10m", 600), ("1.5 h", 5400), (None, None)]
)
def test_how_long_it_may_be_held_back(duration, seconds):
    assert RunPolicy(start_within=duration).patience_s == seconds


@pytest.mark.parametrize("duration", ["", "soon", "0", 0, -1, "10 weeks", True, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(duration):
    with pytest.raises(SpecError, match=r"start_within: got .*, but it must be a duration above 0"):
        RunPolicy(start_within=duration)
