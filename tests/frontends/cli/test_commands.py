"""Tab completion, in each shell that this machine has."""

import os
import shutil
import subprocess
import sys

import pytest

from nbtorchjob.frontends.cli.commands import COMMANDS
from nbtorchjob.machine import folders
from tests.backends.local.acted import Acted
from tests.patience import LIMIT


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Create two jobs in a state folder of the test's own."""
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    for name in ("train-2222", "eval-3333"):
        Acted(name)


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([], list(COMMANDS)),
        (["l"], ["list", "lock", "logs"]),
        (["comp"], ["completion"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["status", ""], ["eval-3333", "train-2222"]),
        (["cancel", "eval-3333", "t"], ["train-2222"]),
        (["list", "-"], ["--all", "--json"]),
        (["gc", "--"], ["--yes", "--json"]),
        (["run", "--nn"], ["--nnodes"]),
        (["run", "--ar"], []),
        (["run", "--js"], ["--json"]),
        (["run", "--backend", ""], ["local", "kubernetes"]),
        (["run", "train.py:f", "--", "--nn"], []),
        (["run", ""], []),
        (["nothing", ""], []),
    ],
)
def test_what_fits_is_offered(command, words, offered):
    assert command("__complete", *words).out.split() == offered


# Each script prints the completions after "nbtorchjob l".
ASKED = {
    "bash": (
        'source "$1"; COMP_WORDS=(nbtorchjob l); COMP_CWORD=1; _nbtorchjob; printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    "zsh": (
        "compdef() { }; compadd() { print -l ${(P)2} }; "
        'source "$1"; words=(nbtorchjob l); CURRENT=2; _nbtorchjob'
    ),
    "fish": 'source $argv[1]; complete -C "nbtorchjob l"',
}


@pytest.mark.parametrize("shell", ASKED)
def test_the_shell_asks_the_command(shell, command, tmp_path):
    binary = shutil.which(shell)
    if binary is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "completion").write_text(command("completion", shell).out)
    on_path = tmp_path / "nbtorchjob"
    on_path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nbtorchjob "$@"\n')
    on_path.chmod(0o755)
    line = [binary, "-c", ASKED[shell], *(["asked"] if shell != "fish" else []), str(tmp_path / "completion")]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        line, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True, timeout=LIMIT
    )

    assert done.stdout.split() == ["list", "lock", "logs"]
    assert done.stderr == ""
