"""Every verb on jobs with forged facts: an answer or one line of an error, and no traceback."""

import shutil
import time

import pytest

import nbtorchjob
from nbtorchjob import JobSpec
from nbtorchjob.backends.local import directory, liveness
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.commands.table import VERBS
from nbtorchjob.state import fold
from nbtorchjob.state.facts import events as ev
from tests.forging import forged, forged_jobs
from tests.patience import LIMIT

JOBS = 24
WORDS = {"diff": ["forged-1"], "artifacts": ["copied"], "export": ["exported"], "tensorboard": ["--end"]}
# Verbs that start a job, or ask about the machine; the others take a job's name.
APART = {"run", "list", "gc", "doctor", "promote"}


@pytest.fixture
def jobs(state_dir):
    """Yield jobs with forged facts, every other one a lab."""
    handles = forged_jobs(JOBS)
    yield handles
    for job in handles:
        shutil.rmtree(job.path, ignore_errors=True)


def test_no_forged_fact_keeps_a_verb_from_answering(jobs, command):
    every = command("list", "--all", "--json")
    assert len(every.data["jobs"]) >= JOBS
    last = ["cancel", "delete"]
    verbs = [verb for verb in VERBS if verb not in (*APART, *last, "debug")]
    for job in jobs:
        name = job.path.name
        names = [name, f"{name}#1"] if job.info().lab else [name]
        for field in names:
            for verb in verbs:
                done = command(verb, field, *WORDS.get(verb, ()))
                assert done.code in range(5), (verb, field, done)
                assert "Traceback" not in done.err, (verb, field, done)
        for verb in last:
            done = command(verb, name)
            assert done.code == 0, (verb, done, job.events.read_text())
        assert not job.path.exists()


@pytest.fixture
def unfoldable(monkeypatch):
    """Make the state of a job with a notice fail, as a forged fact that nobody has foreseen would."""

    def raises(_state, _event):
        raise TypeError("it fits nothing")

    monkeypatch.setitem(fold._APPLY, ev.Notice, raises)


@pytest.mark.torch
def test_a_job_whose_state_cannot_be_folded_is_cancelled_and_deleted(unfoldable, command):
    name = "unfoldable"
    nbtorchjob.submit(time.sleep, 1000, spec=JobSpec(name=name))
    job = JobDirectory(directory.jobs_dir() / name)
    job.emit("Notice", text="forged")

    status = command("status", name)
    cancelled = command("cancel", name)

    assert (status.code, cancelled.code) == (4, 0)
    assert cancelled.out.startswith("unfoldable cancelled, but the Notice fact of unfoldable can't be read")
    assert "it fits nothing" in cancelled.out
    until = time.monotonic() + LIMIT
    while liveness.alive(job) and time.monotonic() < until:
        time.sleep(0.01)
    assert not liveness.alive(job)
    assert command("delete", name).out == "unfoldable deleted\n"
    assert not job.path.exists()


def test_a_job_whose_record_is_damaged_is_cancelled(command):
    job = forged("damaged", [])
    (job.path / "job.json").write_text("{")

    cancelled = command("cancel", "damaged")

    assert cancelled.code == 0
    assert cancelled.out.startswith("damaged cancelled, but the record of damaged can't be read")
    assert job.cancel.exists()
    assert command("delete", "damaged").code == 0
