"""A group's runs while a line waits for them."""

from dataclasses import replace

import pytest

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.runs import view

STARTED = (ev.NodeStarted(1001.0, 0, "here", 1), ev.WorkersStarted(1002.0, 0, 0, 0, (0,), 1))


class Sweep:
    name = "sweep"


def run(number, *facts):
    state = JobState(JobInfo(f"sweep-r{number}", created=1000.0, group="sweep", number=number))
    for fact in facts:
        state = apply(state, fact)
    return state


@pytest.mark.parametrize("display", [view.Silent, view.Terminal])
def test_what_a_group_waits_for_and_where_a_rank_is_stopped_is_said_once(display):
    texts: list[str] = []
    drawn, runs = display(texts.append), Sweep()
    first = ev.Waiting(1001.0, "waits for swift-otter: running for 9.0 s", holder="swift-otter")
    second = replace(first, text=f"{first.text}; behind 2 jobs")
    stops = ev.RankStops(1003.0, 0, 0, 0, 7, "step", "train.py", ev.BREAKPOINT)
    for _ in range(2):
        drawn.draw(runs, [run(1, first), run(2, second)])
    for _ in range(2):
        drawn.draw(runs, [run(1, *STARTED), run(2, *STARTED, stops)])

    queued, stopped = texts
    assert queued == "sweep waits for swift-otter: running for 9.0 s"
    assert stopped.startswith("rank 0 stops at train.py, line 7, in `step`")
    assert "debug sweep-r2" in stopped
