"""Files of two nodes that have the same names, and files that can't all be copied."""

import errno
import io
import os
import zipfile

import pytest

from nbtorchjob import ResultError, SpecError, attach
from nbtorchjob.backends import backend, links
from nbtorchjob.backends import files as host_files
from nbtorchjob.machine import folders
from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.ask import answering, files, questions
from nbtorchjob.runtime.facts import injected
from tests.backends.local.acted import Acted

KEY = b"k" * 32


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a job with two nodes and a folder that the test writes."""
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    return Acted(nodes=2)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return the folder that the ranks of all nodes write their artifacts to."""
    monkeypatch.setenv(injected.FOLDER, str(tmp_path / "node"))
    folder = tmp_path / "node" / "artifacts-1"
    folder.mkdir(parents=True)
    return folder


def runs(job, node):
    """Have a node begin, and answer questions about files."""
    job.folder.key.write_bytes(KEY)
    job.folder.node(node).mkdir()
    job.folder.emit("NodeStarted", node=node, host="here", pid=os.getpid())
    job.begin(ranks=(node,), node=node)
    own = questions.node_key(KEY, job.folder.info().run, node)
    answering.serve(str(job.folder.node(node)), own, {"files": files.answer})


def sends(job, node, files):
    """Have a node send its artifacts, as it does once its ranks have ended."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    path = job.folder.artifacts(node, 1)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(out.getvalue())
    size = {"size": path.stat().st_size, "files": len(files), "total": sum(map(len, files.values()))}
    job.folder.emit("ArtifactsReady", node=node, attempt=1, ref=str(path), **size)


def texts(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_of_an_ended_job_the_files_of_the_named_node_are_copied(job, tmp_path):
    job.folder.checkpoints.mkdir()
    (job.folder.checkpoints / "step-1.pt").write_text("weights")
    for node in (0, 1):
        sends(job, node, {"runs/loss.csv": f"of node {node}", "config": "the same"})
    job.end()
    ended = attach(job.name)

    assert [(file.path, file.node) for file in ended.files().files] == [
        ("artifacts/config", 0),
        ("artifacts/runs/loss.csv", 0),
        ("artifacts/runs/loss.csv", 1),
        ("checkpoints/step-1.pt", 0),
    ]
    for path in ("artifacts/runs/loss.csv", "artifacts/config", "checkpoints/step-1.pt"):
        ended.get(path, tmp_path / "one", node=1)
    assert texts(tmp_path / "one") == {
        "loss.csv": "of node 1",
        "config": "the same",
        "step-1.pt": "weights",
    }
    ended.get("artifacts/runs", tmp_path / "both")
    assert texts(tmp_path / "both") == {
        "runs/loss.csv": "of node 0",
        "node-1/runs/loss.csv": "of node 1",
    }


def test_a_file_where_another_node_has_a_folder_is_copied_below_its_node(job, tmp_path):
    sends(job, 0, {"best": "a file"})
    sends(job, 1, {"best/model": "in a folder"})
    job.end()

    attach(job.name).get("artifacts/best", tmp_path / "home")
    assert texts(tmp_path / "home") == {"best": "a file", "node-1/best/model": "in a folder"}


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_a_second_nodes_file_is_completed_where_it_was_synced(job, written, tmp_path, first, second):
    (written / "runs").mkdir()
    (written / "runs" / "loss.csv").write_text("of")
    local = backend("local")
    going = links.Sync(local, local.snapshot(job.name), "artifacts/runs", tmp_path / "synced")
    for node in (first, second):
        runs(job, node)
        going.step()
    assert texts(tmp_path / "synced") == {"loss.csv": "of", f"node-{second}/loss.csv": "of"}

    for node in (0, 1):
        sends(job, node, {"runs/loss.csv": f"of node {node}"})
    job.end()
    going.step()
    going.close()
    assert texts(tmp_path / "synced") == {
        "loss.csv": f"of node {first}",
        f"node-{second}/loss.csv": f"of node {second}",
    }
    assert going.trouble == ""


def test_what_could_not_be_copied_is_named_once_all_else_is_here(job, written, tmp_path, monkeypatch):
    (written / "loss.csv").write_text("1.0")
    (job.folder.checkpoints).mkdir()
    monkeypatch.setenv(checkpoints.CHECKPOINTS, str(job.folder.checkpoints))
    (job.folder.checkpoints / "step-1.pt").write_text("weights")
    runs(job, 0)

    with pytest.raises(ResultError, match=r"^node 1 didn't list its files: it hasn't started$"):
        attach(job.name).get("artifacts", tmp_path / "home")
    assert texts(tmp_path / "home") == {"artifacts/loss.csv": "1.0"}
    attach(job.name).get("artifacts", tmp_path / "home", node=0)
    attach(job.name).get("checkpoints", tmp_path / "home")  # node 1 has no others

    (written / "more.csv").write_text("2.0")
    monkeypatch.setattr(files, "MOST_FILES", 1)
    with pytest.raises(ResultError, match=r"^artifacts has more files than the 10,000 .*: name a folder"):
        attach(job.name).get("artifacts", tmp_path / "home", node=0)
    local = backend("local")
    going = links.Sync(local, local.snapshot(job.name), "artifacts", tmp_path / "synced")
    assert going.step()
    assert going.trouble == "node 0 has more files than the 10,000 that it lists: sync a folder of them"
    going.close()


def test_all_files_of_an_ended_job_are_copied(job, tmp_path, monkeypatch):
    monkeypatch.setattr(host_files, "MOST_FILES", 2)
    sends(job, 0, {f"{number}.csv": "x" for number in range(2)} | {"n" * 255: "as long as a name may be"})
    job.end()

    assert attach(job.name).files().more
    assert len(attach(job.name).get("artifacts", tmp_path / "home")) == 3


def test_two_syncs_to_one_folder_do_not_mix_what_they_copy(job, written, tmp_path, monkeypatch):
    (written / "events").write_bytes(b"one")
    runs(job, 0)
    local, read = backend("local"), host_files.Reader.read
    first, second = (links.Sync(local, local.snapshot(job.name), "", tmp_path / "home") for _ in range(2))
    troubles = []

    def overlapped(self, *args):
        monkeypatch.setattr(host_files.Reader, "read", read)
        assert second.step()
        troubles.append(second.trouble)
        return read(self, *args)

    for content in (b"one", b"one, two"):
        (written / "events").write_bytes(content)
        monkeypatch.setattr(host_files.Reader, "read", overlapped)
        assert first.step()
        assert (tmp_path / "home/artifacts/events").read_bytes() == content
    assert troubles == [f"another sync is copying to {tmp_path / 'home'}"] * 2
    assert (first.copied, first.trouble) == (8, "")

    assert second.step()
    assert (second.copied, second.trouble) == (0, "")
    first.close()
    second.close()


def interleaved(monkeypatch, step):
    """Take a step once, between a file's parts that a node sends."""
    read = host_files.Reader.read

    def overlapped(self, *args):
        monkeypatch.setattr(host_files.Reader, "read", read)
        for number, part in enumerate(read(self, *args)):
            if number == 1:
                step()
            yield part

    monkeypatch.setattr(host_files.Reader, "read", overlapped)


