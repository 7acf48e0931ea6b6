"""A job's waits and deadlines follow a clock that nobody sets."""

import json
import time

import pytest

from nbtorchjob.backends.local.launch.supervisor import Attempt, Supervisor
from nbtorchjob.runtime.facts import injected


@pytest.fixture
def job(act):
    fake = act()
    rewrite(fake, deadline_s=3600, leave_before_s=60)
    return fake


def rewrite(job, **fields):
    path = job.folder.path / "job.json"
    record = json.loads(path.read_text())
    record["info"].update(fields)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("by", [-1e6, 1e6], ids=["back", "ahead"])
def test_a_clock_that_is_set_ends_no_job_and_holds_up_no_end(job, by, monkeypatch):
    supervisor = Supervisor(job.folder, {})
    attempt = Attempt(job.folder, job.folder.info(), {"env": {}}, 1, 0, time.monotonic() + 3600)
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


@pytest.mark.parametrize("by", [-3600.0, 86400.0], ids=["back", "ahead"])
def test_a_node_is_told_its_deadline_by_a_clock_that_nobody_sets(job, by, monkeypatch):
    now, monotonic = time.time, time.monotonic
    attempt = Attempt(job.folder, job.folder.info(), {"env": {}}, 1, 0, monotonic() + 3600)
    monkeypatch.setenv(injected.DEADLINE, attempt._environment(0)[injected.DEADLINE])
    monkeypatch.setattr(time, "time", lambda: now() + by)
    assert not injected.ends_soon()

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3550)
    assert injected.ends_soon()
    assert 40 < injected.saving() <= 50


def test_a_clock_that_was_set_back_before_a_job_began_makes_its_deadline_no_later(job):
    rewrite(job, created=time.time() + 3600)
    deadline = Supervisor(job.folder, {})._deadline
    assert deadline is not None
    assert deadline - time.monotonic() <= 3600
    assert "Suspended" in job.folder.events.read_text()
