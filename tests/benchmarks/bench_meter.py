"""The cost to a node of metering its ranks, and to a failed rank of describing its variables."""

import os
import time

import torch

from nbtorchjob import Elastic, JobSpec, submit
from nbtorchjob.runtime.facts import EVENTS
from nbtorchjob.runtime.node.meter import Meter
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

RANKS = 8
SECONDS = 300  # of a job's life, on a fake clock
ROUNDS = 10


def looked(folder: str) -> tuple[float, float]:
    """Return the CPU seconds of all looks at the ranks, and how many of them the node reported."""
    os.environ[EVENTS] = os.path.join(folder, "used.jsonl")
    now = [0.0]
    meter = Meter(0, clock=lambda: now[0], library=lambda: None)
    meter.begin(0, dict.fromkeys(range(RANKS), os.getpid()))
    begun = time.thread_time()
    for second in range(SECONDS):
        now[0] = float(second)
        meter.look()
    took = time.thread_time() - begun
    with open(os.environ.pop(EVENTS)) as file:
        return took, len(file.readlines())


def fails() -> None:
    """Fail with the variables of a training step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    batch, losses = torch.randn(64, 255), [0.5] * 100
    model(batch + len(losses))


def failing(*, no_locals: bool) -> float:
    """Return how long a warm call took to fail."""
    begun = time.perf_counter()
    error = submit(fails, spec=JobSpec(Elastic(), no_locals=no_locals)).exception()
    took = time.perf_counter() - begun
    assert error is not None
    assert any(frame.variables for frame in error.error.frames) is not no_locals
    return took


def main() -> None:
    with own_state() as folder:
        cpu, reports = looked(str(folder))
        failing(no_locals=True)
        subjects = {
            "told": lambda: failing(no_locals=False),
            "left out": lambda: failing(no_locals=True),
        }
        samples = in_turn(subjects, ROUNDS)
    times = medians(samples)
    rows = [Row(f"CPU of looking at {RANKS} ranks", cpu, SECONDS, 0.002)]
    show(f"Use: {SECONDS} seconds of a node", "the time", rows, f"told {reports} times")
    rows = [Row("variables told", times["told"], times["left out"], 1.1)]
    show("Failure: a warm call that fails", "--no-locals", rows, spread(samples))


if __name__ == "__main__":
    main()
