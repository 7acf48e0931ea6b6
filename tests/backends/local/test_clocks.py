"""What a job waits for is told by a clock that nobody sets."""

import json
import time

import pytest

from nbtorchjob.backends.local.launch.attempt import Attempt
from nbtorchjob.backends.local.launch.supervisor import Supervisor


@pytest.fixture
def job(act):
    found = act()
    path = found.folder.path / "job.json"
    written = json.loads(path.read_text())
    written["info"]["deadline_s"] = 3600
    path.write_text(json.dumps(written))
    return found


@pytest.mark.parametrize("by", [-1e6, 1e6], ids=["back", "ahead"])
def test_a_clock_that_is_set_ends_no_job_and_holds_up_no_end(job, by, monkeypatch):
    supervisor = Supervisor(job.folder, {})
    attempt = Attempt(job.folder, job.folder.info(), {}, 1, 0, job.folder.info().created)
    attempt.stop()
    due, now = attempt.due, time.time
    assert due is not None
    assert 0 < due - time.monotonic() < 60

    monkeypatch.setattr(time, "time", lambda: now() + by)
    attempt.act()
    supervisor.wait(time.monotonic())

    assert attempt.due == due
    assert job.folder.events.read_text() == ""

    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 3600)
    attempt.act()
    supervisor.wait(time.monotonic())

    assert (attempt.due or 0.0) > due
    assert "DeadlineExceeded" in job.folder.events.read_text()
