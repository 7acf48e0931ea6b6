"""Where the local backend keeps things."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob.backends.local import places


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Give the folder for sockets of a state folder whose path is too long for them."""
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / ("long" * 30)))
    short = tmp_path / "short"
    monkeypatch.setattr(places, "short_dir", lambda: short)  # the user's own may serve a pool of theirs
    return short


def test_a_long_path_has_a_short_stand_in_of_this_user_alone(short):
    assert places.socket_path() == places.socket_path()
    assert Path(places.socket_path()).parent == short
    assert short.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_stand_in_that_others_may_write_to_is_refused(short, tmp_path, kind):
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        short.symlink_to(tmp_path / "elsewhere")
    elif kind == "open":
        short.mkdir()
        short.chmod(0o777)
    else:
        short.touch()

    with pytest.raises(PermissionError, match="must be a folder that is yours alone"):
        places.socket_path()


def asked(cwd):
    """Ask a new Python in that folder where its pool is; give the last line that it wrote."""
    ask = "from nbtorchjob.backends.local import places; print(places.pool_dir())"
    done = subprocess.run([sys.executable, "-c", ask], cwd=cwd, capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).splitlines()[-1]


@pytest.mark.parametrize("path", ["torch.py", "torch/__init__.py"])
def test_a_file_that_hides_torch_is_named(folder, path):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).touch()

    told = f"{folder / path} hides the installed torch: rename it"
    assert asked(folder) == f"nbtorchjob.errors.SubmitError: {told}"


def test_another_version_gets_a_pool_of_its_own(folder):
    other = shutil.copytree(Path(nbtorchjob.__file__).parent, folder / "nbtorchjob")
    (other / "__init__.py").touch()

    assert asked("/") == str(places.pool_dir()) != asked(folder)
