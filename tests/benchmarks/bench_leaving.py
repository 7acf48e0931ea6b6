"""Ask nodes to end at random moments, at which their job saves, and check the job's steps.

Each trial is a job of two nodes with ranks that meet at every step; at a random moment one node, or both, are
asked to end, here by SIGTERM, on the emulator by an eviction (of jobs of each kind in turn), and the next
attempt goes on from the checkpoint. Also measures what a call of ``leaving()`` costs a rank.
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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import cloudpickle

from nbtorchjob import Elastic, Job, JobSpec, Leaving, Retry, checkpoint_dir, leaving, submit
from nbtorchjob.runtime.api.points import Page, begin
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import GRACE_S
from tests.backends.kubernetes.cluster import Emulator
from tests.benchmarks.measure import own_state

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, STEP_S = 250, 0.01
LATEST_S = 1.5  # at most, from the start of the ranks to the request to end
POD_PATH = "api/v1/namespaces/default/pods"
PLACE = Cluster(image="localhost/torch:1", memory="1500Mi", cpu="400m", namespace="default")


@dataclass(frozen=True)
class Trial:
    """The outcome of one job's steps, and the seconds until its nodes ended once asked."""

    lost: int
    twice: int
    apart: bool
    halves: int  # ranks that found a checkpoint with parts of several steps
    took: float


def train(steps: int, notes: str) -> int:
    """Step together until all steps are done; each rank notes its own, and saves a part of the checkpoint."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, folder = distributed.get_rank(), checkpoint_dir()
    saved = {path.read_text() for path in folder.glob("part-*")}
    with open(f"{notes}/rank-{rank}", "a") as file:
        if len(saved) > 1:
            file.write("half\n")
        for step in range(int(max(saved, default="0", key=int)), steps):
            distributed.all_reduce(torch.ones(4))
            time.sleep(STEP_S * random.random())
            file.write(f"{step}\n")
            file.flush()
            if leaving():
                (folder / f"part-{rank}").write_text(str(step + 1))
                file.write("left\n")
                raise Leaving
    return steps


def here(notes: str, victims: int, after: float) -> Trial:
    """Send SIGTERM to nodes of a job of this machine; return the outcome."""
    job = submit(train, STEPS, notes, spec=JobSpec(Elastic(2, nproc_per_node=2), retry=Retry(backoff=0)))
    wait_for(lambda: started(job))
    pids = [node.life.start.pid for node in job.state.nodes.values() if node.life.start]
    time.sleep(after)
    for pid in pids[:victims]:
        os.kill(pid, signal.SIGTERM)
    start = time.monotonic()
    wait_for(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in pids[:victims]))
    return judged(job, notes, time.monotonic() - start)


def there(cluster: Emulator, kind: str, notes: str, victims: int, after: float) -> Trial:
    """Evict pods of a cluster job of that kind; return the outcome."""
    place = replace(PLACE, kind=kind, checkpoints=f"file://{notes}/store")
    retry = Retry(preemptions=9, backoff=0)
    spec = JobSpec(Elastic(2, nproc_per_node=1), "kubernetes", retry=retry, cluster=place)
    job = submit(train, STEPS, notes, spec=spec)
    wait_for(lambda: job.wait(0) or started(job))
    time.sleep(after)
    uids = [node.life.pod for node in job.state.nodes.values()][-victims:]
    pods = [pod["metadata"] for pod in cluster.objects(POD_PATH)]
    cluster.evict("default", *[pod["name"] for pod in pods if pod["uid"] in uids])
    began = time.monotonic()
    wait_for(lambda: job.wait(0) or not any(runs(pod, uids) for pod in cluster.objects(POD_PATH)))
    return judged(job, notes, time.monotonic() - began)


def runs(pod: "dict[str, dict[str, str]]", uids: "list[str]") -> bool:
    """Return whether a pod is one of these and hasn't ended."""
    return pod["metadata"]["uid"] in uids and pod["status"]["phase"] in ("Pending", "Running")


def started(job: "Job[int]") -> bool:
    """Return whether the ranks of both nodes have started."""
    return len([node for node in job.state.nodes.values() if node.workers and node.life.start]) == 2


def judged(job: "Job[int]", notes: str, took: float) -> Trial:
    """Wait for the job's end; return what the notes of its ranks show."""
    assert job.result(120) == STEPS
    ranks = [path.read_text().split() for path in sorted(Path(notes).glob("rank-*"))]
    why = [attempt.failure and attempt.failure.reason.line for attempt in job.state.attempts[:-1]]
    lost = twice = 0
    for rank in ranks:
        done = [int(step) for step in rank if step.isdigit()]
        lost, twice = lost + STEPS - len(set(done)), twice + len(done) - len(set(done))
    trial = Trial(lost, twice, any(rank != ranks[0] for rank in ranks), sum("half" in r for r in ranks), took)
    print(f"{trial}, steps before: {ranks[0].index('left') if 'left' in ranks[0] else 0}, {why}", flush=True)
    job.delete()
    return trial


def wait_for(look: "Callable[[], object]") -> None:
    """Wait until ``look`` returns a true value."""
    while not look():
        time.sleep(0.02)


def cost() -> float:
    """Return the microseconds that a call takes on a node that isn't ending."""
    with tempfile.TemporaryDirectory() as folder:
        Page.create(folder, 8)
        begin(folder, 0)
        began = time.perf_counter()
        for _ in range(100_000):
            leaving()
        return (time.perf_counter() - began) * 10


def trials(count: int, chance: random.Random, cluster: "Emulator | None") -> "list[Trial]":
    """Run so many trials, one after the other."""
    outcomes = []
    for number in range(count):
        victims, after = chance.choice([1, 1, 1, 2]), chance.uniform(0, LATEST_S)
        with tempfile.TemporaryDirectory() as notes:
            if cluster is None:
                outcomes.append(here(notes, victims, after))
            else:
                outcomes.append(
                    there(cluster, cluster.kinds[number % len(cluster.kinds)], notes, victims, after)
                )
    return outcomes


def main() -> None:
    """Print the outcomes of the trials, and the cost of a call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--emulator", action="store_true", help="evict pods")
    arguments = parser.parse_args()
    with own_state(), ExitStack() as stack:
        cluster = stack.enter_context(Emulator()) if arguments.emulator else None
        if cluster:
            os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        outcomes = trials(arguments.trials, random.Random(arguments.seed), cluster)
    took = [trial.took for trial in outcomes]
    print(f"trials {len(outcomes)}, seed {arguments.seed}")
    for name in ("lost", "twice", "apart", "halves"):
        print(f"{name}: {sum(bool(getattr(trial, name)) for trial in outcomes)}")
    print(f"seconds to the end: median {statistics.median(took):.1f}, worst {max(took):.1f}, grace {GRACE_S}")
    print(f"leaving(): {cost():.2f} us a call")


if __name__ == "__main__":
    main()
