"""Files that ranks have written so far, listed and copied while they run."""

import errno
import os
import sys
import time
from typing import Any

import cloudpickle
import pytest

from nbtorchjob import Elastic, ResultError, SpecError, artifacts_dir, checkpoint_dir, submit
from nbtorchjob.backends import files, links
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.errors import AskError, UnreachableError
from nbtorchjob.runtime.api.checkpoints import PARTIAL
from tests.backends.kubernetes.stage import until

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

BIG = os.urandom(3_000_000)


def writes(go, big):
    """Write files, change some once ``{go}-grow`` and ``{go}-anew`` exist, and end once ``go`` does."""
    node, folder = int(os.environ["GROUP_RANK"]), artifacts_dir()
    (folder / "runs").mkdir(exist_ok=True)
    events = folder / "runs" / f"events-{node}"
    events.write_text("one\n")
    (folder / "loss").write_text(f"{node}" * 10)
    (folder / "big").write_bytes(big)
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "latest").symlink_to("runs")
    os.mkfifo(folder / "pipe")
    (checkpoint_dir() / "step-1.pt").write_text("weights")
    (folder / "ready").touch()
    while not os.path.exists(go):
        if os.path.exists(f"{go}-grow") and events.stat().st_size == 4:
            with events.open("a") as file:  # rewriting it would leave it empty for a moment
                file.write("two\n")
        if os.path.exists(f"{go}-anew") and not (folder / "anew").exists():
            (folder / "big").write_bytes(b"anew" + big[4:])
            (folder / "anew").touch()
        time.sleep(0.02)
    (folder / "last").write_text("words")  # the node's archive brings it


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    go = tmp_path_factory.mktemp("go") / "go"
    job: Any = submit(writes, str(go), BIG, spec=Elastic(nnodes=2, nproc_per_node=1))
    job.go = go
    until(lambda: sum(file.path == "artifacts/ready" for file in job.files().files) == 2)
    yield job
    go.touch()
    job.wait(60)
    job.delete()


def test_what_two_nodes_have_written_is_listed(job):
    listing = job.files()

    assert [(file.path, file.size, file.node) for file in listing.files] == [
        ("artifacts/big", len(BIG), 0),
        ("artifacts/big", len(BIG), 1),
        ("artifacts/loss", 10, 0),
        ("artifacts/loss", 10, 1),
        ("artifacts/ready", 0, 0),
        ("artifacts/ready", 0, 1),
        ("artifacts/runs/events-0", 4, 0),
        ("artifacts/runs/events-1", 4, 1),
        ("checkpoints/step-1.pt", 7, 0),
    ]
    assert (listing.trouble, listing.more) == ({}, False)
    assert {file.path for file in job.files("artifacts/runs").files} == {
        "artifacts/runs/events-0",
        "artifacts/runs/events-1",
    }
    assert [file.node for file in job.files("artifacts/loss").files] == [0, 1]
    assert job.files("checkpoints/none").files == ()
    for wrong in ("../x", "artifacts/../../x", "logs", "/etc"):
        with pytest.raises(SpecError, match="artifacts/… or checkpoints/…"):
            job.files(wrong)


def test_a_folder_is_copied_with_a_second_nodes_file_of_one_name_below_its_own(job, tmp_path):
    copied = job.get("artifacts", tmp_path / "home")

    assert {
        str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*") if path.is_file()
    } == {
        *("artifacts/big", "artifacts/loss", "artifacts/ready", "artifacts/runs/events-0"),
        *(
            "artifacts/runs/events-1",
            "node-1/artifacts/big",
            "node-1/artifacts/loss",
            "node-1/artifacts/ready",
        ),
    }
    assert (tmp_path / "home/node-1/artifacts/loss").read_text() == "1" * 10
    assert not any(copy.growing or copy.kept for copy in copied)
    (copy,) = job.get("artifacts/loss", tmp_path, node=1)[:1]
    assert (copy.path, copy.path.read_text()) == (tmp_path / "loss", "1" * 10)


