"""What somebody should know is said once if the output can't update what it has written."""

from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.card import Notes
from tests.ui.card.test_render import CASES

STARTED: tuple[ev.Event, ...] = ev.NodeStarted(1.0, 0, "here", 1), ev.WorkersStarted(2.0, 0, 0, 0, (0, 1), 2)


def stop(time, rank):
    return ev.RankStops(time, 0, rank, 0, 7, "step", "a.py", ev.BREAKPOINT)


def test_a_rank_is_told_when_it_stops_and_not_at_each_step():
    stops, state = Notes(), reduce(apply, STARTED, JobState(JobInfo("job")))

    def told(*facts):
        nonlocal state
        state = reduce(apply, facts, state)
        return stops.new(state).count("stops at a.py, line 7, in `step`")

    assert told() == 0
    assert told(stop(3.0, 1)) == 1
    assert told(ev.RankGoesOn(4.0, 0, 1, 0, ev.STEPS)) == 0
    assert told(stop(5.0, 1)) == 0
    assert told(stop(6.0, 0)) == 2
    assert told(ev.RankGoesOn(7.0, 0, 1, 0, "continues")) == 0
    assert told(stop(8.0, 1)) == 2


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("running", []),
        ("retrying", []),  # the line on the phase says it
        ("hanging", ["rank 1 never entered all_reduce #417 of the default group"]),
        (
            "blocked",
            ["waits for stuck: hanging for", "%torchjob cancel stuck ends"],
        ),
        (
            "waiting",
            ["node 0: no host has enough cpu free", "node 1: its image can"],
        ),
    ],
)
def test_a_verdict_or_a_reason_to_wait_is_said_once_however_long_it_holds(case, texts, monkeypatch):
    notes, now = Notes(), 1010.0
    monkeypatch.setattr("nbtorchjob.ui.card.time.time", lambda: now)

    lines = notes.new(CASES[case]).splitlines()
    now += 8.0

    assert len(lines) == len(texts)
    assert all(line.startswith(f"swift-otter: {text}") for line, text in zip(lines, texts, strict=True))
    assert notes.new(CASES[case]) == ""


def test_the_failure_of_a_labs_rank_is_said_while_others_wait_for_it():
    error = Error("ValueError", "no")
    facts = (*STARTED, ev.RankFailed(3.0, 0, 1, 0, 0, error))

    cell = reduce(apply, facts, JobState(JobInfo("lab#2")))
    job = reduce(apply, facts[:2], JobState(JobInfo("job")))

    assert Notes().new(cell) == "lab#2: So far: rank 1: ValueError: no\n"
    assert Notes().new(job) == ""
