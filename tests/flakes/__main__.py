"""Find flakes: run tests of processes, pods and browsers over and over, in random order, on a busy machine.

    python -m tests.flakes [--minutes N] [--rounds N] [PYTEST_ARGUMENT...]

Prints how often each test failed, and writes a row for each failure, as runs with --look-twice do. Exits with
1 if any test failed.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.flakes.twice import ROWS, write_row

TESTS = ["-m", "torch or kernel or pods"]
BROWSER = Path("tests/browser")
BUSY_LOOPS = 2
_END_S = 60.0  # for a run that is interrupted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flakes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long to go on (default: 60)")
    parser.add_argument("--rounds", type=int, help="how many times at most to run everything")
    options, chosen = parser.parse_known_args()
    until = time.monotonic() + 60 * options.minutes
    runs, failures = Counter[str](), Counter[str]()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS)]
    try:
        rounds = itertools.repeat(None) if options.rounds is None else itertools.repeat(None, options.rounds)
        for _ in itertools.takewhile(lambda _: time.monotonic() < until, rounds):
            # Browser tests carry no mark: their folder selects them.
            for selected in [chosen] if chosen else [TESTS, [str(BROWSER)]]:
                run(selected, until, runs, failures)
    except KeyboardInterrupt:
        print("\ninterrupted")
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    report(runs, failures)
    return 1 if failures else 0


def run(selected: list[str], until: float, runs: Counter[str], failures: Counter[str]) -> None:
    """Run the selected tests once, at most until ``until``, and count runs and failures."""
    seed = str(random.randrange(10**6))
    print(f"\n--- pytest {' '.join(selected)} --shuffle {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        # Only xunit1 records the file of each test.
        argv = ["-n", "2", "--dist", "worksteal", "--shuffle", seed, "-q", "--tb", "no", "--no-summary"]
        argv += ["-o", "junit_family=xunit1", f"--junitxml={results}", *selected]
        process = subprocess.Popen([sys.executable, "-m", "pytest", *argv])
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest writes the results so far
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if results.exists():
            count(results, runs, failures)


def count(results: Path, runs: Counter[str], failures: Counter[str]) -> None:
    """Count runs and failures, and write a row for each failure."""
    for case in ElementTree.parse(results).iter("testcase"):
        test = f"{case.get('file')}::{case.get('name')}"
        if case.find("skipped") is not None:
            continue
        runs[test] += 1
        failed = [part for part in case if part.tag in ("failure", "error")]
        if failed:
            failures[test] += 1
            seconds = float(case.get("time", 0))
            phase = "call" if failed[0].tag == "failure" else "setup or teardown"
            text = "\n".join(f"{part.text}" for part in [*failed, *case.iter("system-out")])
            write_row(Path(), [test], phase, seconds, os.getloadavg()[0], text)


def report(runs: Counter[str], failures: Counter[str]) -> None:
    print(f"\n{runs.total():,} runs of {len(runs):,} tests, {failures.total()} failures")
    for test, times in failures.most_common():
        print(f"{times / runs[test]:7.1%}  {times} of {runs[test]}  {test}")
    if failures:
        print(f"What they said is in {ROWS}.")


if __name__ == "__main__":
    sys.exit(main())
