"""Summaries of jobs that have ended are kept in a file, for the next process that lists them."""

import json
import os
import random
import shutil
import time
import zlib

import pytest

from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.ui.record import record


def listed(here=None):
    """Return each job's status by name, as a process lists it; by default one that has seen nothing yet."""
    return {summary["name"]: summary["status"] for summary in (here or LocalBackend()).summaries(record)}


def kept_file():
    return directory.ended_file("nbtorchjob.ui.record.record")


def ended(act, name=None):
    job = act(name)
    job.begin()
    job.folder.emit("NodeExited", node=0, code=0)
    job.end()
    return job


def unreadable(job):
    """Leave nothing of a job's record but its size and times, so that only a reader notices."""
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
    supervisor = job.folder.supervisor()
    job.lose()  # as it looks from a machine that shares the folder
    assert listed() == {job.name: "FAILED"}
    (job.folder.path / "supervisor.json").unlink()
    job.folder.claim(supervisor)

    assert listed() == {job.name: "RUNNING"}


def test_a_job_is_deleted_once_its_time_is_over(act, monkeypatch):
    job, other = ended(act), ended(act)
    for run, ttl in ((job, "3600"), (other, "7200")):
        (run.folder.path / "ttl").write_text(ttl)
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
    before, file = listed(), kept_file()
    content = file.read_bytes()
    file.write_bytes(spoil(content))

    assert listed() == before == {job.name: "SUCCEEDED"}
    assert file.read_bytes() == content


def test_something_else_in_its_place_harms_no_list(act):
    job = ended(act)
    kept_file().mkdir(parents=True)
    assert listed() == {job.name: "SUCCEEDED"}


def test_what_other_code_makes_is_kept_apart(act, monkeypatch):
    job = ended(act)
    assert listed() == {job.name: "SUCCEEDED"}
    for number in range(9):
        monkeypatch.setattr(directory, "code", lambda number=number: f"version {number}")
        assert [*LocalBackend().summaries(name_of)] == [{"name": job.name}]
    assert listed() == {job.name: "SUCCEEDED"}
    unreadable(job)

    assert listed() == {job.name: "SUCCEEDED"}
    assert [*LocalBackend().summaries(name_of)] == [{"name": job.name}]
    assert len([*kept_file().parent.iterdir()]) == 4


def test_the_file_is_written_once_a_hundredth_is_new(act):
    first = [ended(act) for _ in range(200)]
    backend = LocalBackend()
    assert len(listed(backend)) == 200
    status = kept_file().stat()
    second = [ended(act) for _ in range(2)]
    assert len(listed(backend)) == len(listed()) == 202
    assert kept_file().stat().st_ino == status.st_ino
    for job in (*first[:2], second[0]):
        job.remove()

    assert len(listed(backend)) == 199
    assert kept_file().stat().st_ino != status.st_ino


def test_the_same_record_is_given_of_a_job_that_has_ended(act):
    ended(act)
    backend = LocalBackend()
    [first], [again] = backend.summaries(record), backend.summaries(record)

    assert again is first


class Folder:
    """Jobs, and what happens to their folders."""

    def __init__(self, act, seed):
        self.act, self.random = act, random.Random(seed)
        self.names = [f"job-{number}" for number in range(4)]

    def some(self):
        return self.random.choice(self.names)

    def path(self, name):
        return directory.jobs_dir() / name

    def run(self):
        name = self.some()
        if not self.path(name).exists():
            job = self.act(name)
            job.begin()
            if self.random.random() < 0.8:
                job.folder.emit("NodeExited", node=0, code=self.random.choice([0, 1]))
                job.end()

    def delete(self):
        shutil.rmtree(self.path(self.some()), ignore_errors=True)

    def rerun(self):
        """Replace a job by another one of the same name; its facts may be as long."""
        self.delete()
        self.run()

    def rename(self):
        old, new = self.path(self.some()), self.path(self.some())
        if old.exists() and not new.exists():
            old.rename(new)

    def swap(self):
        """Exchange two jobs' folders, so that each record has the other's name."""
        first, second = self.path(self.some()), self.path(self.some())
        if first != second and first.exists() and second.exists():
            aside = first.with_name(".aside")
            first.rename(aside)
            second.rename(first)
            aside.rename(second)

    def adopt(self):
        """Correct the name in a record, as a user does who renames a job by hand."""
        path = self.path(self.some()) / "job.json"
        if path.exists():
            document = json.loads(path.read_text())
            document["info"]["name"] = path.parent.name
            path.write_text(json.dumps(document))

    def tell(self):
        """Add a note to a job without changing the time of its facts, as ``annotate`` does."""
        path = self.path(self.some()) / "events.jsonl"
        if path.exists():
            stat, text = path.stat(), self.random.choice(["a", "b"])
            with open(path, "a") as file:
                fact = {"event": "Annotated", "time": time.time(), "note": text, "tags": []}
                file.write(json.dumps(fact) + "\n")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("seed", range(6))
def test_no_list_shows_what_is_no_longer_so(act, seed, monkeypatch):
    folder, kernel, server = Folder(act, seed), LocalBackend(), LocalBackend()
    steps = [folder.run, folder.run, folder.delete, folder.rerun, folder.rename, folder.swap, folder.adopt]
    for step in range(80):
        folder.random.choice([*steps, folder.tell])()
        if folder.random.random() < 0.3:  # another version lists jobs, too
            with monkeypatch.context() as patched:
                patched.setattr(directory, "code", lambda: "another version")
                rows(LocalBackend())
        truth = sorted(
            (record(state, 0.0) for state in LocalBackend().jobs()), key=lambda row: str(row["id"])
        )
        backend = folder.random.choice([kernel, server, LocalBackend()])
        assert rows(backend) == [row | {"elapsed": row["elapsed"] and 0} for row in truth], step


def rows(here):
    """Return all records without the part that depends on the clock."""
    summaries = sorted(here.summaries(record), key=lambda row: str(row["id"]))
    return [row | {"elapsed": row["elapsed"] and 0} for row in summaries]


@pytest.mark.parametrize("text", [b"[]", b"{}"])
def test_what_later_code_wrote_is_ignored(act, text):
    job = ended(act)
    kept_file().parent.mkdir(mode=0o700)
    kept_file().write_bytes(b"%d\n%b" % (zlib.crc32(text), text))
    assert listed() == {job.name: "SUCCEEDED"}


def name_of(state, now):
    return {"name": state.name}
