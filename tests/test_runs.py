"""Many jobs from one function: their values, their table, and a run that fails."""

import os
import sys
import threading
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest

import nbtorchjob
from nbtorchjob import (
    CaptureError,
    Elastic,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobStoppedError,
    ResultError,
    SpecError,
    capture,
    torchjob,
)
from nbtorchjob.backends.local import directory
from nbtorchjob.job import Job
from nbtorchjob.runs import Runs
from nbtorchjob.state import JobInfo, Phase
from tests.backends.minimal import MinimalBackend
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

GIVEN = [{"lr": 0.5}, {"lr": 0.0}, {"lr": 0.25}]


def train(lr, *, seed=7, folder=None):
    if folder is not None and not (folder / "mended").exists() and not lr:
        raise ValueError("no rate")
    nbtorchjob.report(loss=lr * 2)
    return lr, seed


@pytest.mark.torch
def test_each_run_has_its_value_and_a_failed_one_its_error(folder):
    runs = nbtorchjob.map(train, [{**point, "folder": folder} for point in GIVEN], spec=JobSpec(name="rates"))

    assert [job.name for job in runs] == ["rates-r1", "rates-r2", "rates-r3"]
    assert runs.wait(LIMIT)
    good, failed, other = runs.results(errors="return")
    assert (good, other) == ((0.5, 7), (0.25, 7))
    assert isinstance(failed, JobFailedError)
    assert isinstance(failed, ValueError)
    with pytest.raises(JobFailedError, match="no rate"):
        runs.results()
    assert runs.best("loss").value == (0.25, 7)
    assert runs.best("loss", largest=True) is runs[0]
    with pytest.raises(ResultError, match="no run of rates has reported 'acc': they report loss"):
        runs.best("acc")

    (folder / "mended").touch()
    again = runs.retry_failed()

    assert [job.name for job in again] == ["rates-r2-2"]
    assert runs.results(LIMIT) == [(0.5, 7), (0.0, 7), (0.25, 7)]
    elsewhere = nbtorchjob.group("rates")
    assert [job.name for job in elsewhere] == ["rates-r1", "rates-r2-2", "rates-r3"]
    rows = elsewhere.rows()
    assert [line.split()[:2] for line in str(elsewhere).splitlines() if "best" in line] == [["2", "0"]]
    assert "best" in elsewhere._repr_html_()
    assert repr(elsewhere) == "<Runs rates: 3 on this machine>"
    table = [(row["run"], row["lr"], row["phase"], row["loss"], row["attempts"], row["job"]) for row in rows]
    assert table == [
        (1, 0.5, "SUCCEEDED", 1.0, 1, "rates-r1"),
        (2, 0.0, "SUCCEEDED", 0.0, 1, "rates-r2-2"),
        (3, 0.25, "SUCCEEDED", 0.5, 1, "rates-r3"),
    ]


def count(by):
    for n in range(2):
        nbtorchjob.report(loss=n, **{by: 100 * n})


