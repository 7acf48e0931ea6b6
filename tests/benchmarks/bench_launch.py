"""How long it takes from submitting two gloo ranks to rank 0's value at the caller.

*plain* is the same without a launcher: two ``python script.py`` that meet by ``env://``, do one
all_reduce, and end.

The 160 ms and more of a warm call, on 2 cores (Linux 6.18, torch 2.13, Python 3.11; medians of 24 jobs, from
before the fix of OpenBLAS's threads, see below):

    9 ms   the kernel captures the call, and writes the job's folder
    14 ms  the pool forks the warden, which forks the supervisor, which claims the job
    26 ms  the agent: 4 to fork it, 8 to check the payload and become its program, 6 to fork the template
    9 ms   the agent finds no other nodes to meet, and enters a round
    31 ms  two ranks: 15 until the first, 7 until the second, 8 each for the setup of a fresh process
    28 ms  the call itself, which takes 4 ms in a plain process; OpenBLAS's threads took the rest
    13 ms  the tail: 3 until the last rank returns, 10 until all processes are gone

A call forks six processes, each from the one before, except for the ranks. A fork of 230 MB takes 2 ms if
they lie in huge pages; but each process writes to reference counts all over (Python 3.11), which splits
those pages: a rank has 50 MB of 200 in huge pages, so its fork copies 40,000 page table entries, and its end
frees as many.

In CPU time, which other load changes less (user and system by ``getrusage`` in each process, medians of 20
jobs on a busy machine, and the total of the pool's children), a call takes 115 ms, down from 158 when each
rank's OpenBLAS started a thread that spun for 25 ms, and an agent looked at all modules and loggers:

    35 ms  the agent, half of it in the kernel, which copies the 5,200 pages that the agent writes
    37 ms  the two ranks, 3,400 pages each
    15 ms  warden and supervisor, 2,400 pages
    30 ms  the ends of all six processes

By ``perf record``, page faults take 39% of the time before the ends, forks 18%, and Python's own code 25%.
The goal of 0.035, some 70 ms on two cores, is less than copying pages, forks and ends take. A node that is
forked before its job exists, agent and template included, would save four forks, 18 of 142 ms
(medians of 32 jobs, by the monotonic clock at some forty places of each), or 27 of 162 ms of CPU time on
a busy machine (31 jobs; four forks of a pool's process, one from the other). It wouldn't shorten a call that
follows another, as the next node's 50 ms of CPU time would slow down the running job; for the first call
after a pause it would hold the 20 MB that an agent writes.

A first call starts the pool, which has to import torch: that alone takes 0.72 of *plain*, in which two ranks
import it side by side (2.7 s of 3.8 on a slow day, 0.79 with all that a pool imports before its first job),
so the goal of 0.6 is for a call that finds a pool. That is why loading the extension starts one.

The tail also sets the floor of a warm call: four processes end with a job, 4 to 5 ms each, two at a time;
the call waits for nothing else. If the end were reported before they are gone, the next job could collide
with this one's ports and GPU memory. Nor can the template end earlier: it is the ranks' parent, and they die
with it.
"""

import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import nbtorchjob
from nbtorchjob import Elastic, JobSpec
from nbtorchjob.backends.local.launch import pool
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 5
TAIL_GOAL_S = 0.010
WARM_CALLS = 4  # a round: a warm call is so short that one alone is mostly noise
TORCHRUNX = "torchrunx==0.4.0"

SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
assert total.item() == 3.0
dist.destroy_process_group()
"""

# The launcher imports torch itself; that is left out, as a notebook would have it already.
TORCHRUNX_SCRIPT = """
import time
import torch
import torch.distributed as dist
import torchrunx

def summed():
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return total.item()

if __name__ == "__main__":
    started = time.perf_counter()
    launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=2, backend="gloo")
    assert launcher.run(summed).rank(0) == 3.0
    print(time.perf_counter() - started)
"""


def summed() -> float:
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return float(total)


def call(spec: Elastic | JobSpec) -> float:
    started = time.perf_counter()
    job = nbtorchjob.submit(summed, spec=spec)
    value = job.result(120)
    took = time.perf_counter() - started
    assert value == 3.0
    job.delete()
    return took


def first_call() -> float:
    pool.stop()
    return call(Elastic(nproc_per_node=2))


def tail() -> float:
    """Return the seconds from a warm job's value to its end."""
    job = nbtorchjob.submit(summed, spec=Elastic(nproc_per_node=2))
    job.result(120)
    state = job.state
    assert state.ended is not None
    took = state.ended - state.values[0].time
    job.delete()
    return took


