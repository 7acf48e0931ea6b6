"""Swap code at random moments of a training that writes down every step.

Four gloo ranks on two nodes step together. After so many swaps all ranks must have changed at the same steps,
none may be lost, doubled or hung, and each loss must be that of the same schedule run without swaps. Then
come swaps that fail on one rank, swaps of code that fails when first called, and swaps during which a node, a
rank, the asker or the kernel that submitted the job is killed: all ranks must have the new code or none, and
the report must be true. Also measures the cost of a swap point.
"""

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from nbtorchjob import Elastic, Job, JobSpec, Retry, SwapError, api, capture, submission
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.runtime.api.points import Page, begin, swap_point
from tests.benchmarks.measure import own_state

CELL = """
import json, os, time
import torch
from torch import distributed
from nbtorchjob import attempt, report, swap_point
folder = os.environ["NOTES"]
planned_at = os.path.join(folder, "schedule")
schedule = json.load(open(planned_at)) if os.path.exists(planned_at) else []
def version(step):
    return 0
def planned(step):
    return schedule[step] if step < len(schedule) else None
distributed.init_process_group("gloo")
rank = distributed.get_rank()
weight = torch.tensor([1.0], dtype=torch.float64)
notes = open(os.path.join(folder, f"{attempt()}-{rank}"), "a")
step = 0
while True:
    began = time.time()
    now = planned(step) if schedule else version(step)
    stop = torch.tensor([float(now is None or os.path.exists(os.path.join(folder, "stop")))])
    distributed.all_reduce(stop)
    if stop.item():
        break
    gradient = (weight - 0.01 * now) * (rank + 1)
    distributed.all_reduce(gradient)
    weight -= 0.01 * gradient
    notes.write(f"{step} {now} {weight.item()!r} {began}\\n")
    notes.flush()
    if step % 10 == 0:
        report(step=step)
    step += 1
    if not schedule:
        time.sleep(0.002)
    swap_point()
step
"""
LONGEST_S = 0.3  # at most, from the beginning of a swap to the kill: most swaps are over by then
NEW = "def version(step):\n    return %d"
ONE_FAILS = "import os\nfailed = 1 / (int(os.environ['RANK']) - %d)\n" + NEW
RAISES = "import os\ndef version(step):\n    return 1 / (int(os.environ['RANK']) - %d)"


def start(notes: str, retry: "Retry | None" = None) -> "Job[int]":
    """Start a training, and wait until all of its ranks step."""
    spec = JobSpec(Elastic(2, nproc_per_node=2), env={"NOTES": notes}, retry=retry)
    job: Job[int] = submission.submit(capture.from_cell(CELL, {}), spec)
    wait_for(lambda: len(steps(notes, 1)) == 4 and all(steps(notes, 1)))
    return job


def steps(notes: str, attempt: int) -> "list[list[tuple[int, float, float]]]":
    """Return for each rank, by step, its version, its outcome, and when the step began."""
    ranks = []
    for path in sorted(Path(notes).glob(f"{attempt}-*")):
        lines = [line.split() for line in path.read_text().split("\n")[:-1]]
        assert [int(line[0]) for line in lines] == list(range(len(lines))), "a step is lost or doubled"
        ranks.append([(int(line[1]), float(line[2]), float(line[3])) for line in lines])
    return ranks


def alike(ranks: "list[list[tuple[int, float, float]]]") -> bool:
    """Return whether all ranks had the same version and outcome at each step that all have made."""
    many = min(map(len, ranks), default=0)
    return all(len({rank[at][:2] for rank in ranks}) == 1 for at in range(many))


def outcomes(ranks: "list[list[tuple[int, float, float]]]") -> "list[list[tuple[int, float]]]":
    """Return versions and outcomes without the times."""
    return [[(version, weight) for version, weight, _ in rank] for rank in ranks]


def wait_for(look: "object", seconds: float = 120.0) -> None:
    """Wait until ``look`` returns a true value."""
    until = time.monotonic() + seconds
    while not look():  # type: ignore[operator]
        assert time.monotonic() < until, "it hangs"
        time.sleep(0.02)


def end(job: "Job[int]", notes: str) -> None:
    """End a training."""
    Path(notes, "stop").touch()
    job.wait(120)


