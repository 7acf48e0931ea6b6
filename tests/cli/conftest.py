"""A folder with a script, the command run in this process, and as one of its own."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nbtorchjob.cli import main

SCRIPT = """\
import os
import sys
from dataclasses import dataclass

from scales import SCALE


@dataclass
class Result:
    loss: float


def train(lr, steps: int = 2, tag: str = "", *, fast=False):
    rank = int(os.environ["RANK"])
    for step in range(steps):
        print("rank", rank, "step", step)
    return {"loss": lr * SCALE, "tag": tag, "fast": fast}


def half(x):
    return x / 0


def best():
    return Result(0.5)


def wait(stop):
    import time

    print("begun", flush=True)
    while not os.path.exists(stop):
        time.sleep(0.01)
    print("ended", flush=True)
    return 7


def chatter(lines):
    for n in range(lines):
        print("line", n)


def array():
    import torch

    return {"mean": torch.tensor([1.0, 2.0]), "worst": float("inf")}


def looped():
    found = {"deep": []}
    found["deep"].append(found)
    return found


def huge():
    return [1, 10**5000, 2.5]


class Mute:
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def mute():
    return Mute()


def here():
    return os.environ["RANK"], __name__


if __name__ == "__main__":
    sys.exit("this is only for running it")
"""


@dataclass
class Done:
    """What a command wrote, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self):
        """The one JSON document of the answer."""
        return json.loads(self.out)


@pytest.fixture
def script():
    """Give the script, in the folder where the command is run."""
    path = Path("train.py").absolute()
    path.write_text(SCRIPT)
    Path("scales.py").write_text("SCALE = 10\n")
    return path


@pytest.fixture
def command(script, monkeypatch, capfd):
    """Run the command in this process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the script takes its place

    def run(*words):
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "scales", raising=False)
        capfd.readouterr()
        code = main(list(words))
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture
def process(script):
    """Start the command as a process, whose ends the test holds."""
    started = []

    def start(*words, before="pass", **options):
        code = f"import sys; from nbtorchjob.cli import main; {before}; sys.exit(main())"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", code, *words], **{**pipes, **options}))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()
        for stream in filter(None, (each.stdout, each.stderr)):
            stream.close()
