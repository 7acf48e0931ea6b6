"""Records of a job of this machine: what its interpreter could import, and what git reported."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

import nbtorchjob
from nbtorchjob import JobSpec, api
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.launch import pool_client
from tests.backends.kubernetes.stage import until
from tests.backends.local.real import folder_of
from tests.environment.installed import install
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def ended(**spec):
    """Return a job that has ended."""
    job = nbtorchjob.submit(int, "6", spec=JobSpec(**spec))
    assert job.result(LIMIT) == 6
    return job


def shared():
    return {path.name for path in directory.environments_dir().iterdir()}


def test_jobs_that_can_import_the_same_share_a_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    first, second = ended(), ended()
    install(tmp_path, "meanwhile", "1.0", "meanwhile.py", url="file:///x", dir_info={"editable": True})
    later = ended()

    records = [api.snapshot(job.name).environment for job in (first, second, later)]
    assert records == [job.state.environment for job in (first, second, later)]

    assert os.path.samefile(folder_of(first).environment, folder_of(second).environment)
    assert [environment and environment.distributions.get("meanwhile", "") for environment in records] == [
        "",
        "",
        "1.0",
    ]
    assert [environment and "meanwhile" in environment.origins for environment in records] == [
        False,
        False,
        True,
    ]
    assert {environment and environment.python for environment in records} == {
        ".".join(map(str, sys.version_info[:3]))
    }


def test_a_file_that_no_job_has_is_removed_in_time(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = shared()
    install(tmp_path, f"passing-{time.time_ns()}", "1.0", "passing.py")
    job = ended()
    (name,) = shared() - before
    path = directory.environments_dir() / name

    os.utime(path, (0, 0))
    pool_client.thin_out()
    assert path.exists()
    job.delete()
    pool_client.thin_out()
    assert not path.exists()


def test_a_job_goes_without_where_it_can_t_be_put_down():
    folder = directory.environments_dir()
    shutil.rmtree(folder)
    folder.touch()
    job = ended()
    folder.unlink()

    assert api.snapshot(job.name).environment is None


def test_what_git_says_of_the_notebook_s_folder_is_told_and_stays_with_a_retry():
    names = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "commit.gpgsign=false")
    for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *names, *words], check=True)
    Path("changed.py").touch()

    job = ended(name="told")
    until(lambda: api.snapshot("told").checkout)
    again = api.retry("told")
    trees = [api.snapshot(run.name).checkout for run in (job, again)]

    assert trees[0] is not None
    assert trees[0] == trees[1]
    assert (len(trees[0].commit), trees[0].branch, trees[0].changed) == (40, "main", ("changed.py",))
    assert again.result(LIMIT) == 6
