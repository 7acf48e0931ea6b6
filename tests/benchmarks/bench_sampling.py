"""What it costs a rank to be looked at, and how long a node takes to know what its ranks do.

The loop is of 1 KiB all_reduces on two ranks. Processor time is counted, as other work makes it no
longer. *off* is without torch's flight recorder and without a sampler, *torch* as torch comes, with its
recorder on (2.13), *ours* as ranks have it, and *asked* the same while its node asks it ten times a second,
where a node asks once.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing

from nbtorchjob.runtime import recorder
from nbtorchjob.runtime.inquiry import Inquiry
from tests.benchmarks.measure import Row, in_turn, medians, show, spread

ROUNDS = 7
RANKS = (2, 8, 32)

LOOP = """
import os, sys, time
import torch
import torch.distributed as dist
from nbtorchjob.runtime.sampler import Sampler

if sys.argv[1]:
    Sampler(int(os.environ["RANK"])).start(sys.argv[1])
dist.init_process_group("gloo")
data = torch.ones(256)
for line in sys.stdin:
    began = time.process_time()
    for _ in range(int(line)):
        dist.all_reduce(data)
    print(time.process_time() - began, flush=True)
"""

WAIT = """
import os, sys, threading, time
import torch
import torch.distributed as dist
from nbtorchjob.runtime.sampler import Sampler

Sampler(int(os.environ["RANK"])).start(sys.argv[1])
dist.init_process_group("gloo")
for _ in range(600):
    dist.all_reduce(torch.ones(256))
print("begun", flush=True)
if dist.get_rank():
    dist.barrier()
else:
    sys.stdin.read()
"""

START = """
import json, statistics, tempfile, time
from nbtorchjob.runtime.lookout import Lookout
from nbtorchjob.runtime.sampler import Sampler

took = {"node": [], "rank": []}
for number in range(50):
    folder = tempfile.mkdtemp()
    began = time.perf_counter()
    Lookout(folder, 0, 120)
    middle = time.perf_counter()
    Sampler(0).start(folder)
    took["node"].append(middle - began)
    took["rank"].append(time.perf_counter() - middle)
print(json.dumps({name: statistics.median(each) for name, each in took.items()}))
"""


class Ranks:
    """Processes that are ranks of one group."""

    def __init__(self, script: str, number: int, folder: str = "", **env: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, folder],
                env={**os.environ, **meet, "OMP_NUM_THREADS": "1", "RANK": str(rank), **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what they say as the others are killed
                text=True,
                bufsize=1,
            )
            for rank in range(number)
        ]

    def run(self, line: str) -> list[str]:
        """Write a line to each; return what each one says."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(line)
        return self.said()

    def said(self) -> list[str]:
        return [process.stdout.readline() for process in self.processes if process.stdout]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def loops() -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Inquiry(folder)) as inquiry:
        size, off = recorder.SIZES[0], Ranks(LOOP, 2, **{recorder.SIZES[0]: "0"})
        torchs, ours = Ranks(LOOP, 2), Ranks(LOOP, 2, folder, **{size: str(recorder.SIZE)})
        inquiry.enter({rank: process.pid for rank, process in enumerate(ours.processes)})
        number = max(1, int(0.3 / each(off, 300)))
        subjects: dict[str, Callable[[], float]] = {
            "off": lambda: each(off, number),
            "torch": lambda: each(torchs, number),
            "ours": lambda: each(ours, number),
            "asked": lambda: asked(ours, number, inquiry),
        }
        taken = in_turn(subjects, ROUNDS)
        for ranks in (off, torchs, ours):
            ranks.end()
    found = medians(taken)
    goals = {"ours": 1.02, "asked": 1.02}
    rows = [Row(name, value, found["torch"], goals.get(name)) for name, value in found.items()]
    show("Looked at: 1 KiB all_reduce on two ranks, processor time", "torch", rows, spread(taken))


def each(ranks: Ranks, number: int) -> float:
    """Return the seconds of processor time that an all_reduce takes of a rank."""
    return sum(float(line) for line in ranks.run(f"{number}\n")) / number / len(ranks.processes)


def asked(ranks: Ranks, number: int, inquiry: Inquiry) -> float:
    """Return the same while the ranks are asked."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.1):
            assert len(inquiry.pulses()) == len(ranks.processes)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        return each(ranks, number)
    finally:
        over.set()
        asking.join()


def answers() -> None:
    rows, notes = [], []
    for number in RANKS:
        with tempfile.TemporaryDirectory() as folder, closing(Inquiry(folder)) as inquiry:
            ranks = Ranks(WAIT, number, folder, **{recorder.SIZES[0]: str(recorder.SIZE)})
            ranks.said()
            inquiry.enter({rank: process.pid for rank, process in enumerate(ranks.processes)})
            taken = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                found = inquiry.samples()
                taken.append(time.perf_counter() - began)
                assert {each["state"] for each in found} == {"runs"}, found
            ranks.end()
        rows.append(Row(f"{number} ranks", statistics.median(taken), 1.0, 1.0))
        notes.append(f"{number} ranks: {len(json.dumps(found)):,} bytes")
    show("From the question to what the ranks of a node do", "1 s", rows, *notes)


def starts() -> None:
    """What a rank and a node pay to begin with."""
    took = json.loads(subprocess.run([sys.executable, "-c", START], check=True, capture_output=True).stdout)
    rows = [Row(name, value, 0.035) for name, value in took.items()]
    show("To be looked at from the start", "a warm call of 35 ms", rows)


if __name__ == "__main__":
    starts()
    loops()
    answers()
