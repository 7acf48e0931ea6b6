"""The facts that a Workload of Kueue states about its job, and their text for people."""

from functools import reduce

import pytest

from nbtorchjob.backends.kubernetes.objects import labelling, workloads
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import DEADLINE_EXCEEDED
from nbtorchjob.state.text import lifetime

DEACTIVATED = "its Workload is deactivated, so its queue doesn't start it again"
DEADLINE = "it was given a deadline that has passed, so its queue can't start it again"


def workload(**spec):
    """Return a Workload that was admitted, with a job that has ended since."""
    words = ("QuotaReserved", "Admitted", "Finished")
    conditions = [
        {"type": word, "status": "True", "reason": word, "lastTransitionTime": "2026-11-25T21:30:28Z"}
        for word in words
    ]
    meta = {"name": "w", "creationTimestamp": "2026-11-25T21:30:27Z", "resourceVersion": "181"}
    return {"metadata": meta, "spec": {"queueName": "team", **spec}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({}, DEADLINE), ({"active": False}, DEACTIVATED), ({"queueName": labelling.HELD}, DEADLINE)],
)
def test_what_keeps_a_cancelled_job_from_starting_is_what_holds(spec, reason):
    """A follower may deactivate the Workload, or change its queue, just as somebody else ends the job."""
    ended: list[ev.Event] = [ev.CancelRequested(2e9), ev.Verdict(2e9, False, DEADLINE_EXCEEDED)]
    state = reduce(apply, [*workloads.facts(workload(**spec)), *ended], JobState(JobInfo("job")))

    assert lifetime.hold_reason(state) == reason
