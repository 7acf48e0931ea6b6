import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob import events as ev
from nbtorchjob.failure import Cause
from nbtorchjob.runtime import exits
from nbtorchjob.runtime.errors import Error
from nbtorchjob.state import MAX_POINTS, JobInfo, JobState, Phase, apply


def fold(*events, **info):
    return reduce(apply, events, JobState(JobInfo("job", **info)))


def started(node=0, round_=0, ranks=(0, 1), attempt=0):
    return ev.WorkersStarted(1.0 + round_, node, attempt, round_, ranks, 2)


def error(time, rank=0, round_=0, text="boom", kind="ValueError"):
    return ev.RankFailed(time, 0, rank, 0, round_, Error(kind, text, time=time))


WELL = [
    ev.NodeStarted(1.0, 0, "host", 10),
    started(),
    ev.Reported(2.0, 0, 0, 0, {"loss": 2.0}),
    ev.Reported(3.0, 0, 0, 1, {"loss": 1.0}),
    ev.LogChunk(0, 0, 0, b"hello\n"),
    ev.ValueReady(4.0, 0, 0, "ref", 8),
    ev.NodeExited(5.0, 0, code=0),
    ev.Closed(6.0),
]
RESTARTED = [
    ev.NodeStarted(1.0, 0, "host", 10),
    started(),
    error(2.0, rank=1),
    ev.RankExited(2.5, 0, 0, 0, 0, signal=15),
    started(round_=1, attempt=1),
    ev.ValueReady(3.0, 0, 0, "old", 8),
    ev.ValueReady(4.0, 0, 1, "new", 8),
    ev.Notice(4.5, "told"),
    ev.NodeExited(5.0, 0, code=0),
    ev.Closed(6.0),
]
CANCELLED = [
    ev.NodeStarted(1.0, 0, "host", 10),
    started(),
    ev.CancelRequested(2.0),
    ev.CancelRequested(2.5),
    ev.NodeExited(3.0, 0, code=exits.CANCELLED),
    ev.Closed(4.0),
]


@pytest.mark.parametrize("history", [WELL, RESTARTED, CANCELLED], ids=["well", "restarted", "cancelled"])
def test_any_order_and_repetition_gives_the_same_state(history):
    expected = fold(*history)

    @given(st.permutations(history), st.lists(st.sampled_from(history), max_size=5))
    def check(order, again):
        assert fold(*order, *again) == expected

    check()


@settings(max_examples=5, deadline=None)
@given(st.integers(0))
def test_thinned_reports_do_not_depend_on_their_order(seed):
    order = random.Random(seed).sample(range(3 * MAX_POINTS), k=3 * MAX_POINTS)

    def at(n):
        return ev.Reported(float(n), 0, 0, n, {"loss": n})

    state = fold(*map(at, order))
    points = state.series[0].points

    assert state == fold(*map(at, sorted(order)))
    assert len(points) <= MAX_POINTS + 1
    assert points[0].seq == 0
    assert points[-1].seq == 3 * MAX_POINTS - 1


def test_phases_of_a_job_that_goes_well():
    phases = [fold(*WELL[:n]).phase for n in (0, 1, 2, 7, 8)]

    assert phases == [Phase.SUBMITTED, Phase.PENDING, Phase.RUNNING, Phase.RUNNING, Phase.SUCCEEDED]


def test_a_restart_shows_its_attempt_and_keeps_the_newest_value():
    state = fold(*RESTARTED)

    assert (state.phase, state.attempt, state.round) == (Phase.SUCCEEDED, 1, 1)
    assert state.values[0].ref == "new"
    assert state.failure is None


def test_the_first_failure_is_the_earliest_exception():
    state = fold(started(), error(3.0, 0, text="late"), error(2.0, 1, text="early"), ev.Closed(4.0))

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.rank, state.failure.error and state.failure.error.message) == (1, "early")
    assert state.failure.reason.cause is Cause.USER


def test_a_killed_rank_is_blamed_before_the_collective_that_missed_it():
    missed = error(2.0, 0, text="Connection closed by peer [127.0.0.1]", kind="RuntimeError")
    killed = ev.RankExited(2.1, 0, 1, 0, 0, signal=9)

    failure = fold(started(), missed, killed, ev.NodeExited(3.0, 0, code=1), ev.Closed(4.0)).failure

    assert failure is not None
    assert (failure.rank, failure.reason.line) == (1, "killed by SIGKILL")


def test_a_killed_node_is_blamed_before_the_collective_that_missed_it():
    missed = error(2.0, 0, text="Connection reset by peer", kind="RuntimeError")

    failure = fold(
        started(), started(1, ranks=(2, 3)), missed, ev.NodeExited(2.2, 1, signal=9), ev.Closed(3.0)
    ).failure

    assert failure is not None
    assert (failure.node, failure.rank) == (1, None)


def test_a_failure_of_an_earlier_round_is_not_blamed_for_the_end():
    state = fold(
        started(), error(2.0), started(round_=1), ev.RankExited(3.0, 0, 1, 1, 1, signal=9), ev.Closed(4.0)
    )

    assert state.failure is not None
    assert state.failure.rank == 1


def test_nodes_lost_before_the_last_round_do_not_fail_the_job():
    state = fold(
        started(0), started(1), ev.NodeExited(2.0, 1, signal=9), started(0, round_=1),
        ev.NodeExited(3.0, 0, code=0), ev.Closed(4.0),
    )  # fmt: skip

    assert state.phase is Phase.SUCCEEDED


def test_a_job_whose_lost_node_is_not_replaced_yet_is_reforming():
    state = fold(started(0), started(1), ev.NodeExited(2.0, 1, signal=9))

    assert (state.phase, state.reforming) == (Phase.RUNNING, True)


def test_a_deadline_is_the_cause_though_the_nodes_say_cancelled():
    state = fold(*CANCELLED[:2], ev.DeadlineExceeded(2.0, 7), *CANCELLED[4:])

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.reason.cause, state.failure.reason.line) == (
        Cause.DEADLINE,
        "ran longer than its deadline of 7 s",
    )


def test_a_cancelled_job_that_had_ended_well_stays_succeeded():
    assert fold(*WELL[:-1], ev.CancelRequested(5.5), WELL[-1]).phase is Phase.SUCCEEDED


def test_a_lost_job_is_failed_and_says_why():
    state = fold(started(), ev.Lost(3.0, "the process that kept the job was killed"))

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.reason.cause, state.ended) == (Cause.INFRA, 3.0)


def test_an_agent_that_gives_up_is_told_with_its_error():
    refused = ev.NodeFailed(2.0, 0, exits.CONFIG_ERROR, Error("PayloadError", "damaged", time=2.0))

    failure = fold(refused, ev.NodeExited(2.1, 0, code=exits.CONFIG_ERROR), ev.Closed(3.0)).failure

    assert failure is not None
    assert failure.reason.cause is Cause.CONFIG
    assert failure.error is not None


def test_elapsed_stops_with_the_job():
    assert fold(*WELL, created=1.0).elapsed(now=100.0) == 5.0
    assert fold(*WELL[:2], created=1.0).elapsed(now=3.5) == 2.5