def test_a_copy_that_was_cut_off_goes_on_where_it_stopped(job, tmp_path, monkeypatch):
    partial = tmp_path / f".big{PARTIAL}"
    partial.write_bytes(BIG[:1_000_000])
    (copied,) = job.get("artifacts/big", tmp_path, node=0)
    assert (copied.kept, (tmp_path / "big").read_bytes() == BIG) == (1_000_000, True)
    assert not partial.exists()

    partial.write_bytes(b"other" * 1000)  # of an earlier job, say
    (tmp_path / "big").unlink()
    (copied,) = job.get("artifacts/big", tmp_path, node=0)
    assert (copied.kept, (tmp_path / "big").read_bytes() == BIG) == (0, True)

    (tmp_path / "big").unlink()
    monkeypatch.setattr(files, "_AGAIN_S", 0.0)
    read, left = files.Reader.read, [5, 2, 100]  # parts until the connection is cut

    def cut(self, *args):
        count = left.pop(0)
        for number, part in enumerate(read(self, *args)):
            if number == count:
                raise AskError("the connection to it was cut")
            yield part

    monkeypatch.setattr(files.Reader, "read", cut)
    (copied,) = job.get("artifacts/big", tmp_path, node=0)
    assert ((tmp_path / "big").read_bytes() == BIG, left) == (True, [])

    (tmp_path / "big").unlink()
    left[:] = [2, *[0] * 8]
    with pytest.raises(AskError, match=r"was cut; 262 kB of it are kept, and the same command continues"):
        job.get("artifacts/big", tmp_path, node=0)
    assert partial.read_bytes() == BIG[: 1 << 18]


