"""How long 12 runs of 0.2 s take on this machine, one for each core at a time, beside other ways to that.

*plain* are 12 ``python script.py`` that import torch and sleep, as many at a time as there are cores: what
anybody pays for processes of their own. joblib's workers are one process each for all of its calls, and were
started before: a call there has no process, log, value file or record of its own.

Each run is six processes that are forked and end (``bench_launch``), of which the next run's must not begin
before the last one's have ended: a core is idle for the fork of a supervisor, an agent and a rank.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from joblib import Parallel, delayed  # type: ignore[import-not-found,import-untyped,unused-ignore]

import nbtorchjob
from nbtorchjob.backends.local.launch import pool
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 3
MANY, SECONDS = 12, 0.2
CORES = len(os.sched_getaffinity(0))
SCRIPT = f"import time, torch; time.sleep({SECONDS})"


def work(number: int) -> int:
    time.sleep(SECONDS)
    return number


def runs() -> None:
    found = nbtorchjob.map(work, [{"number": number} for number in range(MANY)])
    assert found.results(300) == [*range(MANY)]


def with_joblib(parallel: Parallel) -> None:
    assert parallel(delayed(work)(number) for number in range(MANY)) == [*range(MANY)]


def plain(script: Path) -> None:
    def one(_number: int) -> None:
        subprocess.run([sys.executable, str(script)], check=True)

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(one, range(MANY)))


def timed(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def main() -> None:
    with own_state() as folder, Parallel(n_jobs=CORES) as parallel:
        script = folder / "plain.py"
        script.write_text(SCRIPT)
        pool.import_all()
        with_joblib(parallel)
        taken = in_turn(
            {
                "plain": lambda: timed(lambda: plain(script)),
                "joblib": lambda: timed(lambda: with_joblib(parallel)),
                "nbtorchjob.map": lambda: timed(runs),
            },
            ROUNDS,
        )
    found = medians(taken)
    least = MANY * SECONDS / CORES
    rows = [
        Row("12 plain processes", found["plain"], found["plain"], peer=True),
        Row("joblib, warm workers", found["joblib"], found["plain"], peer=True),
        Row("nbtorchjob.map", found["nbtorchjob.map"], found["plain"], goal=0.5),
    ]
    note = f"the least that {MANY} × {SECONDS} s take on {CORES} cores is {least:.1f} s"
    show(f"Runs: {MANY} of {SECONDS} s", "plain", rows, note, spread(taken))


if __name__ == "__main__":
    main()
