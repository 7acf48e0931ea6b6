"""A project becomes a wheel here, the same one each time, and a wheel travels as it is."""

import hashlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from nbtorchjob.environment import wheels
from nbtorchjob.errors import SpecError, SubmitError
from tests.environment.built import project, wheel


def test_a_project_is_built_when_it_was_edited_and_told_by_what_it_installs(folder, tmp_path, monkeypatch):
    (tmp_path / "tokenize.py").write_text("raise ImportError('not the standard library')")
    monkeypatch.chdir(tmp_path)
    source = project(folder, "mylib", "1.2") / "mylib.py"
    build = wheels.wheel(folder)
    (folder / "build").mkdir()
    (folder / "build" / "left").touch()

    assert (build.name, build.distribution, build.version) == ("mylib-1.2-py3-none-any.whl", "mylib", "1.2")
    assert wheels.wheel(folder) is build
    os.utime(source, (10**9, 10**9))
    touched = wheels.wheel(folder)
    assert touched is not build
    assert touched.digest == build.digest
    source.write_text("edited = True\n")
    assert wheels.wheel(folder).digest != build.digest


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"pyproject.toml": '[[tool.uv.index]]\nname = "pytorch"\n[project]\nname = "My.Lib"'}, "my-lib"),
        ({"pyproject.toml": "project.name = 'my_lib'"}, "my-lib"),
        ({"pyproject.toml": '[tool.poetry]\nname = "my-lib"'}, "my-lib"),
        ({"pyproject.toml": "[build-system]", "setup.cfg": "[metadata]\nname = my-lib\n"}, "my-lib"),
        ({"setup.py": "", "setup.cfg": "[metadata]\nname: my_lib\nversion = 50%\n"}, "my-lib"),
        ({"setup.py": "setup(name='my-lib')"}, "folder"),  # only a build knows the name
        ({"pyproject.toml": "name = 'my-lib'\n[", "setup.cfg": "name = my-lib"}, "folder"),
        ({"pyproject.toml": "project = 3\ntool.poetry = []", "setup.cfg": "[metadata]\n"}, "folder"),
    ],
)
def test_a_project_has_the_name_that_its_files_declare_or_else_its_folders(files, name, folder):
    for file, text in files.items():
        (folder / file).write_text(text)

    assert wheels.distribution(folder) == name


def test_a_project_is_built_when_what_a_file_is_linked_to_was_edited(folder):
    source = project(folder / "project", "mylib") / "mylib.py"
    shared = source.replace(folder / "shared.py")
    source.symlink_to(shared)
    (folder / "project" / ".#mylib.py").symlink_to("nowhere")
    build = wheels.wheel(folder / "project")

    assert wheels.wheel(folder / "project") is build
    shared.write_text("edited = True\n")
    assert wheels.wheel(folder / "project").digest != build.digest


def test_what_a_build_fails_with_is_said(folder):
    broken = project(folder, "mylib", first='raise RuntimeError("no compiler here")')

    with pytest.raises(SubmitError, match=r"can't be built: RuntimeError: no compiler here$"):
        wheels.wheel(broken)


@pytest.mark.parametrize("name", ["mylib.whl", "mylib-1.0-py3-none-any.whl"])
def test_what_is_no_wheel_is_refused(name, folder):
    (folder / name).write_text("no archive")

    with pytest.raises(SpecError, match=r"mylib.*a wheel"):
        wheels.wheel(folder / name)


@pytest.mark.parametrize("tag", ["cp27-cp27m-manylinux1_x86_64", "py3-none-win_amd64"])
def test_a_wheel_that_no_node_can_install_is_refused(tag, folder):
    with pytest.raises(
        SpecError, match=rf"a wheel for Python 3\.\d+ on Linux, as nodes have \(it is for {tag}\)"
    ):
        wheels.wheel(wheel(folder, "mylib", tag=tag))


def test_a_wheel_is_taken_as_it_is(folder):
    path = wheel(folder, "My_Lib", "2.0")

    package = wheels.wheel(path)

    assert (package.name, package.distribution, package.data) == (path.name, "my-lib", path.read_bytes())


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Return the path at which a test may put a uv."""
    # Another uv may lie beside this interpreter.
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "uv"


def test_a_program_is_known_by_its_digest_and_machine(uv):
    assert wheels.installer() is None
    program = Path(sys.executable).resolve()
    uv.symlink_to(program)

    installer = wheels.installer()

    assert installer is not None
    assert (installer.source, installer.size) == (program, program.stat().st_size)
    assert installer.sha256 == hashlib.sha256(program.read_bytes()).hexdigest()
    assert installer.machine == os.uname().machine


def test_the_one_beside_the_interpreter_comes_first(uv):
    uv.symlink_to(sys.executable)
    beside = uv.parent / "scripts" / "uv"
    beside.parent.mkdir()
    shutil.copy(sys.executable, beside)

    installer = wheels.installer()

    assert installer is not None
    assert installer.source == beside


def test_a_version_managers_script_stays_here(uv):
    uv.write_text('#!/bin/sh\nexec uv-1.0 "$@"\n')
    uv.chmod(0o755)

    assert wheels.installer() is None
