"""Retries of ended jobs on this machine: from which process, with what, and when they are refused."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from nbtorchjob import Elastic, JobCancelledError, JobSpec, SpecError, SubmitError, api, capture, submission
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.launch import pool_client
from nbtorchjob.machine import folders
from nbtorchjob.state import Origin
from tests.backends.local.real import folder_of, supervisor
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

torch = pytest.mark.torch


def around():
    return os.getcwd(), os.environ.get("LAID_DOWN"), "ELSEWHERE" in os.environ


def wait(sign):
    while not Path(sign).exists():
        time.sleep(0.02)
    return "let go"


def jobs():
    return {path.name for path in directory.jobs_dir().iterdir()}


@pytest.fixture(scope="module")
def ended(state_dir):
    """Yield a job that has ended well."""
    job = api.submit(lambda: 42)
    assert job.result(LIMIT) == 42
    yield job
    job.delete()


@pytest.fixture
def alone(ended):
    """Yield a copy of the ended job's record under another name, which a test may damage."""
    sockets = shutil.ignore_patterns("*.sock")
    copy = shutil.copytree(folder_of(ended).path, directory.jobs_dir() / "alone-2222", ignore=sockets)
    text = (copy / "job.json").read_text().replace(ended.name, "alone-2222")
    (copy / "job.json").write_text(text)
    yield api.attach("alone-2222")
    shutil.rmtree(copy)


@pytest.fixture
def nothing_new():
    """Check that a test leaves no job behind."""
    before = jobs()
    yield
    assert jobs() == before


def refused(job, error=SubmitError):
    with pytest.raises(error) as caught:
        job.retry()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@torch
def test_the_value_comes_home_again_and_both_jobs_stay(ended):
    again = ended.retry()

    assert again.name != ended.name
    assert again.result(LIMIT) == ended.result() == 42
    assert again.info.created > ended.info.created


@torch
def test_a_process_elsewhere_brings_back_where_the_job_ran_and_with_what(monkeypatch):
    monkeypatch.setenv("LAID_DOWN", "by the kernel")
    job = api.submit(around, spec=JobSpec(Elastic(), env={"GIVEN": "1"}))
    first = job.result(LIMIT)
    monkeypatch.delenv("LAID_DOWN")
    code = f"from nbtorchjob import api; print(api.retry({job.name!r}).name)"
    env = {
        folders.STATE: str(folders.state_dir()),
        "ELSEWHERE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    name = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=env, capture_output=True, text=True, check=True
    ).stdout.strip()

    assert api.attach(name).result(LIMIT) == first == (str(Path.cwd()), "by the kernel", False)
    assert api.attach(name).info.jobspec.env == {"GIVEN": "1"}


@torch
def test_what_is_written_down_of_it_stays():
    call = capture.from_cell("x + 1", {"x": 1})
    origin = Origin("/home/me/train.ipynb", "cell-7")
    job = submission.submit(call, JobSpec(Elastic(nproc_per_node=2), name="given", all_ranks=True), origin)
    assert job.results(LIMIT) == [2, 2]

    second, third = job.retry(), job.retry()
    assert third.results(LIMIT) == second.results(LIMIT) == [2, 2]
    fourth = second.retry()

    assert [run.name for run in (second, third, fourth)] == ["given-2", "given-3", "given-4"]
    same = ("label", "sources", "ships", "spec", "notebook", "cell", "nodes", "call")
    assert [getattr(fourth.info, name) for name in same] == [getattr(job.info, name) for name in same]
    assert fourth.results(LIMIT) == [2, 2]


@torch
def test_a_job_that_runs_has_to_end_first(folder):
    job = api.submit(wait, str(folder / "sign"))

    assert refused(job) == f"{job.name} hasn't ended: cancel it first, %torchjob cancel {job.name}"

    job.cancel()
    assert isinstance(job.exception(LIMIT), JobCancelledError)
    again = job.retry()
    (folder / "sign").touch()
    assert again.result(LIMIT) == "let go"


