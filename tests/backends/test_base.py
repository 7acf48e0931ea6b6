"""A backend with only the six required verbs, used from Python and by the verbs of a notebook."""

from dataclasses import replace

import pytest

import nbtorchjob
from nbtorchjob import Elastic, JobNotFoundError, JobSpec, Retry, RunPolicy, SpecError, api, backends
from nbtorchjob.backends.base import Backend
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import BACKENDS
from nbtorchjob.state import Phase
from tests.patience import LIMIT


def half(x):
    return x / 2


HELD = JobSpec(env={"HELD": "1"}, name="held")


@pytest.fixture
def minimal(monkeypatch):
    """Make the minimal backend the default, under the name "local": specs accept only known names."""
    row = replace(backends.ROWS["local"], module="tests.backends.minimal")
    monkeypatch.setitem(backends.ROWS, "local", row)
    backends.backend.cache_clear()
    yield backends.backend("local")
    backends.backend.cache_clear()


@pytest.fixture
def notebook(minimal, shell):
    shell.run_cell("%load_ext nbtorchjob")
    return shell


def test_each_name_of_a_backend_has_its_row():
    assert (*backends.ROWS,) == BACKENDS
    assert all(isinstance(backends.backend(name), Backend) for name in BACKENDS)


def test_six_verbs_make_a_backend():
    assert Backend.__abstractmethods__ == {"submit", "follow", "jobs", "cancel", "delete", "fetch"}


@pytest.mark.usefixtures("minimal")
def test_a_job_gives_its_value_and_is_found_again():
    job = nbtorchjob.submit(half, 3)

    assert job.result(LIMIT) == "half(3)"
    assert nbtorchjob.attach(job.name).result(LIMIT) == "half(3)"
    assert api.snapshot(job.name).phase is Phase.SUCCEEDED
    assert [state.info.name for state in nbtorchjob.jobs()] == api.job_names() == [job.name]
    assert [left.name for _, left in api.leftovers()] == [job.name]
    job.delete()
    assert nbtorchjob.jobs() == []
    assert api.leftovers() == []
    with pytest.raises(JobNotFoundError, match="there are no jobs"):
        nbtorchjob.attach(job.name)


@pytest.mark.usefixtures("minimal")
def test_a_job_is_cancelled():
    job = nbtorchjob.submit(half, 3, spec=HELD)

    assert job.state.phase is Phase.RUNNING
    job.cancel()
    with pytest.raises(nbtorchjob.JobCancelledError):
        job.result(LIMIT)


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(cluster=Cluster(image="torch")),
        JobSpec(Elastic(run_policy=RunPolicy(active_deadline_seconds=3))),
        JobSpec(retry=Retry(retries=1)),
    ],
)
@pytest.mark.usefixtures("minimal")
def test_what_it_can_not_see_to_is_refused_before_anything_is_sent(spec):
    with pytest.raises(SpecError, match="can't be given on"):
        nbtorchjob.submit(half, 3, spec=spec)
    assert nbtorchjob.jobs() == []


@pytest.mark.parametrize("verb", ["logs", "retry", "suspend", "resume", "export"])
def test_what_it_can_not_do_is_one_line(notebook, verb, capsys):
    nbtorchjob.submit(half, 3, spec=JobSpec(name="held"))
    notebook.run_cell(f"%torchjob {verb} held {'folder' if verb == 'export' else ''}")

    message = f"{verb}: got 'held', but it must be a job on another backend: this one runs on paper"
    assert capsys.readouterr().err == f"UsageError: {message}\n"


def test_the_verbs_go_with_it(notebook, capsys):
    notebook.run_cell("%torchjob doctor")
    notebook.run_cell("def half(x):\n    return x / 2")
    value = notebook.run_cell("%torchjob run --name first half(3)").result
    notebook.run_cell("%torchjob run -d --name second --env HELD=1 half(4)")
    capsys.readouterr()

    assert value == "half(3)"
    for line in ("list", "status first", "describe first", "cancel second", "gc", "result first"):
        notebook.run_cell(f"%torchjob {line}").raise_error()
    output = capsys.readouterr().out
    assert "second cancelled" in output
    notebook.run_cell("%torchjob gc --yes").raise_error()
    assert nbtorchjob.jobs() == []
