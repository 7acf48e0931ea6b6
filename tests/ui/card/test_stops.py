"""Stopped ranks are reported once if the output can't update what it has written."""

from functools import reduce

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.card.view import Stops

STARTED: tuple[ev.Event, ...] = ev.NodeStarted(1.0, 0, "here", 1), ev.WorkersStarted(2.0, 0, 0, 0, (0, 1), 2)


def stop(time, rank):
    return ev.RankStops(time, 0, rank, 0, 7, "step", "a.py", ev.BREAKPOINT)


def test_a_rank_is_told_when_it_stops_and_not_at_each_step():
    stops, state = Stops(), reduce(apply, STARTED, JobState(JobInfo("job")))

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
