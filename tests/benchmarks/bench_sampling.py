"""The cost of sampling to a rank, and how long a node takes to know what its ranks do.

The time of a 1 KiB all_reduce on two ranks depends on the machine's scheduler, and varies by a third from one
second to the next. The added cost doesn't depend on that: it is measured on single ranks, in turn, as the
processor time that a call takes more than in the same round's *off*, without torch's flight recorder and
without a sampler. *torch* is torch's default, with its recorder on (2.13), *ours* is a rank of a job, and
*asked* the same while its node asks a hundred times a second, instead of once. The cost is compared with a
call on two ranks. All ranks are forked from this process, which has imported torch.
"""

import json
import multiprocessing
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist

from nbtorchjob.runtime.look import recorder
from nbtorchjob.runtime.look.inquiry import Inquiry
from nbtorchjob.runtime.look.lookout import Lookout
from nbtorchjob.runtime.look.sampler import Sampler
from tests.benchmarks.measure import Row, in_turn, show

ROUNDS = 61
PAIRS = 7
ANSWERS = 7
STARTS = 50
GOALS = {"ours": 0.02, "asked": 0.02}
BATCH_US = 1e4  # shorter than a scheduler's time slice: most rounds run undisturbed
RANKS = (2, 8, 32)

_fork = multiprocessing.get_context("fork")


def loop(asked: Connection) -> None:
    """Make as many calls as requested; send back the processor time of a call, in microseconds."""
    data = torch.ones(256)
    while True:
        number = asked.recv()
        began = time.process_time()
        for _ in range(number):
            dist.all_reduce(data)
        asked.send(1e6 * (time.process_time() - began) / number)


def wait(asked: Connection) -> None:
    """Hang, after as many calls as the recorder keeps."""
    for _ in range(600):
        dist.broadcast(torch.ones(256), 0)  # with 32 ranks on two cores an all_reduce takes long
    asked.send("begun")
    if dist.get_rank():
        dist.barrier()
    signal.pause()


class Ranks:
    """Processes that are the ranks of one group; with a folder they run samplers for a node."""

    def __init__(self, work: Callable[[Connection], None], number: int, folder: str, size: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        pipes = [_fork.Pipe() for _ in range(number)]
        self.ends = [parent_end for parent_end, _ in pipes]
        self.processes = [
            _fork.Process(target=_run, args=(work, rank, number, port, folder, size, child_end), daemon=True)
            for rank, (_, child_end) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid or 0 for rank, process in enumerate(self.processes)}

    def run(self, number: int) -> float:
        """Return the processor time of a call on a rank, in microseconds."""
        self.begin(number)
        return self.ended()

    def begin(self, number: int) -> None:
        for end in self.ends:
            end.send(number)

    def ended(self) -> float:
        return float(statistics.mean(self.said()))

    def said(self) -> list[Any]:
        return [end.recv() for end in self.ends]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _run(
    work: Callable[[Connection], None],
    rank: int,
    number: int,
    port: int,
    folder: str,
    size: str,
    connection: Connection,
) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": number, "RANK": rank}
    os.environ.update({name: str(value) for name, value in where.items()})
    if size:
        os.environ[recorder.SIZES[0]] = size
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # drops its messages when the other ranks are killed
    if folder:
        Sampler(rank).start(folder)
    dist.init_process_group("gloo")
    work(connection)


def loops() -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Inquiry(folder)) as inquiry:
        pair, off, torchs = Ranks(loop, 2, "", ""), Ranks(loop, 1, "", "0"), Ranks(loop, 1, "", "")
        ours = Ranks(loop, 1, folder, str(recorder.SIZE))
        inquiry.enter(ours.pids)
        whole = statistics.median(pair.run(300) for _ in range(PAIRS))
        number = max(1, int(BATCH_US / off.run(1000)))
        subjects: dict[str, Callable[[], float]] = {
            "off": lambda: off.run(number),
            "torch": lambda: torchs.run(number),
            "ours": lambda: ours.run(number),
            "asked": lambda: asked(ours, number, inquiry),
        }
        timings = in_turn(subjects, ROUNDS)
        for ranks in (pair, off, torchs, ours):
            ranks.end()
    added = {name: _added(values, timings["off"]) for name, values in timings.items() if name != "off"}
    beside = _added(timings["ours"], timings["torch"])
    rows = [
        *(
            Row(f"{name}, more than off", statistics.median(more), whole, GOALS.get(name), "us")
            for name, more in added.items()
        ),
        Row("ours, more than torch", statistics.median(beside), whole, 0.02, "us"),
    ]
    notes = [f"{name}: half of the rounds {_middle(more)}" for name, more in added.items()]
    alone = statistics.median(timings["off"])
    notes.append(
        f"a call on two ranks takes {whole:.1f} us, on one {alone:.1f} us; {ROUNDS} rounds of {number}"
    )
    show("Looked at: what a 1 KiB all_reduce takes more, processor time", "one on two ranks", rows, *notes)


def _added(values: list[float], bases: list[float]) -> list[float]:
    return [value - base for value, base in zip(values, bases, strict=True)]


def _middle(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values)
    return f"{low:.2f} to {high:.2f} us"


def asked(ranks: Ranks, number: int, inquiry: Inquiry) -> float:
    """Return the same for ranks that their node asks meanwhile."""
    ranks.begin(number)
    assert len(inquiry.pulses()) == len(ranks.processes)
    return ranks.ended()


def answers() -> None:
    rows, notes = [], []
    for number in RANKS:
        with tempfile.TemporaryDirectory() as folder, closing(Inquiry(folder)) as inquiry:
            ranks = Ranks(wait, number, folder, str(recorder.SIZE))
            ranks.said()
            inquiry.enter(ranks.pids)
            timings = []
            for _ in range(ANSWERS):
                began = time.perf_counter()
                samples = inquiry.samples()
                timings.append(time.perf_counter() - began)
                assert {rank["state"] for rank in samples} == {"runs"}, samples
            ranks.end()
        rows.append(Row(f"{number} ranks", statistics.median(timings), 1.0, 1.0))
        notes.append(f"{number} ranks: {len(json.dumps(samples)):,} bytes")
    show("From the question to what the ranks of a node do", "1 s", rows, *notes)


def starts() -> None:
    """Measure the cost of sampling at the start of a node and of a rank."""
    parent_end, child_end = _fork.Pipe()
    process = _fork.Process(target=_start, args=(child_end,), daemon=True)
    process.start()
    rows = [Row(name, value, 35_000, 0.01, "us") for name, value in parent_end.recv().items()]
    process.kill()
    process.join()
    show("To be looked at from the start", "a warm call of 35 ms", rows)


def _start(pipe: Connection) -> None:
    took: dict[str, list[float]] = {"node": [], "rank": []}
    with tempfile.TemporaryDirectory() as parent:
        for number in range(STARTS):
            folder = os.path.join(parent, str(number))
            os.mkdir(folder)
            began = time.perf_counter()
            Lookout(folder, 0, 120)
            middle = time.perf_counter()
            Sampler(0).start(folder)
            took["node"].append(1e6 * (middle - began))
            took["rank"].append(1e6 * (time.perf_counter() - middle))
        pipe.send({name: statistics.median(seconds) for name, seconds in took.items()})
        signal.pause()


if __name__ == "__main__":
    starts()
    loops()
    answers()
