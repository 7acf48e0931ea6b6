"""The uv that jobs bring along is a program of this machine, and known by what it holds."""

import hashlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from nbtorchjob.environment import installer


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Return where uv lies, if a test puts one there."""
    # Beside this interpreter there may be one.
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "uv"


def test_a_program_is_known_by_its_digest_and_machine(uv):
    assert installer.installer() is None
    program = Path(sys.executable).resolve()
    uv.symlink_to(program)

    found = installer.installer()

    assert found is not None
    assert (found.source, found.size) == (program, program.stat().st_size)
    assert found.sha256 == hashlib.sha256(program.read_bytes()).hexdigest()
    assert found.machine == os.uname().machine


def test_the_one_beside_the_interpreter_comes_first(uv):
    uv.symlink_to(sys.executable)
    beside = uv.parent / "scripts" / "uv"
    beside.parent.mkdir()
    shutil.copy(sys.executable, beside)

    found = installer.installer()

    assert found is not None
    assert found.source == beside


def test_a_version_managers_script_stays_here(uv):
    uv.write_text('#!/bin/sh\nexec uv-1.0 "$@"\n')
    uv.chmod(0o755)

    assert installer.installer() is None
