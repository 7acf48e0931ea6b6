"""Interrupt a lab, and kill its kernels, at random moments, and check its state.

Each cell of a trial adds its number to a list in the ranks. The lists show a cell that was lost, ran twice,
or ran in another order on another rank, and state that is gone. With ``--kind`` the lab's two ranks are pods
of the tests' own cluster, or of the cluster of NBTORCHJOB_TEST_KUBECONFIG.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import nbtorchjob
from nbtorchjob import Elastic, JobFailedError, JobSpec
from nbtorchjob.labs import Lab
from nbtorchjob.spec.cluster import KINDS, Cluster
from tests.backends.kubernetes.cluster import Emulator
from tests.benchmarks.measure import own_state

TWO = JobSpec(Elastic(nproc_per_node=2), all_ranks=True)
POD: "dict[str, Any]" = {"image": "localhost/torch:1", "cpu": "400m", "memory": "1500Mi"}
LATEST_S = 0.5  # at most, from sending the cell to the interrupt or the kernel's end

# A kernel that sends one cell after the other until it is killed; it prints those that have returned.
KERNEL = """
import sys
import nbtorchjob
lab, first = nbtorchjob.lab(sys.argv[1]), int(sys.argv[2])
def add(number):
    seen.append(number)
    return len(seen)
for number in range(first, first + int(sys.argv[3])):
    lab.run(add, number).result()
    print(number, flush=True)
"""


seen: "list[int]" = []  # on the ranks: the numbers of the cells that ran


def begin() -> None:
    """Create the list that the cells change."""
    global seen
    seen = []


def busy(number: int) -> None:
    """Run until an interrupt, which may come anywhere."""
    seen.append(number)
    while True:
        sum(range(1000))


def look() -> "tuple[int, list[int]]":
    """Return this process's id, and the cells that ran here."""
    return os.getpid(), seen


def interrupted(lab: Lab, trials: int, rng: random.Random) -> str:
    """Interrupt so many cells; return the fault, or an empty string."""
    before = looked(lab)
    for number in range(trials):
        job = lab.run(busy, number)
        time.sleep(rng.random() * LATEST_S * rng.random())
        job.cancel()
        try:
            job.result(60)
            return f"cell {number} ended well"
        except JobFailedError as exc:
            if "KeyboardInterrupt" not in str(exc):
                return f"cell {number}: {exc}"
    after = looked(lab)
    if [pid for pid, _ in before] != [pid for pid, _ in after]:
        return "other processes stand there"
    if len({tuple(numbers) for _, numbers in after}) > 1:
        print("  (a cell that was taken back on one rank had begun on the other)")
    for _, numbers in after:
        if numbers != sorted(set(numbers)):
            return f"out of order, or twice: {numbers}"
    return ""


def looked(lab: Lab) -> "list[tuple[int, list[int]]]":
    return lab.run(look).results(60)


def killed(lab: Lab, trials: int, rng: random.Random) -> str:
    """Kill so many kernels, one after the other; return the fault, or an empty string."""
    lab.run(begin).result(60)
    home: list[int] = []
    for trial in range(trials):
        with kernel_of(lab, 1000 * trial, 1000) as kernel:
            assert kernel.stdout is not None
            first = kernel.stdout.readline()  # it has begun
            time.sleep(rng.random() * LATEST_S * (4 if lab.info.cluster else 1))
            os.kill(kernel.pid, signal.SIGKILL)
            home += [int(first), *map(int, kernel.stdout.read().split())]
    cells, *others = [numbers for _, numbers in looked(lab)]
    if any(other != cells for other in others):
        return "ranks differ"
    if cells != sorted(set(cells)):
        return f"out of order, or twice: {cells}"
    if lost := {*home} - {*cells}:
        return f"lost, though their values came home: {sorted(lost)}"
    print(f"  {len(cells)} cells ran, of which {len(home)} were known to the kernels that sent them")
    return ""


def at_once(lab: Lab, cells: int, rng: random.Random) -> str:
    """Send so many cells from each of two kernels at once; return the fault, or an empty string."""
    lab.run(begin).result(60)
    starts = (0, cells)
    with kernel_of(lab, starts[0], cells) as kernel_a, kernel_of(lab, starts[1], cells) as kernel_b:
        home = [[int(line) for line in kernel.stdout or ()] for kernel in (kernel_a, kernel_b)]
    first, second = [numbers for _, numbers in looked(lab)]
    if first != second:
        return "ranks differ"
    for start, came in zip(starts, home, strict=True):
        expected = [*range(start, start + cells)]
        if came != expected or [line for line in first if line in expected] != expected:
            return f"out of order, lost, or twice: {first}, and home came {came}"
    turns = sum((a < cells) != (b < cells) for a, b in itertools.pairwise(first))
    print(f"  they took turns {turns} times")
    return ""


def kernel_of(lab: Lab, first: int, cells: int) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", KERNEL, lab.name, str(first), str(cells)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@contextmanager
def spec_of(kind: "str | None") -> Iterator[JobSpec]:
    """Yield the lab's spec; the emulator of its cluster, if any, runs as long."""
    if kind is None:
        yield TWO
        return
    with ExitStack() as stack:
        kubeconfig = os.environ.get("NBTORCHJOB_TEST_KUBECONFIG")
        os.environ["KUBECONFIG"] = kubeconfig or str(stack.enter_context(Emulator()).kubeconfig)
        cluster = Cluster(kind=kind, namespace="default", **POD)
        yield JobSpec(Elastic(2), "kubernetes", cluster=cluster, all_ranks=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interrupts", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--cells", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    wrong = 0
    with own_state(), spec_of(arguments.kind) as spec, nbtorchjob.keep(spec, name="lab") as lab:
        lab.run(begin).result(60)
        for label, times, trial in (
            ("interrupts", arguments.interrupts, interrupted),
            ("kernels killed", arguments.kernels, killed),
            ("cells of each of two kernels", arguments.cells, at_once),
        ):
            fault = trial(lab, times, rng)
            print(f"{times} {label}: {fault or 'no state lost'}")
            wrong += bool(fault)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
