"""The cost of folding a report, by the number of ranks, each of which has reported before.

The yardstick is a job of two ranks. Also the cost of the first look at a wide job with many reports.
"""

import json
import time
from functools import reduce
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from nbtorchjob import capture, submission
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobState
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.fold import apply
from tests.benchmarks.measure import Row, show

RANKS = (2, 32, 512, 8_192, 65_536)
ROUNDS, REPORTS = 7, 400
GOAL_US = 10.0  # for 8,192 ranks
READING_GOAL_S = 4.0


def reported(state: JobState, ranks: range, number: int) -> JobState:
    """Return the job after one more report of each of these ranks."""
    at, metrics = state.info.created + number, {"step": number + 1, "loss": 1 / (number + 1)}
    for rank in ranks:
        state = apply(state, ev.Reported(at, rank, 0, number, metrics))
    return state


def seconds(state: JobState, ranks: int) -> float:
    """Return the CPU seconds of folding one report."""
    some, rounds = range(0, ranks, max(1, ranks // REPORTS)), []
    for number in range(2, 2 + ROUNDS):
        facts = [ev.Reported(state.info.created + number, rank, 0, number, {"loss": 1.0}) for rank in some]
        facts *= max(1, REPORTS // len(facts))
        began = time.process_time()
        for fact in facts:
            state = apply(state, fact)
        rounds.append((time.process_time() - began) / len(facts))
    return median(rounds)


def first_reading(ranks: int, reports: int) -> tuple[float, float]:
    """Return the CPU seconds of the first reading of so many ranks' reports, and the MB of these."""
    job = JobState(submission.describe(capture.from_cell("1", {}), JobSpec(name="wide")))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        with open(path, "w") as file:
            for number in range(reports):
                for rank in range(ranks):
                    metrics = {"step": number + 1, "loss": 1 / (number + 1)}
                    fact = ev.Reported(job.info.created + number, rank, 0, number, metrics)
                    file.write(json.dumps(factlines.to_json(fact)) + "\n")
        began = time.process_time()
        state = reduce(apply, EventFile(JobDirectory(path.parent)).read_lasting(), job)
        took = time.process_time() - began
        assert len(state.series) == ranks
        return took, path.stat().st_size / 1e6


def main() -> None:
    info = submission.describe(capture.from_cell("1", {}), JobSpec(name="wide"))
    took: dict[int, float] = {}
    for ranks in RANKS:
        state = reported(reported(JobState(info), range(ranks), 0), range(ranks), 1)
        took[ranks] = seconds(state, ranks)
    rows = [Row(f"{ranks} ranks", took[ranks], took[RANKS[0]]) for ranks in RANKS]
    show("Folding a report", "two ranks", rows)
    rows = [Row("8192 ranks", took[8_192] * 1e6, 1.0, GOAL_US, "us")]
    show("The same, in microseconds", "a microsecond", rows)
    first, size = first_reading(8_192, 20)
    show(
        f"The first reading of {size:.0f} MB that 8,192 ranks told",
        "a CPU second",
        [Row("8192 ranks", first, 1, READING_GOAL_S)],
    )


if __name__ == "__main__":
    main()
