"""A job that saves when told: nodes that are ended at random moments, and what becomes of its steps.

Each trial is a job of two nodes whose ranks meet at every step; one of them, or both, get SIGTERM at a random
moment, and the next attempt goes on from the checkpoint. Also what a call of ``leaving()`` costs a rank.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import cloudpickle

from nbtorchjob import Elastic, Job, JobSpec, Leaving, Retry, checkpoint_dir, leaving, submit
from nbtorchjob.backends.local.jobdir import paths
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.runtime.leaving import Page, begin
from tests.benchmarks.measure import own_state

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, STEP_S = 150, 0.01
HEADS = ("trials", "steps lost", "steps done twice", "left apart", "s to the end, median", "worst")


def train(steps: int) -> int:
    """Step together until all steps are done; each rank notes its own."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, folder = distributed.get_rank(), checkpoint_dir()
    saved = folder / "step"
    with (folder / f"rank-{rank}").open("a") as notes:
        for step in range(int(saved.read_text()) if saved.exists() else 0, steps):
            distributed.all_reduce(torch.ones(4))
            time.sleep(STEP_S * random.random())
            notes.write(f"{step}\n")
            if leaving():
                if rank == 0:
                    saved.write_text(str(step + 1))
                notes.write("left\n")
                notes.flush()
                raise Leaving
    return steps


def trial(told: int, after: float) -> "tuple[int, int, bool, float]":
    """Return how many steps were lost and done twice, whether ranks left apart, and seconds to the end."""
    spec = JobSpec(Elastic(nnodes=2, nproc_per_node=2), retry=Retry(backoff=0))
    job = submit(train, STEPS, spec=spec)
    nodes = wait_for(
        job, lambda: [n.life.start.pid for n in job.state.nodes.values() if job.state.began and n.life.start]
    )
    time.sleep(after)
    for pid in nodes[:told]:
        os.kill(pid, signal.SIGTERM)
    asked = time.time()
    assert job.result(120) == STEPS
    attempts = job.state.attempts
    ended = (attempts[0].end or asked) - asked if len(attempts) > 1 else 0.0
    folder = JobDirectory(paths.jobs_dir() / job.name).checkpoints
    ranks = [(folder / f"rank-{rank}").read_text().split() for rank in range(4)]
    print(
        told,
        f"{after:.2f} s",
        len(attempts),
        [a.failure and a.failure.reason.line for a in attempts[:-1]],
        flush=True,
    )
    steps = [int(step) for step in ranks[0] if step != "left"]
    lost, twice = len(set(range(STEPS)) - set(steps)), len(steps) - len(set(steps))
    job.delete()
    return lost, twice, any(rank != ranks[0] for rank in ranks), ended


def wait_for(job: "Job[int]", look: "Callable[[], list[int]]") -> "list[int]":
    """Wait until that many nodes are there."""
    while len(found := look()) < 2:
        time.sleep(0.01)
    return found


def cost() -> float:
    """Return the microseconds that a call takes where nothing is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        Page.create(folder, 8)
        begin(folder, 0)
        began = time.perf_counter()
        for _ in range(100_000):
            leaving()
        return (time.perf_counter() - began) * 10


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with own_state():
        found = [trial(chance.choice([1, 1, 1, 2]), chance.uniform(0, 1.5)) for _ in range(given.trials)]
    lost, twice, apart, ends = zip(*found, strict=True)
    ended = [end for end in ends if end]
    row = (len(found), sum(lost), sum(twice), sum(apart), statistics.median(ended), max(ended))
    print(*HEADS, sep="  ")
    print(*row, sep="  ")
    print(f"leaving(): {cost():.2f} us a call")


if __name__ == "__main__":
    main()
