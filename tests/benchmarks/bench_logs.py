"""The cost of a million lines of log to the rank that writes them, the kernel and the browser.

A card watches the job, as in a notebook; a fake browser counts what the card would send to it. The
yardstick is the same loop in the same kind of job with its output thrown away.
"""

import gc
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import IPython.display

import nbtorchjob
from nbtorchjob.backends.local import directory
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.job import Job
from nbtorchjob.ui.card import view
from tests.benchmarks.measure import Row, own_state, show, spread

ROUNDS = 9
LINES = 1_000_000
MB = 1_000_000
GOAL = 1.3


class Browser:
    """A fake of the notebook's front end, which counts the messages and bytes that it gets."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def display(self, bundle: Mapping[str, str], **_: Any) -> "Browser":
        self.update(bundle)
        return self

    def update(self, bundle: Mapping[str, str], **_: Any) -> None:
        self.messages += 1
        self.bytes += len(json.dumps(bundle))


def chatty(lines: int, target: str | None) -> float:
    """Print ``lines`` lines, to the rank's log or to ``target``; return the seconds that took."""
    if target is not None:
        sys.stdout = open(target, "w")  # noqa: SIM115 the rank's end closes it
    started = time.perf_counter()
    for number in range(lines):
        print("line %d" % number)  # noqa: UP031 as many a training loop does
    sys.stdout.flush()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Watched:
    """One watched job: seconds of its loop and of all of it, and what it cost elsewhere, in MB."""

    loop: float
    whole: float
    grown: float
    peak: float
    sent: float
    messages: int
    lost: int


def watched(lines: int, target: str | None) -> Watched:
    """Run the loop as a job under a card, as a cell does."""
    browser = Browser()
    IPython.display.display = browser.display  # type: ignore[assignment]
    gc.collect()
    before = resident()
    forget_peak()
    started = time.perf_counter()
    job = nbtorchjob.submit(chatty, lines, target)
    card = view.Card(OFFERS)
    with redirect_stdout(io.StringIO()) as printed:  # a job too short for a card prints its log's end
        view.watch(job, card)
        loop = job.result(300)
        card.close(job.state, str(loop))
    browser.bytes += len(printed.getvalue())
    whole = time.perf_counter() - started
    peak = resident(peak=True) - before
    gc.collect()
    grown = resident() - before
    lost = 0 if target else lost_lines(job, lines)
    job.delete()
    return Watched(loop, whole, grown, peak, browser.bytes / MB, browser.messages, lost)


def lost_lines(job: Job[Any], lines: int) -> int:
    """Count the misplaced lines of the log, in another process: the memory of this one is measured."""
    log = next((directory.jobs_dir() / job.name).glob("node-*/round-*/rank-0.log"))
    check = f'awk \'$0 == "line " NR-1 {{ n++ }} END {{ print {lines} - n }}\' "$0"'
    return int(subprocess.run(["sh", "-c", check, str(log)], capture_output=True, check=True).stdout)


def resident(*, peak: bool = False) -> float:
    """Return this process's resident memory in MB: now, or the most since ``forget_peak``."""
    name = "VmHWM:" if peak else "VmRSS:"
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / MB


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    with own_state() as folder:
        targets = {"log": None, "null": os.devnull, "file": str(folder / "lines")}
        watched(1000, None)  # to import everything, and start the pool
        rounds = [{name: watched(LINES, to) for name, to in targets.items()} for _ in range(ROUNDS)]
    report({name: [round_[name] for round_ in rounds] for name in targets})


def report(taken: dict[str, list[Watched]]) -> None:
    loop = {name: median(run.loop for run in runs) for name, runs in taken.items()}
    whole = {name: median(run.whole for run in runs) for name, runs in taken.items()}
    show(
        "Logs: a rank that prints a million lines",
        "thrown away",
        [
            Row("the loop, thrown away", loop["null"], loop["null"]),
            Row("the loop, to a plain file", loop["file"], loop["null"]),
            Row("the loop, to the job's log", loop["log"], loop["null"], GOAL),
            Row("the job, thrown away", whole["null"], whole["null"]),
            Row("the job, to the job's log", whole["log"], whole["null"], GOAL),
        ],
        spread({name: [run.loop for run in runs] for name, runs in taken.items()}),
    )
    runs = taken["log"]
    show(
        "Logs: what the kernel and the browser have of it (the worst round)",
        "1",
        [
            Row("kernel's growth", max(run.grown for run in runs), 1, 5, "MB"),
            Row("kernel's growth at its peak", max(run.peak for run in runs), 1, None, "MB"),
            Row("sent to the browser", max(run.sent for run in runs), 1, 1, "MB"),
            Row("messages to the browser", max(run.messages for run in runs), 1, None, ""),
            Row("lines lost", max(run.lost for run in runs), 1, 0, ""),
        ],
    )


if __name__ == "__main__":
    main()
