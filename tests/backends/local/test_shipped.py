"""Files that jobs of this machine ship: ranks see them as they were when the job was sent."""

import sys
from pathlib import Path

import cloudpickle
import pytest

from nbtorchjob import Elastic, JobSpec, SpecError, api, keep, submit
from nbtorchjob.errors import CaptureError
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHIPS = JobSpec(Elastic(nproc_per_node=2), ship=["configs"], all_ranks=True)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Change to a folder that contains ``configs/lr``; return it."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "lr").write_text("1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read():
    return Path("configs/lr").read_text()


def write():
    Path("result").write_text("kept")


@pytest.mark.torch
def test_ranks_read_what_was_there_at_submission_and_write_beside_it(here):
    job = submit(read, spec=SHIPS)
    assert job.results(LIMIT) == ["1", "1"]
    assert job.info.ships == "ships configs/"
    (here / "configs" / "lr").write_text("edited")
    again = job.retry()
    assert again.results(LIMIT) == ["1", "1"]
    assert "configs/lr has changed since the job was sent" in again.state.notices[0].text
    (here / "configs" / "lr").write_text("2")
    with keep(SHIPS) as lab:
        assert lab.run(read).results(LIMIT) == ["2", "2"]
        lab.run(write).results(LIMIT)
    assert (here / "result").read_text() == "kept"
    for run in (job, again, lab.job):
        run.delete()


def test_a_dry_run_says_what_is_shipped_and_what_is_not_there_is_an_error(here):
    (here / "configs" / ".hidden").touch()
    text = api.dry_run(read, spec=SHIPS)
    assert "#   configs/             1 file                           1 B" in text
    assert "#   left out of shipped folders: configs/.hidden" in text
    with pytest.raises(CaptureError, match=r"--ship config: there is no such file .* did you mean configs"):
        submit(read, spec=JobSpec(ship=["config"]))
    with pytest.raises(SpecError):
        submit(read, spec=JobSpec(ship=["/etc/passwd"]))