@torch
def test_a_job_whose_supervisor_was_killed_can_be_run_again(folder):
    job = api.submit(wait, str(folder / "sign"))
    supervisor(job).signal(signal.SIGKILL)
    assert job.wait(LIMIT)

    again = job.retry()
    (folder / "sign").touch()

    assert again.result(LIMIT) == "let go"


@torch
@pytest.mark.usefixtures("nothing_new")
def test_without_its_payload_there_is_nothing_to_run(alone):
    folder_of(alone).saved.unlink()

    assert refused(alone).endswith("is no longer kept, only the newest ones are: run its cell again")


@torch
@pytest.mark.usefixtures("nothing_new")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"python": "/gone/bin/python"},
            "/gone/bin/python, which the job ran with, is gone: run its cell again",
        ),
        ({"cwd": "/gone"}, "/gone, which the job ran with, is gone: run its cell again"),
        ({"python": "/"}, "/ can't start the job: "),
        ({"path": []}, f"{sys.executable} can't start the job: ModuleNotFoundError: "),
    ],
)
def test_what_it_ran_with_has_to_be_there_still(alone, change, message):
    path = folder_of(alone).path / "request.json"
    path.write_text(json.dumps(folder_of(alone).request() | change))

    assert refused(alone).startswith(message)


@torch
@pytest.mark.usefixtures("nothing_new")
def test_what_the_site_has_limited_since_is_refused(alone, tmp_path):
    site = tmp_path / "system/nbtorchjob/nbtorchjob.toml"
    site.parent.mkdir(parents=True)
    site.write_text("locked = ['nproc-per-node']\n[defaults]\nnproc-per-node = 2\n")

    assert "locks it" in refused(alone, SpecError)


def test_what_only_this_user_may_read_is_private(folder):
    new = JobDirectory(folder)
    request = pool_client.of_this_process({}) | {"env": {"TOKEN": "secret"}}
    new.prepare(b"key", request)

    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert new.request() == request


def saved(folder, name, size, age):
    """Return the folder of an ended job with a payload of this size and age."""
    job = JobDirectory(folder / name)
    job.path.mkdir()
    job.payload.write_bytes(b"x" * size)
    os.utime(job.payload, (time.time() - age,) * 2)
    (job.path / "ballast").touch()
    directory.put_by(job)
    return job


def test_the_newest_payloads_are_kept_as_far_as_there_is_room(folder):
    saved(folder, "old", 400, 30)
    saved(folder, "huge", 2_000, 20)
    saved(folder, "middle", 500, 10)
    saved(folder, "new", 400, 0)

    directory.thin_out(folder, most=1_000)

    assert {path.parent.name for path in folder.glob("*/*.pyz")} == {"middle", "new"}
    directory.thin_out(folder, most=1_000)
    assert len(list(folder.glob("*/*.pyz"))) == 2


def test_a_payload_that_retries_share_counts_once(folder):
    first = saved(folder, "first", 600, 20)
    saved(folder, "other", 300, 30)
    again = JobDirectory(folder / "again")
    again.path.mkdir()
    os.link(first.saved, again.saved)

    directory.thin_out(folder, most=1_000)
    assert {path.parent.name for path in folder.glob("*/*.pyz")} == {"first", "again", "other"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV])
def test_where_a_payload_cannot_be_linked_it_is_copied(folder, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    old, new = saved(folder, "old", 10, 0), JobDirectory(folder / "new")
    new.path.mkdir()
    monkeypatch.setattr(os, "link", refuse)  # as some file systems do that a test can't mount
    directory.share_payload(old, new)

    assert new.payload.read_bytes() == old.saved.read_bytes()


def test_on_a_full_disk_the_payload_makes_room_for_the_last_word(folder):
    job = JobDirectory(folder)
    job.payload.write_bytes(b"x")
    directory.put_by(job)  # without the ballast file, as on a full disk

    assert not job.payload.exists()
    assert not job.saved.exists()
    directory.put_by(job)
