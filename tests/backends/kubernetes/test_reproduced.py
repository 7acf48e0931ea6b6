"""What a cluster job ran with: reported, exported and compared."""

import subprocess

import pytest

from nbtorchjob import api, capture, submission
from nbtorchjob.commands.front import ParsedArgs
from nbtorchjob.commands.table import VERBS
from nbtorchjob.machine import folders
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import JobSpec
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import TORCH
from tests.backends.kubernetes.stage import until

pytestmark = pytest.mark.torch


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """Yield the spec of a job on a cluster that needs no operator."""
    with Emulator(kinds=("indexedjob",)) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
        options = Cluster(namespace="default", image=TORCH, memory="1500Mi", cpu="400m")
        yield JobSpec(backend="kubernetes", cluster=options)


def test_a_job_says_what_it_ran_with_and_exports_it(spec, tmp_path, monkeypatch):
    names = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "commit.gpgsign=false")
    for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *names, *words], check=True)
    jobs = [submission.submit(capture.from_cell("x + 1", {"x": x}), spec) for x in (1, 2)]
    assert [job.result() for job in jobs] == [2, 3]

    snapshot = until(lambda: (state := api.snapshot(jobs[0].name)).checkout and state)
    files = jobs[0].export(tmp_path / "out")
    (lock,) = [path.read_text() for path in files if path.name == "requirements.txt"]
    answers = VERBS["diff"].answers
    assert answers is not None
    (answer,) = answers(ParsedArgs([job.name for job in jobs], {}), api.attach)

    assert f"# image {snapshot.image}" in lock.splitlines()
    assert f"# commit {snapshot.checkout.commit} on main, nothing changed since" in lock.splitlines()
    assert f"tqdm=={snapshot.environment.distributions['tqdm']}" in lock.splitlines()
    assert answer.data["captured"] == {"x": ["1", "2"]}
    assert answer.data["packages"] == {}
    assert [result["value"] for result in answer.data["results"]] == [2, 3]
