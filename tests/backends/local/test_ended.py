"""What was made of jobs that have ended lies in a file, for the next process that lists them."""

import os
import time
import zlib

import pytest

from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.backends.local.jobdir import paths
from nbtorchjob.ui.record import record


def listed():
    """Return what a process that has seen nothing yet makes of each job: its status, by name."""
    return {each["name"]: each["status"] for each in LocalBackend().summaries(record)}


def ended(act, name=None):
    job = act(name)
    job.begin()
    job.folder.emit("NodeExited", node=0, code=0)
    job.end()
    return job


def unreadable(job):
    """Leave nothing of a job's record but its size and times, so that only who reads it notices."""
    for path in (job.folder.events, job.folder.path / "job.json"):
        stat = path.stat()
        path.write_bytes(b"?" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_an_ended_job_is_read_by_one_process_alone(act):
    job, running = ended(act), act()
    running.begin()
    before = listed()
    unreadable(job)

    assert before == {job.name: "SUCCEEDED", running.name: "RUNNING"}
    assert listed() == before


def test_what_changes_is_read_again(act):
    lost, removed, again = act(), ended(act), ended(act, "made-again")
    lost.begin()
    lost.lose()
    assert listed() == {lost.name: "FAILED", removed.name: "SUCCEEDED", again.name: "SUCCEEDED"}
    lost.folder.emit("NodeExited", node=0, code=0)
    lost.end()
    removed.remove()
    again.remove()
    act(again.name)

    assert listed() == {lost.name: "SUCCEEDED", again.name: "SUBMITTED"}


def test_a_job_that_another_machine_keeps_is_not_remembered_as_lost(act):
    job = act()
    job.begin()
    here = job.folder.supervisor()
    job.lose()  # as it looks from a machine that shares the folder
    assert listed() == {job.name: "FAILED"}
    (job.folder.path / "supervisor.json").unlink()
    job.folder.claim(here)

    assert listed() == {job.name: "RUNNING"}


def test_a_job_is_deleted_once_its_time_is_over(act, monkeypatch):
    job, other = ended(act), ended(act)
    for each, ttl in ((job, "3600"), (other, "7200")):
        (each.folder.path / "ttl").write_text(ttl)
    assert {*listed()} == {job.name, other.name}

    in_an_hour = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: in_an_hour)
    assert {*listed()} == {other.name}
    assert not job.folder.path.exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"SUCCEEDED", b"CANCELLED"),
        lambda data: b"0\n",
        lambda data: b"?" * len(data),
    ],
    ids=["emptied", "cut off", "changed", "no text", "no number"],
)
def test_a_damaged_file_is_ignored_and_written_anew(act, spoil):
    job = ended(act)
    before, file = listed(), paths.ended_file()
    written = file.read_bytes()
    file.write_bytes(spoil(written))

    assert listed() == before == {job.name: "SUCCEEDED"}
    assert file.read_bytes() == written


def test_something_else_in_its_place_harms_no_list(act):
    job = ended(act)
    paths.ended_file().mkdir(parents=True)
    assert listed() == {job.name: "SUCCEEDED"}


def test_what_other_code_made_is_made_anew(act, monkeypatch):
    job = ended(act)
    assert listed() == {job.name: "SUCCEEDED"}
    monkeypatch.setattr(paths, "code", lambda: "another version")
    assert [*LocalBackend().summaries(name_of)] == [{"name": job.name}]
    assert [*LocalBackend().summaries(name_of)] == [{"name": job.name}]
    assert listed() == {job.name: "SUCCEEDED"}


@pytest.mark.parametrize("text", [b"[]", b"{}"])
def test_what_later_code_wrote_is_ignored(act, text):
    job = ended(act)
    paths.ended_file().write_bytes(b"%d\n%b" % (zlib.crc32(text), text))
    assert listed() == {job.name: "SUCCEEDED"}


def name_of(state, now):
    return {"name": state.name}
