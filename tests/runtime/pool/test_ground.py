"""What a job in a pool leaves among the files of its node, and what it has changed there."""

import os

import pytest

from nbtorchjob.runtime.pool.ground import Ground


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a home with a file of the image's, beside a temporary folder with the node's own one."""
    home, own = tmp_path / "home", tmp_path / "tmp" / "nbtorchjob-1"
    (home / "of-image").mkdir(parents=True)
    (home / "of-image" / "file").write_text("as it was")
    own.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(own.parent))
    monkeypatch.chdir(home)
    return home


def all_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_what_a_job_has_made_is_removed(home, tmp_path):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    before = all_below(tmp_path)
    (home / "of-image" / "new").write_text("left")
    (home / ".cache" / "deep").mkdir(parents=True)
    (home / ".cache" / "deep" / "file").write_text("left")
    (tmp_path / "tmp" / "link").symlink_to(home / "of-image")

    assert ground.restore() == []
    assert all_below(tmp_path) == before
    assert (home / "of-image" / "file").read_text() == "as it was"


def test_the_nodes_own_folder_is_left_alone_but_for_what_ranks_cache_there(home, tmp_path):
    own = tmp_path / "tmp" / "nbtorchjob-1"
    ground = Ground(str(own))
    (own / "round-1").mkdir()
    (own / "compiled" / "inductor").mkdir(parents=True)

    assert ground.restore() == []
    assert all_below(own) == ["compiled", "round-1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("otherwise"),
        lambda file: file.unlink(),
        lambda file: file.chmod(0o600),
        lambda file: os.replace(file, file.with_name("moved")),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_what_a_job_has_changed_of_the_image_is_named(home, tmp_path, change):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    change(home / "of-image" / "file")

    assert ground.restore() == [str(home / "of-image" / "file")]


def test_what_is_mounted_is_left_alone(home, tmp_path):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"), [str(home / "of-image")])
    (home / "of-image" / "checkpoint").write_text("to be kept")
    (home / "new").write_text("left")

    assert ground.restore() == []
    assert all_below(home) == ["of-image", "of-image/checkpoint", "of-image/file"]


def test_bytecode_that_python_replaces_is_no_change(home, tmp_path):
    bytecode = home / "of-image" / "__pycache__" / "file.pyc"
    bytecode.parent.mkdir()
    bytecode.write_bytes(b"out of date")
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    bytecode.write_bytes(b"up to date")

    assert [ground.restore(), ground.restore()] == [[], []]
    assert not bytecode.exists()


def test_a_file_whose_times_were_set_back_has_changed_all_the_same(home, tmp_path):
    file = home / "of-image" / "file"
    status = file.stat()
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    file.write_text("as it is.")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert ground.restore() == [str(file)]