@pytest.mark.parametrize("begun", [b"", b"one"])
def test_a_sync_leaves_a_file_alone_while_it_is_being_copied(job, written, tmp_path, monkeypatch, begun):
    home, troubles = tmp_path / "home", []
    (written / "events").write_bytes(b"one, two")
    (written / "other").write_bytes(b"other")
    if begun:
        home.mkdir()
        (home / "events").write_bytes(begun)
    runs(job, 0)
    local = backend("local")
    going = links.Sync(local, local.snapshot(job.name), "artifacts", home)

    def sync():
        assert going.step()
        troubles.append(going.trouble)

    interleaved(monkeypatch, sync)
    attach(job.name).get("artifacts/events", home, node=0)

    assert troubles == [f"artifacts/events is being copied to {home / 'events'} already"]
    assert going.step()
    going.close()
    assert going.trouble == ""
    assert (home / "events").read_bytes() == b"one, two"
    assert sorted(os.listdir(home)) == ["events", "other"]


def test_a_file_is_not_copied_while_a_sync_writes_it(job, written, tmp_path, monkeypatch):
    (written / "events").write_bytes(b"one")
    runs(job, 0)
    local, refused = backend("local"), []
    going = links.Sync(local, local.snapshot(job.name), "artifacts", tmp_path / "home")

    def copy():
        with pytest.raises(ResultError, match=r"artifacts/events is being copied to .*events already"):
            attach(job.name).get("artifacts/events", tmp_path / "home", node=0)
        refused.append(True)

    interleaved(monkeypatch, copy)
    assert going.step()
    going.close()

    assert refused
    assert texts(tmp_path / "home") == {"events": "one"}


