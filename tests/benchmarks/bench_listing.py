"""The cost of a list of thousands of ended jobs to the server: its disk, memory and event loop.

The yardstick is one ``stat`` in each job's folder in the same run: no list that looks there can be cheaper.
"""

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from nbtorchjob import capture, submission
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.frontends.server.handlers import Lanes
from nbtorchjob.frontends.server.routes import jobs
from nbtorchjob.frontends.server.watch import Watch
from nbtorchjob.machine import folders
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from tests.benchmarks.measure import Row, own_state, show

JOBS = 5000
FEW = 700  # in the list of a terminal
ROUNDS = 9
LIST_GOAL, ANSWER_GOAL = 4.0, 8.0
COMMAND_GOAL_S = 0.15
FIRST_GOAL_S = 1.5  # of CPU time
CELL = "\n".join(f"x{number} = torch.ones({number})" for number in range(40))


def write(number: int) -> None:
    """Write the folder of a job that has ended, as its supervisor leaves it."""
    at = time.time() - JOBS + number
    info = submission.describe(capture.from_cell("1", {}), JobSpec(name=f"job-{number:05}"))
    record = asdict(info) | {
        "created": at,
        "sources": {"cell": ("In [1]", CELL)},
        "notebook": "/home/ada/a.ipynb",
    }
    folder = directory.jobs_dir() / info.name
    folder.mkdir(mode=0o700)
    (folder / "job.json").write_text(json.dumps({"info": record}))
    lines = [json.dumps(factlines.to_json(event)) + "\n" for event in events(at)]
    (folder / "events.jsonl").write_text("".join(lines))


def events(at: float) -> list[ev.Event]:
    """Return the facts of a job of two ranks that reported 20 times."""
    ranks = (0, 1)
    reports = [
        ev.Reported(at + 3, rank, 0, seq, {"step": seq, "steps": 20}) for seq in range(20) for rank in ranks
    ]
    begun: list[ev.Event] = [
        ev.NodeStarted(at + 1, 0, "here", 7),
        ev.WorkersStarted(at + 2, 0, 0, 0, ranks, 2),
    ]
    return [*begun, *reports, ev.NodeExited(at + 4, 0, 0), ev.Closed(at + 5)]


def stats() -> float:
    """Return the seconds that one ``stat`` in each folder takes."""
    folder, started = directory.jobs_dir(), time.perf_counter()
    for name in os.listdir(folder):
        os.stat(f"{folder}/{name}/events.jsonl")
    return time.perf_counter() - started


def taken(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def resident() -> float:
    """Return this process's resident memory in MB."""
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS:")).split()[1]) / 1000


class Lag:
    """The delays of the event loop while it is watched."""

    def __init__(self) -> None:
        self.found: list[float] = []

    async def watch(self, work: Awaitable[object]) -> float:
        """Watch the loop while ``work`` runs; return the seconds that it took."""
        started = time.perf_counter()
        doing = asyncio.ensure_future(work)
        while not doing.done():
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            self.found.append(time.perf_counter() - due)
        await doing
        return time.perf_counter() - started


async def served() -> dict[str, tuple[float, float]]:
    """Return the seconds and the loop's worst lag of a first answer, a later one, and a quiet watch."""
    watch = Watch(Lanes(60, 4), {"local": 1.0, "kubernetes": 10.0}, lambda changes: None)
    cases: dict[str, Callable[[], Awaitable[object]]] = {
        "first": lambda: answer(watch),
        "later": lambda: answer(watch),
        "quiet": lambda: asyncio.sleep(5),
    }
    times = {}
    for name, work in cases.items():
        lag = Lag()
        times[name] = await lag.watch(work()), max(lag.found)
    await watch.stop()
    return times


async def answer(watch: Watch) -> str:
    """Return what ``GET jobs`` answers."""
    records, notes = await watch.jobs()
    return await jobs.jobs_json(watch.history.since("", records), notes)


def listed() -> float:
    """Return the seconds that the command takes to list all jobs, its interpreter's start included."""
    argv = [sys.executable, "-m", "nbtorchjob", "list"]
    return taken(lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL))


def fresh() -> tuple[float, float]:
    """Return the CPU seconds of a new server's first table, and the MB that it remembers, without imports."""
    code = "from tests.benchmarks import bench_listing; bench_listing.first_table()"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, cwd=os.getcwd())
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def first_table() -> None:
    """Print the CPU seconds of this process's first answer, and by how many MB it grew."""

    async def served() -> tuple[float, float]:
        watch = Watch(Lanes(60, 4), {"local": 1.0, "kubernetes": 10.0}, lambda changes: None)
        before, started = resident(), time.process_time()
        await answer(watch)
        took = time.process_time() - started
        grown = resident() - before
        await watch.stop()
        return took, grown

    print(*asyncio.run(served()))


def main() -> None:
    with own_state():
        for number in range(FEW):
            write(number)
        command = median(listed() for _ in range(ROUNDS))
        for number in range(FEW, JOBS):
            write(number)
        backend, before = LocalBackend(), resident()
        first = taken(backend.jobs)
        memory = resident() - before
        again, base = [], []
        for _ in range(ROUNDS):
            base.append(stats())
            again.append(taken(backend.jobs))
        assert threading.active_count() == 1
        times = asyncio.run(served())
        report(median(base), first, median(again), times)
        seconds, megabytes = fresh()
        shutil.rmtree(folders.state_dir() / "ended")
        unread, _ = fresh()
        starts = [
            Row("listed by another process before", seconds, 1, FIRST_GOAL_S),
            Row("each job read, as after an update", unread, 1, FIRST_GOAL_S),
        ]
        show(f"Listing: the first table of a server that starts, CPU seconds for {JOBS} jobs", "1", starts)
        rows = [
            Row("what a process remembers that listed them", memory, 1, 50, "MB"),
            Row("what a server remembers that has their rows", megabytes, 1, 20, "MB"),
        ]
        show(f"Listing: memory for {JOBS} jobs", "1", rows)
        show(f"Listing: nbtorchjob list of {FEW} jobs", "1", [Row("wall", command, 1, COMMAND_GOAL_S)])


def report(base: float, first: float, again: float, times: dict[str, tuple[float, float]]) -> None:
    show(
        f"Listing: {JOBS} jobs that have ended",
        "a stat each",
        [
            Row("a stat each", base, base),
            Row("the first list", first, base),
            Row("the next list", again, base, LIST_GOAL),
            Row("GET jobs, the first", times["first"][0], base),
            Row("GET jobs, a later one", times["later"][0], base, ANSWER_GOAL),
            Row("the loop's worst lag meanwhile, first", times["first"][1], base),
            Row("the loop's worst lag meanwhile, later", times["later"][1], base),
            Row("the loop's worst lag, nobody asks", times["quiet"][1], base),
        ],
    )


if __name__ == "__main__":
    main()
