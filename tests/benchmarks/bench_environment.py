"""The cost of listing what an image has, and of installing what it lacks.

The first job of an image waits until a node has listed its packages; each submission compares its needs with
that list. The installs are of three small packages, without a network: with pip, with uv on the node or from
the store, and from an earlier job.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nbtorchjob import capture, submission
from nbtorchjob.environment import images, interpreter
from nbtorchjob.environment.images import JobImage
from nbtorchjob.environment.wheels import installer
from nbtorchjob.runtime import store
from nbtorchjob.runtime.install import environment
from nbtorchjob.runtime.install.stock import hidden
from nbtorchjob.runtime.store import frames
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts.events import EnvironmentTold
from nbtorchjob.state.facts.factlines import to_json
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread
from tests.environment.built import wheel

ROUNDS, INSTALLED = 20, 5
CELL = "import torch, numpy as np, yaml, tqdm\nimport matplotlib.pyplot as plt\nfrom sklearn import datasets"
IMAGE = "registry.example/train:1"


def told() -> float:
    """Return how long a node takes to list what it has."""
    begun = time.perf_counter()
    environment.description()
    return time.perf_counter() - begun


def captured() -> float:
    """Return how long the capture of a cell takes, without the search for what it needs."""
    begun = time.perf_counter()
    capture.from_cell(CELL, {})
    return time.perf_counter() - begun


def needed() -> float:
    """Return how long it then takes to find the distributions that the cell imports."""
    call = capture.from_cell(CELL, {})
    begun = time.perf_counter()
    assert len(call.needs) == 6
    return time.perf_counter() - begun


def compared() -> float:
    """Return how long a submission takes to compare its needs with what the image has."""
    call = capture.from_cell(CELL, {})
    plan = submission.check(JobSpec(backend="kubernetes", cluster=Cluster(image=IMAGE)))
    begun = time.perf_counter()
    assert submission.prepare(call, plan).notes == ()
    return time.perf_counter() - begun


def unchanged() -> float:
    """Return how long it takes to see that what is installed here hasn't changed."""
    begun = time.perf_counter()
    interpreter.environment()
    return time.perf_counter() - begun


def saved() -> float:
    """Return how long all of this takes a submission after a file was saved beside the notebook."""
    call = capture.from_cell(CELL, {})
    with tempfile.NamedTemporaryFile(dir=sys.path[0]):  # the current folder with -m, as in a kernel
        begun = time.perf_counter()
        interpreter.environment(), interpreter.origins(), call.needs
        return time.perf_counter() - begun


# A node in a process of its own, as the install changes sys.path; it prints how long that took.
NODE = """
import json, sys, time
from nbtorchjob.runtime.install import packages
from tests.environment.asking import Asking
folder, kept, stock, uv = sys.argv[1:]
begun = time.perf_counter()
asked = Asking("nbtj-a", "nbtj-b", "nbtj-c", kept=kept, stock=stock, uv=json.loads(uv))
packages.provide(asked, folder, 0, b"k" * 32)
print(time.perf_counter() - begun)
"""


class Nodes:
    """Nodes that install three packages, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._told = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "index")}
        for name in ("nbtj_a", "nbtj_b", "nbtj_c"):
            wheel(folder / "index", name)

    def pip(self, *, kept: bool = False, stocked: bool = False) -> float:
        """Return how long it takes with pip, or if an earlier job's packages are kept here or in a store."""
        return self._take(self._told, str(self._folder / "kept") if kept else "", stocked)

    def uv(self) -> float:
        """Return how long it takes with uv."""
        return self._take(self._uv_told(), "", False)

    def sent(self) -> float:
        """Return how long it takes with uv from the store, on a node without uv."""
        own = installer()
        assert own is not None
        program = {"url": str(own.source), "sha256": own.sha256, "size": own.size, "machine": own.machine}
        return self._take({**self._uv_told(), "PATH": os.defpath}, "", False, uv=program)

    def _uv_told(self) -> dict[str, str]:
        return {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(self._folder / "index")}

    def kept(self) -> float:
        """Return how long it takes if another job of this machine has installed the packages."""
        return self.pip(kept=True)

    def stocked(self) -> float:
        """Return how long it takes if the store has the packages."""
        return self.pip(stocked=True)

    def _take(
        self, variables: dict[str, str], kept: str, stocked: bool, uv: dict[str, object] | None = None
    ) -> float:
        self._count += 1
        node = self._folder / f"node{self._count}"
        node.mkdir()
        own = {**os.environ, **variables, store.STORAGE: str(self._folder / "store" / "job")}
        secret = hidden(b"s" * 32, b"k" * 32) if stocked else ""
        argv = [sys.executable, "-c", NODE, str(node), kept, secret, json.dumps(uv)]
        done = subprocess.run(argv, env=own, check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout.splitlines()[-1])


def installing(folder: Path) -> None:
    nodes = Nodes(folder)
    nodes.kept(), nodes.stocked()  # these first runs install the packages
    subjects = {subject.__name__: subject for subject in (nodes.pip, nodes.kept, nodes.stocked)}
    if installer():
        subjects |= {"uv": nodes.uv, "sent": nodes.sent}
    samples = in_turn(subjects, INSTALLED)
    times = medians(samples)
    rows = [
        Row("from an earlier job of this machine", times["kept"], times["pip"], 0.1),
        Row("from the store", times["stocked"], times["pip"], 0.25),
        *([Row("with uv", times["uv"], times["pip"], 1.0)] if "uv" in times else []),
        *([Row("with uv from the store", times["sent"], times["pip"], 1.0)] if "sent" in times else []),
    ]
    show("Installing three packages", "with pip", rows, spread(samples))


def main() -> None:
    fact = EnvironmentTold(time.time(), 0, **environment.description())
    line = json.dumps(to_json(fact)).encode()
    with own_state() as folder:
        images.learn(JobImage("", IMAGE), "sha256:1", fact)
        begun = time.perf_counter()
        needed()
        first = time.perf_counter() - begun
        samples = in_turn(
            {subject.__name__: subject for subject in (captured, told, needed, compared, unchanged, saved)},
            ROUNDS,
        )
        installing(folder)
    times = medians(samples)
    rows = [
        Row("a node tells what it has", times["told"], times["captured"]),
        Row("which distributions a cell needs", times["needed"], times["captured"], 2.0),
        Row("the same with the comparison", times["compared"], times["captured"], 4.0),
        Row("nothing has changed here", times["unchanged"], times["captured"], 0.5),
        Row("a file was saved beside the notebook", times["saved"], times["captured"], 2.0),
        Row("the frame in the pod's log", len(frames.fact(line)) / 1000, 1.0, 64, "kB"),
    ]
    show(
        "What an image has",
        "capturing the cell",
        rows,
        f"{len(fact.distributions)} distributions and {len(fact.modules)} modules of other names, "
        f"Python {sys.version.split()[0]}; the first cell of a kernel: {first * 1000:.0f} ms",
        spread(samples),
    )


if __name__ == "__main__":
    main()
