"""What it costs to know what an image has: of a node to tell it, of a submission to compare with it."""

import json
import sys
import time

from nbtorchjob import api, capture
from nbtorchjob.environment import here, images
from nbtorchjob.environment.images import Asked
from nbtorchjob.runtime import environment, frames
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.events import EnvironmentTold, to_json
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 20
CELL = "import torch, numpy as np, yaml, tqdm\nimport matplotlib.pyplot as plt\nfrom sklearn import datasets"
IMAGE = "registry.example/train:1"


def told() -> float:
    """Return how long a node takes to list what it has."""
    begun = time.perf_counter()
    environment.told()
    return time.perf_counter() - begun


def captured() -> float:
    """Return how long a cell takes to be captured, without what it needs."""
    begun = time.perf_counter()
    capture.from_cell(CELL, {})
    return time.perf_counter() - begun


def needed() -> float:
    """Return how long it then takes to know which distributions it imports."""
    call = capture.from_cell(CELL, {})
    begun = time.perf_counter()
    assert len(call.needs) == 6
    return time.perf_counter() - begun


def compared() -> float:
    """Return how long a submission takes over comparing with what the image has."""
    call = capture.from_cell(CELL, {})
    prepared = api.prepare(JobSpec(backend="kubernetes", cluster=Cluster(image=IMAGE)))
    begun = time.perf_counter()
    assert api.differences(call, prepared) == []
    return time.perf_counter() - begun


def unchanged() -> float:
    """Return how long it takes to see that what is installed here hasn't changed."""
    begun = time.perf_counter()
    here.environment()
    return time.perf_counter() - begun


def main() -> None:
    fact = EnvironmentTold(time.time(), 0, **environment.told())
    line = json.dumps(to_json(fact)).encode()
    with own_state():
        images.learn(Asked("", IMAGE), "sha256:1", fact)
        begun = time.perf_counter()
        needed()
        first = time.perf_counter() - begun
        taken = in_turn(
            {each.__name__: each for each in (captured, told, needed, compared, unchanged)}, ROUNDS
        )
    found = medians(taken)
    rows = [
        Row("a node tells what it has", found["told"], found["captured"]),
        Row("which distributions a cell needs", found["needed"], found["captured"], 2.0),
        Row("the same with the comparison", found["compared"], found["captured"], 4.0),
        Row("nothing has changed here", found["unchanged"], found["captured"], 0.5),
        Row("the frame in the pod's log", len(frames.fact(line)) / 1000, 1.0, 64, "kB"),
    ]
    show(
        "What an image has",
        "capturing the cell",
        rows,
        f"{len(fact.distributions)} distributions and {len(fact.modules)} modules of other names, "
        f"Python {sys.version.split()[0]}; the first cell of a kernel: {first * 1000:.0f} ms",
        spread(taken),
    )


if __name__ == "__main__":
    main()
