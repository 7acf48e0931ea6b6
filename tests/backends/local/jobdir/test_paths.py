"""Where the local backend keeps things."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob import NBTorchJobError
from nbtorchjob.backends.local.jobdir import paths
from nbtorchjob.frontends.cli import main
from nbtorchjob.machine import folders


def asked(cwd):
    """Ask a new Python in that folder where its pool is; give the last line that it wrote."""
    ask = "from nbtorchjob.backends.local.jobdir import paths; print(paths.pool_dir())"
    done = subprocess.run([sys.executable, "-c", ask], cwd=cwd, capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).splitlines()[-1]


@pytest.mark.parametrize("where", [paths.jobs_dir, lambda: paths.pool_dir().parent, paths.pool_dir])
def test_what_is_kept_is_this_users_alone_under_any_umask(tmp_path, monkeypatch, where):
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        path = where()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700

    path.chmod(0o755)  # as a later version, or a person, may leave it
    assert where().stat().st_mode & 0o777 == 0o700

    path.chmod(0o777)
    with pytest.raises(NBTorchJobError, match=rf"{path} must be a folder that is yours alone .* by others"):
        where()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("name", ["", "jobs", "pool"])
def test_what_is_somebody_elses_is_not_taken(tmp_path, monkeypatch, name):
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "state" / name
    path.mkdir(parents=True)
    os.chown(path, 12345, 12345)

    with pytest.raises(NBTorchJobError, match=f"{path}.* belongs to user 12345"):
        paths.jobs_dir() if name != "pool" else paths.pool_dir()


def test_a_state_folder_that_others_may_write_to_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path))
    tmp_path.chmod(0o1777)

    with pytest.raises(NBTorchJobError, match=r"jobs can't be kept in .* only you can write to"):
        paths.jobs_dir()
    assert list(tmp_path.glob("jobs")) == []


@pytest.mark.parametrize("path", ["torch.py", "torch/__init__.py"])
def test_a_file_that_hides_torch_is_named(folder, path):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).touch()

    told = f"{folder / path} hides the installed torch: rename it"
    assert asked(folder) == f"nbtorchjob.errors.SubmitError: {told}"


def test_another_version_gets_a_pool_of_its_own(folder):
    other = shutil.copytree(Path(nbtorchjob.__file__).parent, folder / "nbtorchjob")
    (other / "__init__.py").touch()

    assert asked("/") == str(paths.pool_dir()) != asked(folder)


@pytest.mark.parametrize("words", [["run", "train.py:f"], ["list"], ["gc"]])
def test_a_state_folder_that_can_not_be_written_is_told_in_one_line(folder, monkeypatch, capfd, words):
    (folder / "train.py").write_text("def f(): pass")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(folders.STATE, "/sys/jobs")  # where not even root can make a folder
    monkeypatch.setattr(sys, "path", [*sys.path])  # a script's folder is put there
    main(words)

    [line] = capfd.readouterr().err.splitlines()
    assert "jobs can't be kept in /sys/jobs (" in line
    assert line.endswith(f"): set {folders.STATE} to a folder that you can write to")