def swaps(count: int, fails: int, chance: random.Random) -> None:
    """Swap, and fail to swap, so many times; print the outcomes and the time to the first new step."""
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as plain:
        job, requests, refused, back = start(notes), [], 0, 0
        for number in range(1, count + 1):
            time.sleep(chance.uniform(0, 0.1))
            requests.append((number, time.time()))
            job.swap(NEW % number)
        # If the ranks stopped at once, they would make no step with the last version.
        wait_for(lambda: all(rank[-1][0] == count for rank in steps(notes, 1)))
        for number in range(fails):
            time.sleep(chance.uniform(0, 0.1))
            try:
                job.swap(ONE_FAILS % (chance.randrange(4), 1000 + number))
            except SwapError:
                refused += 1
            try:
                job.swap(RAISES % chance.randrange(4), or_back=True)
            except SwapError:
                back += 1
        end(job, notes)
        ranks = steps(notes, 1)
        took = [min(rank_began(rank, number) for rank in ranks) - when for number, when in requests]
        versions = [version for version, _, _ in ranks[0]]
        Path(plain, "schedule").write_text(repr(versions))
        other = start(plain)
        assert other.result(1200) == len(versions)
        same = outcomes(steps(plain, 1)) == outcomes(ranks)
        numbers = [0, *(number for number, _ in requests)]
        print(f"swaps {count}, one rank fails {fails}, first call fails {fails}, steps {len(versions)}")
        print(f"ranks that change at other steps: {not alike(ranks)}")
        in_order = list(dict.fromkeys(versions)) == numbers and versions == sorted(versions)
        print(f"versions lost or doubled: {not in_order}")
        print(f"refused {refused}, put back {back}, recorded {sum(not s.back for s in job.state.swapped)}")
        print(f"each loss that of the schedule run plainly: {same}")
        print(f"seconds to the first step with new code: median {statistics.median(took):.3f}", end="")
        print(f", worst {max(took):.3f}")
        job.delete()
        other.delete()


def rank_began(rank: "list[tuple[int, float, float]]", version: int) -> float:
    """Return when a rank began its first step with a version."""
    return next(began for current, _, began in rank if current == version)


def ask(job: "Job[int]", messages: "multiprocessing.queues.SimpleQueue[str]") -> None:
    """Swap the code from a process that may be killed; send the outcome."""
    os.setsid()
    try:
        job.swap(NEW % 1)
        messages.put("swapped")
    except NBTorchJobError as exc:
        messages.put(str(exc).partition("\n")[0])


def submit_and_ask(notes: str, messages: "multiprocessing.queues.SimpleQueue[str]") -> None:
    """Submit a job, follow it and swap its code, as a kernel that may be killed."""
    job = start(notes, retry=Retry(retries=2, preemptions=2, backoff=0))
    messages.put(job.name)
    ask(job, messages)


def kills(count: int, chance: random.Random) -> None:
    """Kill a process during each swap; print the reported and the actual outcome."""
    fork, untrue, mixed = multiprocessing.get_context("fork"), 0, 0
    for _ in range(count):
        with tempfile.TemporaryDirectory() as notes:
            whom = chance.choice(["lead", "node", "rank", "asker", "kernel"])
            messages = fork.SimpleQueue()
            if whom == "kernel":
                asker = fork.Process(target=submit_and_ask, args=(notes, messages))
                asker.start()
                job = api.attach(messages.get())
            else:
                job = start(notes, retry=Retry(retries=2, preemptions=2, backoff=0))
                asker = fork.Process(target=ask, args=(job, messages))
                asker.start()
            nodes = [node.life.start.pid for node in job.state.nodes.values() if node.life.start]
            time.sleep(chance.uniform(0, LONGEST_S))
            pids = {"lead": nodes[0], "node": nodes[1], "rank": a_rank(nodes[1])}
            os.kill(pids.get(whom, asker.pid) or 0, signal.SIGKILL)
            asker.join(120)
            text = messages.get() if not messages.empty() else ""
            attempt = 1 if whom in ("asker", "kernel") else 2
            wait_for(lambda attempt=attempt, notes=notes: len(steps(notes, attempt)) == 4)
            time.sleep(0.5)
            wait_for(lambda attempt=attempt, notes=notes: all(len(r) > 20 for r in steps(notes, attempt)))
            end(job, notes)
            ranks = steps(notes, attempt)
            new = bool(ranks[0][-1][0])
            recorded = any(not swap.back for swap in job.state.swapped)
            wrong = recorded != new or (text == "swapped") > new or ("nothing was swapped" in text and new)
            mixed += not (alike(steps(notes, 1)) and alike(ranks))
            untrue += wrong
            print(f"{whom} killed: new code {new}, recorded {recorded}, told {text[-90:]!r}", flush=True)
            job.delete()
    print(f"kills {count}: ranks with other code {mixed}, told untruly {untrue}")


def a_rank(agent: int) -> int:
    """Return the process of a rank of that node: the newest of its descendants."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, parent = int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        below.setdefault(parent, []).append(pid)
    descendants, waiting = [], [agent]
    while waiting:
        children = below.get(waiting.pop(), [])
        descendants += children
        waiting += children
    return max(descendants)


def cost() -> float:
    """Return the microseconds that a point takes when there is nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        Page.create(folder, 8)
        begin(folder, 0)
        began = time.perf_counter()
        for _ in range(1_000_000):
            swap_point()
        return time.perf_counter() - began


def main() -> None:
    """Print all outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--fails", type=int, default=50)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"swap_point(): {cost():.2f} us a call")
    with own_state():
        if arguments.swaps:
            swaps(arguments.swaps, arguments.fails, random.Random(arguments.seed))
        kills(arguments.kills, random.Random(arguments.seed))


if __name__ == "__main__":
    main()
