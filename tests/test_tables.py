"""How public objects show themselves: tables in a notebook, a line elsewhere, data frames."""

import sys
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.lib.pretty import pretty

import nbtorchjob
from nbtorchjob import CleanPodPolicy, Cluster, Elastic, JobSpec, Master, PyTorch, Retry, RunPolicy, Worker
from nbtorchjob.errors import NotInstalledError
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.tables import Jobs, frame

DONE = apply(
    JobState(JobInfo("done-2222", created=1000.0, label="train(lr=0.1)", nodes=(1, 2), nproc_per_node=2)),
    ev.Lost(1042.0, "gone"),
)
NEW = JobState(JobInfo("new-3333", created=1097.0, label="f(<b>)"))
JOBS = Jobs([DONE, NEW])
ROWS: list[dict[str, Any]] = [{"run": 1, "lr": 0.5, "value": (1, 2)}, {"run": 2, "lr": None, "value": "none"}]


def test_jobs_are_a_list_that_shows_as_a_table():
    head, first, second = str(JOBS).splitlines()

    assert head.split() == ["name", "phase", "elapsed", "nodes", "×", "ranks", "where", "what"]
    assert first.split()[:2] == ["done-2222", "failed"]
    assert pretty(JOBS).splitlines()[1] == first
    assert "<td" in JOBS._repr_html_()
    assert "f(&lt;b&gt;)" in JOBS._repr_html_()
    assert [state.name for state in JOBS] == ["done-2222", "new-3333"]
    assert second.split()[0] in str(JOBS[1:])
    assert isinstance(JOBS[1:], Jobs)
    assert JOBS[0] is DONE


def test_no_jobs_are_a_sentence():
    assert str(Jobs()) == "No jobs."
    assert repr(Jobs()) == "<Jobs none>"


def test_all_jobs_of_this_machine_are_such_a_list():
    assert isinstance(nbtorchjob.jobs(), Jobs)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (JOBS, "<Jobs 1 submitted, 1 failed>"),
        (DONE, "<JobState done-2222 failed on local>"),
        (DONE.info, "<JobInfo done-2222 on local: train(lr=0.1)>"),
        (JobSpec(), "JobSpec()"),
        (
            JobSpec(Elastic(2, nproc_per_node=4), retry=Retry(retries=1)),
            "JobSpec(launch=Elastic(nnodes=2, nproc_per_node=4), retry=Retry(retries=1))",
        ),
        (
            PyTorch(
                Master(),
                Worker(replicas=3),
                run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.ALL),
            ),
            "PyTorch(worker=Worker(replicas=3), run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.ALL))",
        ),
        (Cluster(image="torch:2", gpu=1), "Cluster(image='torch:2', gpu=1)"),
        (nbtorchjob.torchjob(Elastic(2))(len), "<torchjob len as JobSpec(launch=Elastic(nnodes=2))>"),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_public_object_is_a_line(thing, text):
    assert repr(thing) == text


def test_a_spec_is_what_its_repr_makes():
    spec = JobSpec(
        PyTorch(Master(), Worker(replicas=3), run_policy=RunPolicy(CleanPodPolicy.ALL)),
        cluster=Cluster(gpu=1, node_selector={"zone": "a"}),
        env={"A": "1"},
        retry=Retry(retries=2),
    )

    assert (
        eval(repr(spec), vars(nbtorchjob) | {name: getattr(nbtorchjob, name) for name in nbtorchjob.__all__})
        == spec
    )


def test_ipython_shows_the_table_of_jobs():
    shell = InteractiveShell.instance() if InteractiveShell.initialized() else InteractiveShell()
    assert shell.display_formatter is not None
    bundle, _ = shell.display_formatter.format(JOBS)

    assert bundle["text/plain"] == str(JOBS)
    assert bundle["text/html"].startswith("<table")


def test_jobs_become_a_data_frame():
    pandas = pytest.importorskip("pandas")
    table = JOBS.frame()

    assert isinstance(table, pandas.DataFrame)
    assert [*table["name"]] == ["done-2222", "new-3333"]
    assert [*table["ranks"]] == [4, 1]
    assert str(table["created"].dt.tz) == "UTC"


def test_rows_become_a_frame_of_polars_where_pandas_is_not_installed(monkeypatch):
    polars = pytest.importorskip("polars")
    monkeypatch.setattr("nbtorchjob.tables._FRAMES", ("polars",))

    assert frame(ROWS)["lr"].to_list() == [0.5, None]
    assert frame(ROWS)["value"].to_list() == [(1, 2), "none"]
    assert isinstance(JOBS.frame(), polars.DataFrame)


@pytest.mark.parametrize(
    "values",
    [[[1, 2], ["x", 2.5]], [{"a": 1}, {"b": "x"}], [(1, 2.5), None], [[{"a": 1}], [{"b": 2}]]],
    ids=["lists", "dicts", "a tuple", "dicts in lists"],
)
def test_a_frame_of_polars_keeps_what_is_in_lists_tuples_and_dicts(monkeypatch, values):
    pytest.importorskip("polars")
    monkeypatch.setattr("nbtorchjob.tables._FRAMES", ("polars",))

    kept = frame([{"value": value} for value in values])["value"].to_list()

    assert [(type(value), value) for value in kept] == [(type(value), value) for value in values]


def test_without_pandas_and_polars_a_frame_says_what_to_install(monkeypatch):
    # The import system finds neither of the two, as if they weren't installed.
    for name in ("pandas", "polars"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("importlib.util._find_spec", lambda *_: None)

    with pytest.raises(NotInstalledError, match=r"frame\(\) needs pandas or polars: pip install pandas"):
        frame(ROWS)
