"""Ended jobs of this machine, resumed from their checkpoints as new jobs."""

import os
import sys

import cloudpickle
import pytest

from nbtorchjob import JobFailedError, SubmitError, api, artifacts_dir, attempt, checkpoint_dir
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.ui.card import render
from nbtorchjob.ui.record import record
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def counts():
    """Count on from the checkpoint, write a file for TensorBoard, and fail the first time."""
    folder = checkpoint_dir()
    saved = folder / "deep" / "count"
    saved.parent.mkdir(exist_ok=True)
    count = int(saved.read_text()) if saved.exists() else 0
    saved.write_text(str(count + 1))
    if count == 0:
        (folder / "newest").symlink_to("deep/count")
        (folder / "deep" / "absolute").symlink_to(saved)
        os.mkfifo(folder / "pipe")
        (artifacts_dir() / "events.out.tfevents.1").touch()
        raise ValueError("half way")
    return count, *((folder / link).read_text() for link in ("newest", "deep/absolute")), attempt()


def test_it_finds_a_copy_of_them_and_the_old_job_keeps_its_own(state_dir):
    job = api.submit(counts)
    job.wait(LIMIT)

    state = api.snapshot(job.name)
    assert (state.resumable, state.shows_curves) == (True, True)
    assert (record(state, 0)["resumable"], record(state, 0)["curves"]) == (True, True)
    card = render.html(state, 0, offers=OFFERS)
    for label, verb in (("Resume from checkpoint", "continue"), ("Open in TensorBoard", "tensorboard")):
        assert f'title="{label}"' in card
        assert f"nbtorchjob:{verb}" in card

    again = job.retry(resume=True)
    assert again.result(LIMIT) == (1, "2", "2", 1)
    assert job.retry(resume=True).result(LIMIT) == (1, "2", "2", 1)  # the old job's files haven't changed
    anew = job.retry()
    with pytest.raises(JobFailedError, match="half way"):
        anew.result(LIMIT)
    job.delete()
    assert again.retry(resume=True).result(LIMIT) == (2, "3", "3", 1)


def test_a_job_without_a_checkpoint_says_so_and_nothing_is_left(state_dir, monkeypatch):
    job = api.submit(int, "1")
    job.result(LIMIT)
    assert not api.snapshot(job.name).resumable
    before = {state.name for state in api.jobs()}

    with pytest.raises(SubmitError, match=f"{job.name} left no checkpoint to resume from: .*retry"):
        job.retry(resume=True)
    assert {state.name for state in api.jobs()} == before
