"""A node's archive of artifacts isn't trusted: which entries are extracted, and which are refused."""

import io
import os
import stat
import time
import zipfile

import pytest

from nbtorchjob import ResultError, SpecError, attach
from nbtorchjob.backends import backend, downloads
from nbtorchjob.runtime.api import artifacts
from nbtorchjob.runtime.api.artifacts import MOST_BYTES, MOST_FILES
from tests.backends.local.acted import Acted


@pytest.fixture
def job():
    """Yield a job with two nodes and a folder that the test writes."""
    job = Acted(nodes=2)
    yield job
    job.remove()


def zipped(files, how=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as file:
        for entry, data in files:
            file.writestr(entry, data)
    return out.getvalue()


def sends(job, data, node=0, attempt=1):
    path = job.folder.artifacts(node, attempt)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    job.folder.emit(
        "ArtifactsReady", node=node, attempt=attempt, ref=str(path), size=len(data), files=1, total=len(data)
    )
    return path


def paths(job, **how):
    return [artifact.path for artifact in attach(job.name).artifacts(**how)]


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name",
    ["../up", "a/../../up", "/etc/absolute", "a//b", "./a", "a/", "a\nb", "\x1b[2J", "\u202egnp"],
)
def test_a_name_that_leads_elsewhere_or_acts_on_a_terminal_is_refused(job, tmp_path, name):
    sends(job, zipped([("fine", b"x"), (name, b"x")]))

    with pytest.raises(ResultError, match="isn't a file that a node sends"):
        attach(job.name).artifacts(tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_backslash_is_a_character_of_a_name_and_leads_nowhere_where_an_archive_is_unpacked(job, tmp_path):
    names = ["P($\\alpha$).png", "..\\up", "runs/a\\..\\..\\b"]
    sends(job, zipped((name, b"x") for name in ["loss.csv", *names]))

    attach(job.name).artifacts(tmp_path / "home")

    assert [(tmp_path / "home" / name).read_text() for name in names] == ["x"] * 3
    state = backend("local").snapshot(job.name)
    whole = b"".join(downloads.zip_artifacts(backend("local"), state))
    with zipfile.ZipFile(io.BytesIO(whole)) as file:  # as a reader may on Windows
        assert sorted(file.namelist()) == [
            f"{job.name}/.._up",
            f"{job.name}/P($_alpha$).png",
            f"{job.name}/loss.csv",
            f"{job.name}/runs/a_.._.._b",
        ]


def test_a_link_in_an_archive_is_a_file_here(job, tmp_path):
    sends(job, zipped([(link("link"), b"/etc/passwd")]))
    attach(job.name).artifacts(tmp_path)
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "/etc/passwd"


def test_an_archive_that_is_a_link_or_a_pipe_or_damaged_is_refused(job, tmp_path):
    whole = zipped([("file", b"content")])
    path = sends(job, whole)
    (tmp_path / "elsewhere").write_bytes(whole)
    for spoil in (
        lambda: path.symlink_to(tmp_path / "elsewhere"),
        lambda: os.mkfifo(path),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(whole[:-4]),
        lambda: path.write_bytes(whole + b"more"),
        lambda: path.write_bytes(b"\0" * 4096),
        lambda: path.write_bytes(zipped([("bomb", b"\0" * 10_000)], zipfile.ZIP_DEFLATED)),
    ):
        path.unlink()
        spoil()
        with pytest.raises(ResultError, match="can't be read"):
            attach(job.name).artifacts()
    path.unlink()
    with pytest.raises(ResultError, match="are gone"):
        attach(job.name).artifacts()


def test_a_content_that_was_changed_is_not_copied(job, tmp_path):
    sends(job, zipped([("file", b"content")]).replace(b"content", b"CONTENT"))
    with pytest.raises(ResultError, match="Bad CRC-32"):
        attach(job.name).artifacts(tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


def test_a_directory_that_is_longer_than_any_is_not_read(job):
    whole = zipped([("file", b"content")])
    end = whole[-22:]
    for change in (
        end[:12] + (1 << 30).to_bytes(4, "little") + end[16:],
        b"PK\6\7" + b"\0" * 16 + end,
    ):
        sends(job, whole[:-22] + change)
        with pytest.raises(ResultError, match="too long"):
            attach(job.name).artifacts()


def test_more_files_and_bytes_than_a_node_sends_are_refused(job):
    sends(job, zipped((str(n), b"") for n in range(MOST_FILES + 1)))
    with pytest.raises(ResultError, match="more than any node sends"):
        attach(job.name).artifacts()

    size = (MOST_BYTES + 1).to_bytes(4, "little")
    sends(job, zipped([("file", b"x" * 7)]).replace((7).to_bytes(4, "little"), size))
    with pytest.raises(ResultError, match="more than any node sends"):
        attach(job.name).artifacts()


def test_where_a_file_of_one_node_is_a_folder_of_another_both_are_there(job, tmp_path):
    sends(job, zipped([("a", b"0"), ("b/c", b"0"), ("same", b"="), ("node-1/d", b"0"), ("d", b"0")]))
    sends(job, zipped([("a/x", b"1"), ("b", b"1"), ("same", b"="), ("d", b"1")]), node=1)

    attach(job.name).artifacts(tmp_path)

    files = {
        str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert files == {
        "a": "0",
        "b/c": "0",
        "d": "0",
        "same": "=",
        "node-1/d": "0",
        "node-1/a/x": "1",
        "node-1/b": "1",
        "node-1-2/d": "1",
    }


def test_a_file_that_is_there_already_is_never_replaced(job, tmp_path):
    sends(job, zipped([("new", b"new"), ("same", b"same"), ("theirs", b"theirs")]))
    home = tmp_path / "home"
    home.mkdir()
    (home / "same").write_text("same")
    (home / "theirs").write_text("mine")

    with pytest.raises(SpecError, match="a folder without other files of these names: theirs"):
        attach(job.name).artifacts(home)
    assert sorted(path.name for path in home.iterdir()) == ["same", "theirs"]

    (home / "theirs").unlink()
    for _ in range(2):
        assert len(attach(job.name).artifacts(home)) == 3
    assert (home / "theirs").read_text() == "theirs"


def test_a_link_in_the_folder_is_not_written_through(job, tmp_path):
    sends(job, zipped([("file", b"content")]))
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="a folder without other files"):
        attach(job.name).artifacts(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_can_not_be_written_to_is_named(job, tmp_path):
    sends(job, zipped([("file", b"content")]))
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="can't be written to"):
        attach(job.name).artifacts(tmp_path / "file")


def test_no_folder_is_made_for_nothing(job, tmp_path):
    assert attach(job.name).artifacts(tmp_path / "home") == ()
    assert not (tmp_path / "home").exists()


def test_of_several_attempts_the_newest_that_left_any_is_meant(job):
    assert paths(job) == []
    sends(job, zipped([("first", b"")]))
    sends(job, zipped([("second", b"")]), attempt=2)
    assert paths(job) == ["second"]
    assert paths(job, attempt=1) == ["first"]
    with pytest.raises(SpecError, match="got 3, but it must be one that left artifacts: 1 and 2"):
        paths(job, attempt=3)


def test_an_archive_of_all_has_them_below_the_jobs_name(job):
    state = backend("local").snapshot(job.name)
    with pytest.raises(ResultError, match="left no artifacts"):
        downloads.zip_artifacts(backend("local"), state)

    script = zipfile.ZipInfo("run.sh")
    script.external_attr = (stat.S_IFREG | 0o755) << 16
    sends(job, zipped([("runs/events", b"x" * 300_000), ("empty", b""), (script, b"")]))
    state = backend("local").snapshot(job.name)
    whole = b"".join(downloads.zip_artifacts(backend("local"), state))
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        assert {name: file.read(name) for name in file.namelist()} == {
            f"{job.name}/empty": b"",
            f"{job.name}/run.sh": b"",
            f"{job.name}/runs/events": b"x" * 300_000,
        }
        assert [info.filename for info in file.infolist() if info.external_attr >> 16 & stat.S_IXUSR] == [
            f"{job.name}/run.sh"
        ]


@pytest.fixture
def zone(monkeypatch):
    """Return a function that moves this process to a time zone, until the test's end."""

    def move(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.delenv("TZ", raising=False)
    time.tzset()


def test_an_artifact_keeps_its_time_in_another_zone(tmp_path, zone):
    folder, packed = tmp_path / "artifacts", tmp_path / "a.zip"
    folder.mkdir()
    (folder / "model").write_text("weights")
    os.utime(folder / "model", (1_700_000_000, 1_700_000_000))

    zone("UTC")
    artifacts._pack({"model": 7}, str(folder), str(packed), MOST_BYTES, [], [])
    zone("Asia/Tokyo")
    with zipfile.ZipFile(packed) as archive:
        (entry,) = archive.infolist()

    stored = downloads.StoredArtifact(downloads.Artifact("model", 7, 0, 1), packed, entry)
    assert stored.modified == 1_700_000_000
