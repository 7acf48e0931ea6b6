"""Where the local backend keeps things."""

import sys
from pathlib import Path

import pytest

from nbtorchjob import SubmitError
from nbtorchjob.backends.local import places


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Give the folder for sockets of a state folder whose path is too long for them."""
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / ("long" * 30)))
    short = tmp_path / "short"
    monkeypatch.setattr(places, "_short_dir", lambda: short)
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


@pytest.mark.parametrize("path", ["torch.py", "torch/__init__.py"])
def test_a_file_that_hides_torch_is_named(folder, monkeypatch, path):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    places._environment.cache_clear()

    with pytest.raises(SubmitError, match=f"{folder / path} hides the installed torch"):
        places.pool_dir()
