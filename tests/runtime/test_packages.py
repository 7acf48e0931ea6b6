"""What a job asks for is installed beside what is there already, and nothing else is."""

import os
import sys
import zipfile

import pytest

from nbtorchjob.runtime import packages
from nbtorchjob.runtime.payload import PayloadError


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Put back what an installation changes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def wheel(folder, name, requires=""):
    """Write the smallest wheel there can be."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"text = 'I am {name}'\n")
        info = f"{name}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return str(path)


def test_a_package_is_found_by_this_process_and_those_it_starts(folder):
    target = folder / "packages"
    packages.install([wheel(folder, "nbtj_fresh")], str(target))
    assert (target / "nbtj_fresh.py").is_file()
    assert sys.path[1] == str(target)
    assert os.environ["PYTHONPATH"] == f"{target}:/elsewhere"


def test_what_the_image_has_is_not_installed_again(folder):
    target = folder / "packages"
    packages.install([wheel(folder, "nbtj_fresh", "cloudpickle>=1")], str(target))
    assert not list(target.glob("cloudpickle*"))
    packages.install(["cloudpickle"], str(folder / "nothing new"))
    assert [path.name for path in (folder / "nothing new").iterdir()] == ["report.json"]


def test_without_pip_nothing_can_be_installed(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # this Python has pip
    with pytest.raises(PayloadError, match="no pip to install rich"):
        packages.install(["rich"], str(folder / "packages"))


def test_what_pip_can_not_find_is_said(folder, capfd):
    with pytest.raises(PayloadError, match="couldn't install nbtj-no-such-package"):
        packages.install(["nbtj-no-such-package"], str(folder / "packages"))
    assert "No matching distribution" in capfd.readouterr().err
