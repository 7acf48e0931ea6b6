"""Fixtures: a folder with a script, and the command, in this process or in one of its own."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nbtorchjob.frontends.cli import main

HERE = Path(__file__).parent


@dataclass
class Done:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def data(self):
        """The single JSON document of the answer."""
        return json.loads(self.out)


@pytest.fixture
def script():
    """Return the script, in the folder where the command runs."""
    shutil.copy(HERE / "scales.py", "scales.py")
    return Path(shutil.copy(HERE / "train.py", "train.py")).absolute()


@pytest.fixture
def command(script, monkeypatch, capfd):
    """Return a function that runs the command in this process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the script takes its place

    def run(*words):
        monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds to it
        monkeypatch.delitem(sys.modules, "scales", raising=False)
        capfd.readouterr()
        code = main(list(words))
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture
def process(script):
    """Yield a function that starts the command as a process, with pipes to the test."""
    started = []

    def start(*words, before="pass", **options):
        code = f"import sys; from nbtorchjob.frontends.cli import main; {before}; sys.exit(main())"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", code, *words], **{**pipes, **options}))
        return started[-1]

    yield start
    for server in started:
        server.kill()
        server.wait()
        for stream in filter(None, (server.stdout, server.stderr)):
            stream.close()