def warm_call(spec: Elastic | JobSpec) -> Callable[[], float]:
    return lambda: sum(call(spec) for _ in range(WARM_CALLS)) / WARM_CALLS


def plain(script: Path) -> float:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    ranks = [
        subprocess.Popen([sys.executable, str(script)], env={**os.environ, **meet, "RANK": str(rank)})
        for rank in range(2)
    ]
    codes = [rank.wait(120) for rank in ranks]
    took = time.perf_counter() - started
    assert codes == [0, 0], codes
    return took


def torchrun(script: Path) -> float:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    started = time.perf_counter()
    subprocess.run([*argv, str(script)], check=True, capture_output=True, text=True, timeout=120)
    return time.perf_counter() - started


class Peer:
    """Another tool; a failed run of it becomes a note and doesn't end the benchmark."""

    def __init__(self, name: str, run: Callable[[], float]) -> None:
        self.name = name
        self._run = run
        self.failures: list[str] = []

    def __call__(self) -> float:
        """Return how long a run took, NaN if it failed."""
        try:
            return self._run()
        except subprocess.SubprocessError as exc:
            stderr = exc.stderr if isinstance(exc, subprocess.CalledProcessError) else None
            lines = [line for line in (stderr or "").splitlines() if line.strip()]
            self.failures.append(f"{self.name} failed: {lines[-1].strip() if lines else exc}")
        return math.nan


def install_torchrunx(folder: Path) -> str | None:
    """Return the PYTHONPATH of torchrunx, installed into ``folder`` if need be; None if that fails."""
    if subprocess.run([sys.executable, "-c", "import torchrunx"], capture_output=True).returncode == 0:
        return ""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    # Without dependencies first: its torch would come with gigabytes of CUDA.
    for arguments in (["--no-deps", TORCHRUNX], ["fabric>=3.2"]):
        if subprocess.run([*install, *arguments], capture_output=True).returncode != 0:
            return None
    return str(folder)


def torchrunx(script: Path, path: str) -> float:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,  # where it leaves its logs
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    with own_state() as folder:
        script, other_script = folder / "plain.py", folder / "with_torchrunx.py"
        script.write_text(SCRIPT)
        other_script.write_text(TORCHRUNX_SCRIPT)
        two = Elastic(nproc_per_node=2)
        subjects: dict[str, Callable[[], float]] = {
            "plain": lambda: plain(script),
            "first call": first_call,
            "warm call": warm_call(two),
            "warm call, two nodes": warm_call(Elastic(nnodes=2)),
            "warm call, nnodes 1:2": warm_call(Elastic(nnodes="1:2")),
        }
        peers = [Peer("torchrun", lambda: torchrun(script))]
        path = install_torchrunx(folder / "torchrunx")
        if path is not None:
            peers.append(Peer("torchrunx", lambda: torchrunx(other_script, path)))
        samples = in_turn({**subjects, **{peer.name: peer for peer in peers}}, ROUNDS)
        notes = [failure for peer in peers for failure in peer.failures]
        if path is None:
            notes.append("torchrunx: not installed")
        report(measured(samples), notes)
        took = median(tail() for _ in range(ROUNDS * WARM_CALLS))
        show("Launch: a warm job's tail, from its value to its end", "1", [Row("tail", took, 1, TAIL_GOAL_S)])


def measured(taken: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the successful runs of the subjects that have any."""
    came = {name: [value for value in values if not math.isnan(value)] for name, values in taken.items()}
    return {name: values for name, values in came.items() if values}


def report(taken: dict[str, list[float]], notes: Sequence[str]) -> None:
    nodes = {"warm call, two nodes": 0.1, "warm call, nnodes 1:2": 0.1}
    goals = {"first call": 0.6, "warm call": 0.035, **nodes}
    times = medians(taken)
    base = times["plain"]
    peers = ("torchrun", "torchrunx")
    rows = [Row(name, value, base, goals.get(name), peer=name in peers) for name, value in times.items()]
    show("Launch: two ranks, gloo, one all_reduce, the value back", "plain", rows, spread(taken), *notes)


if __name__ == "__main__":
    main()
