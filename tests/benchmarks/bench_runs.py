"""How long 12 runs of 0.2 s take on this machine, one for each core at a time, compared with other tools.

*plain* are 12 ``python script.py`` that import torch and sleep, as many at a time as there are cores: the
cost of separate processes alone. joblib's workers and ipyparallel's engines are one process each for all of
their calls, and started before: a call there has no process, log, value file or record.

Each run forks six processes, which end with it (``bench_launch``), and the next run's must not begin before
the last one's have ended: a core is idle for the fork of a supervisor, an agent and a rank.

The card of a group is drawn twice a second while a cell waits for it: drawing it for 1,000 runs with 100
reports each is compared with that period.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path

from joblib import Parallel, delayed  # type: ignore[import-not-found,import-untyped,unused-ignore]

import nbtorchjob
from nbtorchjob.backends.local.launch import pool
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts.events import Event, NodeStarted, Reported, WorkersStarted
from nbtorchjob.ui.runs.view import PERIOD_S, mimebundle
from tests.benchmarks.engines import engines
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 3
MANY, SECONDS = 12, 0.2
RUNS, REPORTS = 1000, 100
CORES = len(os.sched_getaffinity(0))
SCRIPT = f"import time, torch; time.sleep({SECONDS})"


def work(number: int) -> int:
    time.sleep(SECONDS)
    return number


def runs() -> None:
    sweep = nbtorchjob.map(work, [{"number": number} for number in range(MANY)])
    assert sweep.results(300) == [*range(MANY)]


def with_joblib(parallel: Parallel) -> None:
    assert parallel(delayed(work)(number) for number in range(MANY)) == [*range(MANY)]


def plain(script: Path) -> None:
    def one(_number: int) -> None:
        subprocess.run([sys.executable, str(script)], check=True)

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(one, range(MANY)))


# Defines ``act``, which runs the same on ipyparallel's engines.
MAP = f"""
import time

def work(number):
    import time
    time.sleep({SECONDS})
    return number

view = client.load_balanced_view()

def act():
    assert view.map_sync(work, range({MANY})) == [*range({MANY})]
"""


def timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def reported(number: int) -> JobState:
    """Return the state of an unfinished run after its reports."""
    info = JobInfo(f"sweep-r{number}", created=1.0, group="sweep", number=number, given={"lr": number / 1000})
    events: list[Event] = [NodeStarted(2.0, 0, "host", 1), WorkersStarted(2.1, 0, 0, 1, (0,), 1)]
    events += [Reported(3.0 + seq, 0, 1, seq, {"loss": 1 / (seq + number)}) for seq in range(REPORTS)]
    return reduce(apply, events, JobState(info))


def card() -> None:
    states = [reported(number) for number in range(1, RUNS + 1)]
    times = medians(in_turn({"card": lambda: timed(lambda: mimebundle("sweep", states, live=True))}, ROUNDS))
    row = Row("drawing it", times["card"], PERIOD_S, goal=0.25)
    show(f"The card of {RUNS:,} runs", "time between two", [row])


def main() -> None:
    with own_state() as folder, Parallel(n_jobs=CORES) as parallel, engines(folder, MAP) as mapped:
        script = folder / "plain.py"
        script.write_text(SCRIPT)
        pool.import_all()
        with_joblib(parallel)
        subjects = {
            "plain": lambda: timed(lambda: plain(script)),
            "joblib": lambda: timed(lambda: with_joblib(parallel)),
            "nbtorchjob.map": lambda: timed(runs),
        }
        if mapped is not None:
            mapped(1)
            subjects["ipyparallel"] = lambda: sum(mapped(1))
        timings = in_turn(subjects, ROUNDS)
    times = medians(timings)
    least = MANY * SECONDS / CORES
    rows = [
        Row("12 plain processes", times["plain"], times["plain"], peer=True),
        Row("joblib, warm workers", times["joblib"], times["plain"], peer=True),
        *(
            Row("ipyparallel, warm engines", times[name], times["plain"], peer=True)
            for name in times.keys() & {"ipyparallel"}
        ),
        Row("nbtorchjob.map", times["nbtorchjob.map"], times["plain"], goal=0.5),
    ]
    note = f"the least that {MANY} × {SECONDS} s take on {CORES} cores is {least:.1f} s"
    show(f"Runs: {MANY} of {SECONDS} s", "plain", rows, note, spread(timings))


if __name__ == "__main__":
    main()
    card()
