"""The cost of a redraw of the card, by the number of ranks: each has reported 400 times, from step 1 on.

The yardstick is the card of two ranks: a cost that grows faster than the ranks isn't linear.
"""

import time
from itertools import pairwise
from statistics import median

from nbtorchjob import capture, submission
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobState
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.fold import apply
from nbtorchjob.ui.card import render
from tests.benchmarks.measure import Row, show

RANKS = (2, 8, 32, 128, 512)
REPORTS = 400
ROUNDS = 5
GOAL_S = 0.02  # for 32 ranks
MOST_GROWTH = 1.5  # times the growth of the ranks, from 32 on


def reported(ranks: int) -> JobState:
    """Return a job after ``REPORTS`` reports of each rank."""
    info = submission.describe(capture.from_cell("1", {}), JobSpec(name="wide"))
    at = info.created
    state = apply(JobState(info), ev.NodeStarted(at + 1, 0, "here", 7))
    state = apply(state, ev.WorkersStarted(at + 2, 0, 0, 0, tuple(range(ranks)), ranks))
    for number in range(REPORTS):
        state = once_more(state, ranks, number)
    return state


def once_more(state: JobState, ranks: int, number: int) -> JobState:
    """Return the job after one more report of each rank."""
    metrics = {"step": number + 1, "steps": 2 * REPORTS, "loss": 1 / (number + 1)}
    at = state.info.created + 3 + number / 10
    for rank in range(ranks):
        state = apply(state, ev.Reported(at, rank, 0, number, metrics))
    return state


def seconds(state: JobState) -> float:
    """Return the CPU seconds of one redraw."""
    began = time.process_time()
    render.html(state, state.info.created + 3 + REPORTS / 10)
    return time.process_time() - began


def main() -> None:
    took: dict[int, float] = {}
    for ranks in RANKS:
        state, rounds = reported(ranks), []
        seconds(state)  # for the work that a process does only once
        for number in range(REPORTS, REPORTS + ROUNDS):
            state = once_more(state, ranks, number)
            rounds.append(seconds(state))
        took[ranks] = median(rounds)
    rows = [Row(f"{ranks} ranks", took[ranks], took[RANKS[0]]) for ranks in RANKS]
    show("A redraw after a report of each rank", "two ranks", rows)
    linear = [
        Row(f"{more} ranks", took[more], took[few] * more / few, MOST_GROWTH)
        for few, more in pairwise(RANKS[2:])
    ]
    show("The same, by the growth of the ranks", "linear growth", linear)
    show("The same, in seconds", "a second", [Row("32 ranks", took[32], goal=GOAL_S)])


if __name__ == "__main__":
    main()