def test_a_running_jobs_file_is_copied_to_a_file_system_without_links(job, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    (copied,) = job.get("artifacts/big", tmp_path / "home", node=0)

    assert copied.path.read_bytes()[4:] == BIG[4:]
    assert os.listdir(tmp_path / "home") == ["big"]


def test_what_is_behind_a_link_is_copied_to_where_it_was_asked_for(job, tmp_path):
    (copied,) = job.get("artifacts/latest/events-0", tmp_path / "here")
    assert (copied.path, copied.path.read_text()) == (tmp_path / "here" / "events-0", "one\n")
    with pytest.raises(SpecError, match="artifacts/… or checkpoints/…"):
        job.get("artifacts/./runs/events-0", tmp_path)


def test_a_node_that_names_files_elsewhere_has_them_left_out(job, tmp_path, monkeypatch):
    rows = [
        ["artifacts/abcde/tmp/pwned", 4, 0.0],
        ["artifacts/runs/x/../../y", 1, 0.0],
        ["artifacts/runsX", 1, 0.0],
        ["artifacts/runs/P($\\alpha$).png", 1, 0.0],
    ]
    answer = NodeAnswer(0, ({"files": rows}, {"listed": 4}))
    monkeypatch.setattr(job._backend, "ask", lambda *args, **options: iter([answer]))

    assert [file.path for file in job.files("artifacts/runs").files] == ["artifacts/runs/P($\\alpha$).png"]


def test_two_copies_of_a_file_at_once_are_not_mixed(job, tmp_path, monkeypatch):
    second: list[None] = []

    def one_more(self, *args):
        if not second:
            second.append(None)
            with pytest.raises(ResultError, match=r"is being copied to .*big already"):
                job.get("artifacts/big", tmp_path, node=0)
        return read(self, *args)

    read = files.Reader.read
    monkeypatch.setattr(files.Reader, "read", one_more)
    job.get("artifacts/big", tmp_path, node=0)
    assert (second, (tmp_path / "big").read_bytes() == BIG) == ([None], True)


def test_a_file_here_keeps_what_it_had_if_what_comes_is_damaged(job, tmp_path, monkeypatch):
    (tmp_path / "loss").write_text("0000")
    read = files.Reader.read

    def damaged(self, *args):
        yield from read(self, *args)
        self.end = ("", False)

    monkeypatch.setattr(files.Reader, "read", damaged)
    with pytest.raises(ResultError, match="was damaged on its way"):
        job.get("artifacts/loss", tmp_path, node=0)
    assert (tmp_path / "loss").read_text() == "0000"


def test_a_file_that_goes_before_it_is_read_keeps_no_other_from_coming(job, tmp_path, monkeypatch):
    read = files.Reader.read

    def gone(self, path, *args):
        return read(self, f"{path}-gone" if path == "artifacts/loss" else path, *args)

    monkeypatch.setattr(files.Reader, "read", gone)
    with pytest.raises(ResultError, match=r"loss-gone can't be read: No such file"):
        job.get("artifacts", tmp_path / "copied", node=0)
    assert (tmp_path / "copied" / "artifacts" / "runs" / "events-0").exists()

    going = links.Sync(job._backend, job.state, "artifacts", tmp_path / "synced")
    assert going.step()
    assert (tmp_path / "synced" / "runs" / "events-0").exists()
    assert going.trouble == ""
    assert going.step()
    assert "loss-gone can't be read" in going.trouble
    going.close()


def test_a_file_here_is_completed_or_left_alone(job, tmp_path):
    (tmp_path / "loss").write_text("0000")
    (copied,) = job.get("artifacts/loss", tmp_path, node=0)
    assert (copied.kept, (tmp_path / "loss").read_text()) == (4, "0" * 10)
    (copied,) = job.get("artifacts/loss", tmp_path, node=0)
    assert copied.kept == 10

    with pytest.raises(SpecError, match="a folder without another file named loss"):
        job.get("artifacts/loss", tmp_path, node=1)
    assert (tmp_path / "loss").read_text() == "0" * 10


def test_what_is_not_there_or_may_not_be_read_is_one_line(job, tmp_path):
    for missing in ("artifacts/none", "artifacts/passwd", "artifacts/pipe"):
        with pytest.raises(ResultError, match=f"has no file '{missing}' now; %torchjob files"):
            job.get(missing, tmp_path)
    with pytest.raises(SpecError, match="path"):
        job.get("", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="can't be written to"):
        job.get("artifacts/loss", tmp_path / "file")
    reader = files.Reader(job._backend, job.info.address, 0)
    for secret in ("artifacts/passwd", "artifacts/../../key", "artifacts/pipe", "nowhere/x"):
        with pytest.raises(ResultError):
            next(reader.read(secret, 0, 0, ""))
    (file,) = reader.list("checkpoints").files  # it is still usable
    assert file.path == "checkpoints/step-1.pt"
    reader.close()


def test_a_file_that_grows_is_completed(job, tmp_path):
    job.get("artifacts/runs/events-0", tmp_path)
    job.go.with_name("go-grow").touch()
    until(lambda: job.files("artifacts/runs/events-0").files[0].size == 8)

    (copied,) = until(
        lambda: [copy for copy in job.get("artifacts/runs/events-0", tmp_path) if copy.size == 8]
    )
    assert copied.path.read_text() == "one\ntwo\n"


def test_a_folder_is_kept_in_step_until_the_job_has_ended(job, tmp_path, monkeypatch):
    monkeypatch.setattr(links, "EVERY_S", 0.05)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events-0").write_text("one\n")  # as from an earlier try
    (tmp_path / "loss").write_text("another job's")
    going = job.sync(tmp_path, "artifacts")
    until(lambda: (tmp_path / "node-1" / "loss").exists())

    assert (tmp_path / "big").read_bytes() == BIG
    assert (tmp_path / "loss").read_text() == "0" * 10
    until((tmp_path / "runs" / "events-1").exists)
    job.go.with_name("go-anew").touch()  # with the same size and the same end
    until(lambda: (tmp_path / "big").read_bytes()[:4] == b"anew")
    job.go.with_name("go-grow").touch()
    until(lambda: (tmp_path / "runs" / "events-0").read_text() == "one\ntwo\n")
    assert not going.wait(0)

    stopped = job.sync(tmp_path / "other", "artifacts/runs")
    until(lambda: (tmp_path / "other" / "events-0").exists())
    stopped.stop()
    assert stopped.wait(60)
    with pytest.raises(SpecError, match="path"):
        job.sync(tmp_path, "logs")

    job.go.touch()
    assert going.wait(60)
    assert (tmp_path / "last").read_text() == "words"
    assert going.trouble == ""


def test_a_sync_goes_on_once_a_cluster_that_was_away_answers(act, here, tmp_path, monkeypatch):
    def away(name):
        raise UnreachableError("the API server can't be reached")

    job = act()
    job.folder.checkpoints.mkdir()
    (job.folder.checkpoints / "final.pt").write_text("weights")
    going = links.Sync(here, here.snapshot(job.name), "checkpoints", tmp_path)
    with monkeypatch.context() as outage:  # because this machine is never away
        outage.setattr(here, "brief_state", away)
        assert going.step()
        assert going.trouble == "the API server can't be reached"
    assert going.step()
    assert going.trouble == ""

    job.end()
    with monkeypatch.context() as outage:
        outage.setattr(here, "snapshot", away)
        assert going.step()
        assert going.trouble == "the API server can't be reached"
    assert not going.step()
    assert (tmp_path / "final.pt").read_text() == "weights"
    assert going.trouble == ""


@pytest.mark.parametrize(
    ("path", "below"), [("", "checkpoints/"), ("checkpoints", ""), ("checkpoints/final.pt", None)]
)
def test_a_synced_folder_has_the_checkpoints_that_ranks_wrote_last(act, here, tmp_path, path, below):
    job = act()
    job.folder.checkpoints.mkdir()
    (job.folder.checkpoints / "last.pt").write_text("step 2")
    (job.folder.checkpoints / "final.pt").write_text("weights")
    synced = tmp_path / "synced"
    if below is not None:  # as from an earlier look
        (synced / below).mkdir(parents=True)
        (synced / below / "last.pt").write_text("step 1")
    job.end()

    going = links.Sync(here, here.snapshot(job.name), path, synced)
    assert not going.step()
    assert going.trouble == ""
    assert (synced / (below or "") / "final.pt").read_text() == "weights"
    if below is not None:
        assert (synced / below / "last.pt").read_text() == "step 2"
    assert going.copied == (7 if below is None else 13)
    assert not [*synced.rglob(".*")]

    again = links.Sync(here, here.snapshot(job.name), path, synced)
    assert not again.step()
    assert again.copied == 0


def test_a_folder_is_not_kept_in_step_with_a_later_job_of_the_name(act, here, tmp_path):
    deleted = act()
    going = links.Sync(here, here.snapshot(deleted.name), "checkpoints", tmp_path / "synced")
    assert going.step()
    deleted.remove()
    later = act(deleted.name)
    later.folder.checkpoints.mkdir()
    (later.folder.checkpoints / "step-1.pt").write_text("weights")
    later.end()

    going.start()
    assert going.wait(60)
    assert going.trouble == f"{deleted.name} was deleted; another job has its name"
    assert not (tmp_path / "synced").exists()


def test_of_a_job_that_has_ended_what_came_home_is_listed_and_copied(job, tmp_path):
    job.go.touch()
    job.wait(60)

    listing = job.files()
    left = {(file.path, file.size, file.node) for file in listing.files}
    assert left >= {
        ("artifacts/big", len(BIG), 0),
        ("artifacts/last", 5, 0),
        ("artifacts/loss", 10, 0),
        ("checkpoints/step-1.pt", 7, 0),
    }
    assert all(abs(file.modified - time.time()) < 600 for file in listing.files)
    assert [file.path for file in job.files("artifacts/runs/events-0").files] == ["artifacts/runs/events-0"]
    assert job.files("artifacts/run").files == job.files("checkpoints/none").files == ()

    copied = job.get("artifacts/big", tmp_path)
    assert [(copy.path, copy.kept, copy.growing) for copy in copied] == [(tmp_path / "big", 0, False)]
    assert (tmp_path / "big").read_bytes()[4:] == BIG[4:]
    assert job.get("artifacts/big", tmp_path)[0].kept == len(BIG)
    job.get("checkpoints", tmp_path)
    assert (tmp_path / "checkpoints/step-1.pt").read_text() == "weights"
    (tmp_path / "big").write_text("another job's")
    with pytest.raises(SpecError, match="a folder without another file named big"):
        job.get("artifacts/big", tmp_path)
    with pytest.raises(ResultError, match="has no file 'artifacts/none' now"):
        job.get("artifacts/none", tmp_path)
    assert not [*tmp_path.glob(".*")]
