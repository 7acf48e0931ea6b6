"""How long a job may run, and how long and where it is kept."""

from pathlib import Path

import pytest

from nbtorchjob.spec.config import RunPolicy
from nbtorchjob.state import events as ev
from nbtorchjob.state.text import lifetime
from tests.ui.card.retried import CLUSTER, begun, job

WHO = "the operator"


pytestmark = pytest.mark.usefixtures("greenwich")


def test_a_deadline_has_a_time_and_a_distance():
    state = job(*begun(1, 1000.0))

    assert lifetime.deadline(state, 1030.0) == "ends at 00:26:40, in 9 min 30 s"
    assert lifetime.deadline(state, 1700.0) == "its deadline passed at 00:26:40, 1 min 40 s ago"
    assert lifetime.deadline(job(ev.Closed(1005.0)), 1030.0) == ""
    assert lifetime.deadline(job(policy=None), 1030.0) == ""


def test_what_holds_a_job_back_has_a_time_to_end_it():
    wait = ev.Waiting(1005.0, "the quota is used up", reason="FailedCreate", since=1005.0)

    assert lifetime.patience(job(wait, start_within_s=600), 1030.0) == (
        "fails at 00:26:45 unless it is running by then"
    )
    assert lifetime.patience(job(start_within_s=600), 1030.0) == ""
    assert lifetime.patience(job(wait), 1030.0) == ""


def test_a_deadline_counts_from_the_last_resume():
    paused = job(*begun(1, 1000.0), ev.Suspended(1100.0, True))
    resumed = job(*begun(1, 1000.0), ev.Suspended(1100.0, True), ev.Suspended(1200.0, False))

    assert lifetime.deadline(paused, 1150.0) == "once it is resumed, it may run for 10 min 00 s"
    assert lifetime.deadline(resumed, 1230.0) == "ends at 00:30:00, in 9 min 30 s"


def test_who_removes_a_job_and_when():
    ended = job(*begun(1, 1000.0), ev.Closed(1010.0))
    gone = job(*begun(1, 1000.0), ev.Removed(1010.0), backend="kubernetes", cluster=CLUSTER)

    assert lifetime.removal(job(), WHO, 1005.0) == "removed 1 min 00 s after it ends, the operator"
    assert lifetime.removal(ended, WHO, 1030.0) == "removed in 40 s, the operator"
    assert lifetime.removal(ended, "", 1100.0) == "due for removal since 00:17:50"
    assert lifetime.removal(gone, WHO, 1100.0) == "removed from its cluster at 00:16:50"


def test_without_a_limit_a_job_stays():
    stored = "kept until %torchjob delete swift-otter or %torchjob gc --yes"
    on_cluster = job(policy=RunPolicy(), backend="kubernetes", cluster=CLUSTER)

    assert lifetime.removal(on_cluster, WHO, 1005.0) == stored
    assert lifetime.removal(job(policy=None), WHO, 1005.0) == f"{stored}, or a week after it ends"


def test_when_a_job_began_and_ended():
    assert lifetime.times(job(ev.Closed(1010.0)), {}, 1030.0) == [
        "submitted at 00:16:40",
        "ended at 00:16:50",
        "removed in 40 s",
    ]


def test_where_values_and_logs_are():
    here, storage = Path("/home/me/state"), {"storage": "s3://team/\x1bjobs"}
    on_cluster = job(backend="kubernetes", cluster=CLUSTER, spec={"cluster": storage})

    assert lifetime.stored(job(), here) == [
        "logs and values in /home/me/state/jobs/swift-otter on this machine"
    ]
    assert lifetime.stored(on_cluster, here) == [
        "logs and values in the cluster while its pods exist; copies in /home/me/state/kubernetes",
        "payload and values in s3://team/ jobs",
    ]