def test_an_ended_jobs_file_is_copied_once_at_a_time(job, tmp_path, monkeypatch):
    sends(job, 0, {"loss.csv": "1.0"})
    job.end()
    settle, refused = os.link, []

    def overlapped(*paths):
        monkeypatch.setattr(os, "link", settle)
        with pytest.raises(ResultError, match=r"artifacts/loss.csv is being copied to .* already"):
            attach(job.name).get("artifacts/loss.csv", tmp_path / "home")
        refused.append(True)
        settle(*paths)

    monkeypatch.setattr(os, "link", overlapped)
    attach(job.name).get("artifacts/loss.csv", tmp_path / "home")

    assert refused
    assert texts(tmp_path / "home") == {"loss.csv": "1.0"}


def test_of_a_file_that_can_not_be_read_nothing_is_left_behind(job, written, tmp_path, monkeypatch):
    (written / "loss.csv").write_text("1.0")
    runs(job, 0)
    local, read = backend("local"), host_files.Reader.read
    going = links.Sync(local, local.snapshot(job.name), "artifacts", tmp_path / "home")
    monkeypatch.setattr(host_files.Reader, "read", lambda self, path, *args: read(self, f"{path}-x", *args))

    with pytest.raises(ResultError, match=r"loss.csv-x can't be read"):
        attach(job.name).get("artifacts/loss.csv", tmp_path / "home", node=0)
    assert going.step()
    going.close()

    assert texts(tmp_path / "home") == {}


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_a_checkpoint_that_all_nodes_share_is_synced_once(job, tmp_path, monkeypatch, first, second):
    job.folder.checkpoints.mkdir()
    monkeypatch.setenv(checkpoints.CHECKPOINTS, str(job.folder.checkpoints))
    (job.folder.checkpoints / "step-1.pt").write_text("weights")
    local = backend("local")
    going = links.Sync(local, local.snapshot(job.name), "checkpoints", tmp_path / "synced")
    for node in (first, second):
        runs(job, node)
        going.step()
        assert texts(tmp_path / "synced") == {"step-1.pt": "weights"}
    assert going.copied == len("weights")

    sends(job, 1, {"loss.csv": "1.0"})
    (job.folder.checkpoints / "step-1.pt").write_text("rewritten")
    job.end()
    going.step()
    going.close()
    assert texts(tmp_path / "synced") == {"step-1.pt": "rewritten"}


def test_a_file_copied_while_its_job_ran_is_completed_once_it_has_ended(job, tmp_path):
    (tmp_path / "loss.csv").write_text("1.0\n")
    sends(job, 0, {"loss.csv": "1.0\n0.5\n"})
    job.end()
    ended = attach(job.name)

    (copied,) = ended.get("artifacts/loss.csv", tmp_path)
    assert (copied.size, copied.kept, copied.growing) == (8, 4, False)
    assert (tmp_path / "loss.csv").read_text() == "1.0\n0.5\n"
    (copied,) = ended.get("artifacts/loss.csv", tmp_path)
    assert copied.kept == 8

    for other in ("1.0\n0.4", "1.0\n0.5\n0.3\n"):
        (tmp_path / "loss.csv").write_text(other)
        with pytest.raises(SpecError, match=r"a folder without another file named loss\.csv"):
            ended.get("artifacts/loss.csv", tmp_path)
        assert (tmp_path / "loss.csv").read_text() == other


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_on_a_file_system_without_links_files_arrive_and_replace_no_other(job, tmp_path, monkeypatch, code):
    sends(job, 0, {"loss": "1", "kept": "new"})
    job.end()
    ended = attach(job.name)  # first: a job's folder has links of its own

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "kept").write_text("another")

    ended.get("artifacts/loss", tmp_path / "home")
    with pytest.raises(SpecError, match="a folder without another file named kept"):
        ended.get("artifacts/kept", tmp_path / "home")

    assert texts(tmp_path / "home") == {"loss": "1", "kept": "another"}