@pytest.mark.torch
def test_a_plot_has_all_curves_over_what_every_run_counts(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    runs = nbtorchjob.map(count, [{"by": "step"}, {"by": "lr"}], spec=JobSpec(name="plotted"))
    runs.results(LIMIT)

    axes = runs.plot("loss")
    drawn = [[*line.get_xdata()] for line in axes.lines]
    pyplot.close(axes.figure)

    assert drawn == [[0, 1], [0, 1]]
    assert axes.get_xlabel() == "report"


@pytest.mark.torch
def test_jobs_come_as_they_end_and_share_one_payload():
    runs = torchjob()(train).map(GIVEN)

    ended = {job.name: job.result(LIMIT) for job in nbtorchjob.as_completed(runs, LIMIT)}

    assert ended == {job.name: (run["lr"], 7) for job, run in zip(runs, GIVEN, strict=True)}
    saved = {(directory.jobs_dir() / job.name / "saved.pyz").stat().st_ino for job in runs}
    assert len(saved) == 1


def whose(lr):
    return lr, int(os.environ["RANK"])


@pytest.mark.torch
def test_where_every_rank_s_value_is_returned_a_run_has_all_of_them():
    two = JobSpec(Elastic(nproc_per_node=2), all_ranks=True)

    assert nbtorchjob.map(whose, [{"lr": 1}, {"lr": 2}], spec=two).results(LIMIT) == [
        [(1, 0), (1, 1)],
        [(2, 0), (2, 1)],
    ]


def race(lr, folder=None):
    """Report, the worse run after the better one; then wait, in the worse run, until somebody ends it."""
    while folder is not None and lr > 1 and not (folder / "reported").exists():
        threading.Event().wait(0.01)
    nbtorchjob.report(epoch=0, loss=lr)
    if lr > 1:
        threading.Event().wait()
    if folder is not None:
        (folder / "reported").touch()
    return lr


@pytest.mark.torch
def test_a_run_of_which_the_condition_holds_is_stopped_by_whoever_waits():
    nbtorchjob.map(race, [{"lr": 1}, {"lr": 5}], spec=JobSpec(name="race"), stop_when="loss > 2 * best_loss")

    runs = nbtorchjob.group("race")  # as in another kernel
    value, stopped = runs.results(LIMIT)

    assert value == 1
    assert isinstance(stopped, JobStoppedError)
    assert stopped.metrics == {"epoch": 0, "loss": 5}
    assert str(stopped) == "race-r2 stopped early: loss > 2 * best_loss (loss=5, best_loss=1)"
    assert runs.best("loss", largest=True) is runs[0]
    assert [(row["phase"], row["loss"]) for row in runs.rows()] == [("SUCCEEDED", 1), ("STOPPED", 5)]
    assert runs.retry_failed() == []
    assert runs.unattended


@pytest.mark.torch
def test_halving_stops_who_comes_as_far_and_is_worse(folder):
    runs = torchjob()(race).map(
        [{"lr": 1, "folder": folder}, {"lr": 2, "folder": folder}], halve="loss", factor=2
    )

    ended = {job.name: job.exception(LIMIT) for job in nbtorchjob.as_completed(runs, LIMIT)}

    good, stopped = (ended[job.name] for job in runs)
    assert good is None
    assert "stopped early: loss=2 after 1 epoch was number 2 of 2" in str(stopped)


@pytest.mark.parametrize(
    ("points", "more", "error", "reason"),
    [
        ([], {}, SpecError, "one mapping of names"),
        ([1], {}, SpecError, "given: got 1, but it must be a mapping of names to values for each run"),
        (["lr"], {}, SpecError, "given: got 'lr', but it must be a mapping of names to values"),
        ([{}], {}, SpecError, "at least one name"),
        ([{"lr": 1}, {"seed": 1}], {}, SpecError, "the same names in each run: lr"),
        ([{"rate": 1}], {}, CaptureError, r"train\(rate=1\): missing a required argument: 'lr'"),
        ([{"lr": 1, "rate": 2}], {}, CaptureError, "unexpected keyword argument 'rate'"),
        ([{"lr": 1}], {"at_once": 0}, SpecError, "at_once"),
        ([{"lr": 1}], {"stop_when": "loss = 2"}, SpecError, "at character 6: '=' is written '=='"),
        ([{"lr": bytes(20_000)}], {}, CaptureError, "lr: one run's values take"),
        ([{"lr": 1}], {"spec": JobSpec(name="a" * 40)}, SpecError, "at most 32 characters"),
    ],
)
def test_what_cannot_be_a_group_is_refused_before_anything_is_sent(points, more, error, reason):
    before = {*directory.jobs_dir().iterdir()}

    with pytest.raises(error, match=reason):
        nbtorchjob.map(train, points, **more)

    assert {*directory.jobs_dir().iterdir()} == before


def test_the_runs_of_a_deleted_group_are_not_those_of_a_later_one_of_its_name():
    backend, call = MinimalBackend(), capture.from_function(train, (1,))
    info = JobInfo("rates-r1", created=1.0)
    runs: Runs[Any] = Runs("rates", backend, [Job(backend, info)])
    backend.submit(call, JobSpec(env={"HELD": "1"}), replace(info, created=2.0))

    for act in (runs.states, runs.rows, runs.cancel, lambda: runs.wait(0)):
        with pytest.raises(JobNotFoundError, match="rates-r1 was deleted; another job has its name"):
            act()
    assert backend.brief_state("rates-r1").phase is Phase.RUNNING
    backend.delete("rates-r1")


def test_a_group_that_is_nowhere_is_not_found():
    with pytest.raises(JobNotFoundError, match="no group of runs named 'nothing'"):
        nbtorchjob.group("nothing")
