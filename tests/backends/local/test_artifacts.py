"""Artifacts of real jobs: the files that come home, their nodes, and the files left out by name."""

import os
import sys

import cloudpickle
import pytest

from nbtorchjob import Elastic, JobFailedError, JobSpec, Retry, artifacts_dir, attempt, submit
from nbtorchjob.errors import SpecError
from tests.backends.local.real import folder_of

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def leaves(fails_in=()):
    """Write some files; those of the second node differ in part."""
    node, folder = int(os.environ["GROUP_RANK"]), artifacts_dir()
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / f"events-{node}").write_text("events")
    (folder / "config").write_text("lr: 0.1")
    (folder / "loss").write_text(f"{node}" * 10)
    (folder / "loss").chmod(0o700)
    (folder / "empty").write_text("")
    (folder / "runs" / "latest").symlink_to(f"events-{node}")
    if node == 1:
        (folder / "passwd").symlink_to("/etc/passwd")
        os.mkfifo(folder / "pipe")
    if attempt() in fails_in:
        raise ValueError(f"attempt {attempt()}")
    return node


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_two_nodes_leave_comes_home_by_their_names(tmp_path):
    job = submit(leaves, spec=Elastic(nnodes=2, nproc_per_node=1))
    assert job.result() == 0

    artifacts = job.artifacts(tmp_path / "home")

    assert [(artifact.path, artifact.size, artifact.node) for artifact in artifacts] == [
        ("config", 7, 0),
        ("empty", 0, 0),
        ("loss", 10, 0),
        ("node-1/loss", 10, 1),
        ("runs/events-0", 6, 0),
        ("runs/events-1", 6, 1),
    ]
    assert contents(tmp_path / "home") == {
        "config": "lr: 0.1",
        "empty": "",
        "loss": "0000000000",
        "node-1/loss": "1111111111",
        "runs/events-0": "events",
        "runs/events-1": "events",
    }
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert [path.name for path in files if path.stat().st_mode & 0o100] == ["loss", "loss"]
    (notice,) = (notice.text for notice in job.state.notices)
    assert notice.endswith(": passwd (a link that leads outside), pipe (not a regular file, or not readable)")
    job.delete()


def test_each_attempt_has_its_own_and_failed_ones_too(tmp_path):
    spec = JobSpec(
        Elastic(nnodes=1, nproc_per_node=1), retry=Retry(retries=1, backoff=0, retry_on=("ValueError",))
    )
    job = submit(leaves, (1, 2), spec=spec)
    with pytest.raises(JobFailedError):
        job.result()

    assert {artifact.attempt for artifact in job.artifacts()} == {2}
    assert job.artifacts(tmp_path, attempt=1)[0].attempt == 1
    assert contents(tmp_path)["runs/events-0"] == "events"
    with pytest.raises(SpecError, match="attempt: got 3"):
        job.artifacts(attempt=3)
    assert not (folder_of(job).node(0) / "artifacts-1").exists()  # only its archive is kept
    job.delete()
