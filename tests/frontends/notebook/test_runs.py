"""Many jobs from one cell, in a real IPython shell, with real ranks."""

import pytest

from nbtorchjob import CaptureError, JobNotFoundError
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.local import directory
from nbtorchjob.runs import Runs

pytestmark = pytest.mark.torch


def jobs():
    return {path.name for path in directory.jobs_dir().iterdir()}


def test_a_cell_becomes_a_run_for_each_combination(notebook):
    notebook.run(
        "class Config:\n    def __init__(self, width): self.width = width\n"
        "configs, scale = [Config(1), Config(2)], 10\n"
        "def scaled(): return lr * scale"  # finds the value of its run
    )

    value = notebook.value(
        "%%torchjob --each lr=1,2 --each config={configs} --name sweep -o runs\n"
        "assert isinstance(config, Config)\n"
        "if lr * config.width == 4: raise ValueError('too much')\n"
        "scaled() + config.width"
    )

    assert value is None
    assert "lr" not in notebook.shell.user_ns
    runs = notebook["runs"]
    assert isinstance(runs, Runs)
    assert "4 runs · 3 done, 1 failed" in notebook.out
    *good, bad = runs.results(errors="return")
    assert good == [11, 12, 21]
    assert "too much" in str(bad)

    again = notebook.value("%torchjob attach sweep")
    assert [job.name for job in again] == [job.name for job in runs]
    notebook.value("%torchjob delete sweep")
    assert not [name for name in jobs() if name.startswith("sweep-")]
    assert isinstance(notebook.run("%torchjob attach sweep").error_in_exec, JobNotFoundError)


def test_a_function_is_called_with_what_it_is_given(notebook):
    notebook.run("def f(x, lr=1): return x * lr")

    assert notebook.value("%torchjob run --each lr=2,3 f(10)").results() == [20, 30]
    entry = "%%torchjob --each seed=7,8 --quiet\ndef train(lr=0.5, *, seed=0):\n    return lr, seed"
    assert notebook.value(entry).results() == [(0.5, 7), (0.5, 8)]


def test_a_run_is_stopped_early_by_what_it_reports(notebook):
    notebook.run("import threading, nbtorchjob")

    notebook.value(
        "%%torchjob --each lr=1,5 --stop-when 'loss > 2 * best_loss' -o runs\n"
        "nbtorchjob.report(loss=lr)\n"
        "if lr > 1: threading.Event().wait()\n"
        "lr"
    )

    assert "2 runs · 1 done, 1 stopped early" in notebook.out
    assert notebook["runs"].results()[0] == 1


def test_a_group_of_this_machine_is_found_though_a_cluster_cannot_be_asked(notebook, monkeypatch):
    notebook.value("%%torchjob --each lr=1,2 --name here\nlr")
    monkeypatch.setenv("KUBECONFIG", "/none")
    # As if a job had been sent to a cluster before: no other test may see that.
    monkeypatch.setattr(namespaces, "recorded_scopes", lambda: [namespaces.Scope("", "default")])

    assert notebook.value("%torchjob attach here").results() == [1, 2]
    notebook.value("%torchjob delete here")

    assert not [name for name in jobs() if name.startswith("here-")]


def test_a_metric_that_no_run_reports_is_told_in_a_note(notebook):
    notebook.value(
        "%%torchjob --each lr=1,5 --stop-when 'los > 2'\nimport nbtorchjob\nnbtorchjob.report(loss=lr)"
    )

    assert "Note: early stopping of cell-" in notebook.out
    assert "needs metrics that no run reports, los: they report loss\n" in notebook.out


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("%%torchjob --each rate=1,2\nratio = 3\nratio", "doesn't read rate"),
        ("%%torchjob --each lr=1,2\nlr = 3\nlr", "the cell sets lr itself"),
        ("%torchjob run --each rate=1 max_(3)", "unexpected keyword argument 'rate'"),
        ("%torchjob run --each x=1,2 max_(x=3)", "x is given twice, by --each and by the call: leave one"),
        (
            "%%torchjob --each lr=1,2 --arg lr=5\ndef train(lr): return lr",
            "lr is given twice, by --each and by --arg: leave one of them out",
        ),
    ],
)
def test_a_name_that_is_not_read_is_told_before_anything_is_sent(notebook, cell, reason):
    notebook.run("def max_(x): return x")
    before = jobs()

    assert reason in notebook.error(cell, CaptureError)
    assert jobs() == before


def test_many_runs_are_asked_back(notebook, monkeypatch):
    before = jobs()

    monkeypatch.setattr(notebook.shell, "ask_yes_no", lambda *_args, **_options: False)
    assert "101 jobs were not submitted: confirm with --yes" in notebook.refusal(
        "%%torchjob --each n=0:101\nn"
    )
    notebook.value("%%torchjob --each n=0:101 --dry-run\nn")

    assert notebook.out.startswith("# 101 runs of:\n")
    assert "# run 2: n=1\n" in notebook.out
    assert jobs() == before
