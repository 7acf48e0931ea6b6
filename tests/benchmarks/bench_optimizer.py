"""How long a warm job takes for its first optimizer step, for which torch imports its compiler.

*plain* is a ``python script.py`` that does the same and ends.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import nbtorchjob
from nbtorchjob import Elastic
from nbtorchjob.backends.local.launch import pool
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 7

SCRIPT = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight])
weight.sum().backward()
optimizer.step()
"""


def stepped() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()


def nothing() -> None:
    pass


def call(fn: Callable[[], None]) -> float:
    started = time.perf_counter()
    job = nbtorchjob.submit(fn, spec=Elastic())
    job.result(120)
    took = time.perf_counter() - started
    job.delete()
    return took


def plain(script: Path) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, str(script)], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return time.perf_counter() - started


def main() -> None:
    with own_state() as folder:
        script = folder / "plain.py"
        script.write_text(SCRIPT)
        pool.import_all()
        timings = in_turn(
            {
                "plain": lambda: plain(script),
                "warm job, one step": lambda: call(stepped),
                "warm job, nothing": lambda: call(nothing),
            },
            ROUNDS,
        )
        goals = {"warm job, one step": 0.06}
        times = medians(timings)
        rows = [Row(name, value, times["plain"], goals.get(name)) for name, value in times.items()]
        memory = Path(f"/proc/{pool.process().pid}/status").read_text().partition("VmRSS:")[2].split()[0]
        show("First optimizer step", "plain", rows, spread(timings), f"pool: {int(memory) // 1024} MiB")


if __name__ == "__main__":
    main()
