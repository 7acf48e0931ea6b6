import dataclasses
import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import RankSample, RankUse
from nbtorchjob.state import MAX_POINTS, JobInfo, JobState, Phase, apply, conclusive
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.events import Stage
from nbtorchjob.state.failure import Cause


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
LEFT = [
    *(ev.NodeStarted(1.0, node, "host", 10) for node in (0, 1)),
    *(started(node, ranks=(node,)) for node in (0, 1)),
    ev.NodeLeaves(2.0, 0, 0, 27.0),
    ev.NodeLeaves(2.0, 1, 0, 26.0),
    ev.RankStops(2.0, 0, 0, 0, 7, "step", "<cell>", ev.BREAKPOINT),
    ev.RankStops(4.0, 0, 0, 0, 8, "step", "<cell>", ev.BREAKPOINT),
    ev.RankGoesOn(3.0, 0, 0, 0, "steps"),
    ev.RankGoesOn(5.0, 0, 0, 0, "continues"),
    *(
        ev.Swapped(
            2.5, node, 0, 1, "s1", "ada", "lr = 2", "+lr = 2", {"lr": "replaced"}, "report()", 4, metrics
        )
        for node, metrics in enumerate(({"step": 3.0}, {}))
    ),
    ev.Swapped(2.7, 1, 0, 1, "s2", "ada", "lr = 0", "", {"lr": "replaced"}, "report()", 6, back="rank 0: no"),
    ev.RankLeft(3.0, 0, 0, 0, 7, {"step": 7.0}),
    ev.RankLeft(3.0, 1, 1, 0, 7, {"step": 6.0}),
    *(ev.NodeExited(5.0, node, code=exits.LEFT) for node in (0, 1)),
    ev.Closed(6.0),
]
CANCELLED = [
    ev.NodeStarted(1.0, 0, "host", 10),
    started(),
    ev.CancelRequested(2.0),
    ev.CancelRequested(2.5, early="loss > 2"),
    ev.NodeExited(3.0, 0, code=exits.CANCELLED),
    ev.Closed(4.0),
]
# On a cluster: node 0 is evicted and gets a new pod; node 1's container runs out of memory, twice.
REPLACED = [
    ev.Waiting(1.0, "waiting for a host", 0, "a"),
    ev.Waiting(1.0, "no host has enough cpu free", 0, "a", "Unschedulable", Stage.PLACING),
    ev.Waiting(1.5, "the quota q is used up", None, "", "FailedCreate", Stage.PLACING),
    ev.NodeStarted(2.0, 0, "host", pod="a"),
    ev.WorkersStarted(2.5, 0, 0, 7, (0, 1), 4),
    ev.NodeDisrupted(3.0, 0, "a", "EvictionByEvictionAPI"),
    ev.NodeDisrupted(3.0, 0, "a", ev.DELETED),
    ev.NodeExited(4.0, 0, 137, 9, "a", "Error"),
    ev.NodeGone(5.0, 0, "a"),
    ev.Waiting(5.0, "waiting for a host", 0, "b"),
    ev.NodeStarted(6.0, 0, "other", pod="b"),
    ev.NodeStarted(2.0, 1, "host", pod="c"),
    ev.NodeExited(6.0, 1, 137, 9, "c", "Error"),
    ev.NodeExited(6.0, 1, 137, 9, "c", "OOMKilled"),
    ev.Waiting(6.0, "starting again", 1, "c", "OOMKilled", Stage.RESTARTING),
    ev.NodeStarted(6.0, 1, "host", pod="c", run=1),
    ev.NodeExited(7.0, 1, 137, 9, "c", "OOMKilled", run=1),
    ev.NodeOutput(6.5, 1, "c", "a line"),
]
ENDED = [
    *REPLACED,
    ev.Suspended(1.0, True),
    ev.Suspended(1.0, False),
    ev.Verdict(8.0, False, "BackoffLimitExceeded", "reached its limit"),
    ev.NodeDisrupted(8.0, 0, "b", ev.DELETED),
    ev.NodeGone(9.0, 0, "b"),
    ev.Removed(10.0),
    ev.Removed(10.5),
    ev.Closed(11.0),
]
ADMITTED = [  # by a queue, which takes the job's nodes away, and gives the job up
    ev.Queued(1.0, "lq", False),
    ev.Queued(2.0, "lq", False, "Pending", "no quota", needs={"cpu": "1"}, order="9"),
    ev.Queued(3.0, "lq", True, order="10"),
    ev.Queued(3.0, "lq", False, "Deactivated", "held", held=True, order="11"),
    ev.Standing(2.0, 2, 3),
    ev.Standing(2.5, 1, 3),
    ev.Evicted(5.0, "Preempted", "due to prioritization"),
    ev.Evicted(5.0, "Preempted"),
    ev.Evicted(7.0, "DeactivatedDueToRequeuingLimitExceeded"),
    ev.NodeStarted(4.0, 0, "host", pod="a"),
    ev.NodeDisrupted(5.0, 0, "a", ev.DELETED),
    ev.Suspended(5.0, True),
    ev.Suspended(6.0, False),
    ev.Suspended(6.5, False, began=5.0),
    ev.Suspended(6.2, False, began=5.0),
    ev.NodeStarted(6.0, 0, "host", pod="b"),
    ev.NodeDisrupted(7.0, 0, "b", ev.DELETED),
    ev.Suspended(7.0, True),
    ev.Verdict(7.0, False, "DeactivatedDueToRequeuingLimitExceeded"),
    ev.Closed(8.0),
]
SHORT = [  # a termination message has in short what the log has in full
    ev.RankFailed(2.0, 0, 0, 0, 0, Error("ValueError", "boom", time=2.0)),
    ev.RankFailed(2.0, 0, 0, 0, 0, Error("ValueError", "boom", (Frame("f.py", 1, "f"),), time=2.0)),
    ev.NodeFailed(2.0, 0, 2, Error("PayloadError", "damaged", time=2.0)),
    ev.NodeFailed(2.0, 0, 2, Error("PayloadError", "damaged, and", time=2.0)),
]
SAMPLED = [
    ev.Sampled(2.0, 0, 0, "quiet", (RankSample(0, "runs", 7),)),
    ev.Sampled(3.0, 0, 0, "asked", (RankSample(0, "stopped", 7),)),
    ev.Sampled(1.0, 0, 1, "asked", ()),
    ev.Sampled(2.0, 1, 0, "quiet", ()),
]
TOLD = Error("ValueError", "no", (Frame("a.py", 1, "f", variables=(("x", "1"),)),), time=1.0)
DESCRIBED = [  # a rank reports its failure, and then again with its variables
    ev.RankFailed(1.0, 0, 0, 0, 1, TOLD.bare()),
    ev.RankFailed(1.1, 0, 0, 0, 1, TOLD),
    *(ev.RankFailed(1.1, 0, rank, 0, round_, TOLD) for rank in range(1, 11) for round_ in range(2)),
]
USED = [
    *(ev.Used(float(n), 0, 0, n, 2.0, 10 * n, 100, uses=(RankUse(0, 1.0 * n, 5, 2, 1),)) for n in range(4)),
    ev.Used(9.0, 0, 0, 2, 2.0, 21, 100),  # another one with the same number
    ev.Used(5.0, 0, 1, 0, 2.0, 3, 100),
    ev.Used(5.0, 1, 0, 0, 2.0, 3, 100),
]
TRAINER = [  # status reports to an operator, of two attempts, and two in one second
    ev.TrainerStatus(1.0, 10, 90, {"loss": 2.0}),
    ev.TrainerStatus(2.0, 20, None, {"loss": 1.0}),
    ev.TrainerStatus(2.0, 21, 70),
    ev.TrainerStatus(1.0, 5, attempt=2),
    ev.AttemptBegan(3.0, 2),
]
KEPT = [  # a lab that ran two turns, one of which failed on a rank, before its ranks restarted
    ev.NodeStarted(1.0, 0, "host", 10),
    started(round_=1),
    ev.TurnTaken(1.5, 0, 1, 1, "", (0, 1), (0,), "cell", "model = 1", "<cell 1>"),
    ev.TurnEnded(2.0, 0, 1),
    ev.TurnTaken(3.0, 0, 2, 1, "a", (1,), (0,), "cell", "model.step()", "<cell 2>", ("x",), "another"),
    ev.WorkersStarted(3.1, 0, 0, 2, (1,), 2),
    ev.RankFailed(3.2, 0, 1, 0, 2, Error("ValueError", "boom", time=3.2), stays=True),
    ev.TurnEnded(3.3, 0, 2, (1,)),
    ev.TurnEnded(3.3, 0, 2, (1,)),
    ev.RankExited(4.0, 0, 1, 0, 2, signal=9),
    started(round_=3),
    ev.LabEnds(9.0, 0, "asked"),
    ev.LabEnds(9.1, 0, "idle"),
]
ENVIRONMENTS = [
    ev.EnvironmentTold(2.0, 0, "3.11.7", "x86_64 glibc 2.36", {"peft": "0.18.0"}),
    ev.EnvironmentTold(
        5.0, 0, "3.11.8", "x86_64 glibc 2.39", {"peft": "0.19.0"}, ("a",), {"trl": "1.0"}, "b"
    ),
    ev.EnvironmentTold(5.0, 0, "3.11.8", "x86_64 glibc 2.39", {}),
]
HISTORIES = {
    "environments": ENVIRONMENTS,
    "kept": KEPT,
    "used": USED,
    "trainer": TRAINER,
    "described": DESCRIBED,
    "sampled": SAMPLED,
    "well": WELL,
    "restarted": RESTARTED,
    "left": LEFT,
    "cancelled": CANCELLED,
    "replaced": REPLACED,
    "ended": ENDED,
    "admitted": ADMITTED,
    "short": SHORT,
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
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


def test_reports_after_a_gap_thin_those_before_it():
    facts = [ev.Reported(float(n), 0, 0, n, {"loss": n}) for n in (*range(500), 5 * MAX_POINTS)]

    state = fold(*facts)

    assert state == fold(*reversed(facts))
    assert len(state.series[0].points) < 100


@settings(max_examples=3, deadline=None)
@given(st.integers(0))
def test_the_newest_value_of_a_rare_metric_stays_whatever_the_order(seed):
    last = 2 * MAX_POINTS
    facts = [
        ev.Reported(float(n), rank, 0, n, {"loss": n, **({"val_loss": n} if n % 251 == 200 else {})})
        for n in range(last)
        for rank in range(2)
    ]
    facts += [ev.Reported(0.0, rank, 0, 0, {}) for rank in range(2, 600)]  # leaves less room for each

    state = fold(*facts)

    assert [state.series[rank].newest["val_loss"] for rank in range(2)] == [953, 953]
    assert state.series[0].points[-1].seq == last - 1
    assert len(state.series[0].points) <= MAX_POINTS + 8
    assert state == fold(*random.Random(seed).sample(facts, k=len(facts)))
    again = ev.Reported(2e3, 0, 1, 0, {"loss": 0})
    assert fold(*facts, again).series[0].newest == {"loss": 0}
    assert fold(again, *facts).series[0] == fold(*facts, again).series[0]


@settings(max_examples=3, deadline=None)
@given(st.integers(0), st.sampled_from([2, 251]))
def test_each_metric_is_thinned_by_its_own_reports_whatever_their_order(seed, often):
    numbers = range(2 * MAX_POINTS + 9)
    facts = [
        ev.Reported(float(n), rank, 0, n, {"val_loss": n} if n % often == 1 else {"loss": n})
        for n in numbers
        for rank in range(2)
    ]
    facts += [ev.Reported(0.0, rank, 0, 0, {}) for rank in range(2, 600)]  # leaves less room for each

    state = fold(*facts)

    points = state.series[0].points
    course = [point.metrics["val_loss"] for point in points if "val_loss" in point.metrics]
    assert course[:2] == [1, 5 if often == 2 else 252]
    assert min(len(numbers) // often, MAX_POINTS // 2) <= len(course) <= MAX_POINTS + 1
    assert len(points) <= 2 * MAX_POINTS
    assert state == fold(*random.Random(seed).sample(facts, k=len(facts)))
    again = ev.Reported(2e3, 0, 1, 0, {"loss": 0})
    assert fold(again, *facts).series == fold(*facts, again).series


def test_a_metric_with_a_new_name_each_time_takes_bounded_room():
    facts = [ev.Reported(float(n), 1, 0, n, {f"loss_{n}": n}) for n in range(2 * MAX_POINTS)]
    facts += [ev.Reported(0.0, rank, 0, 0, {}) for rank in range(2, 600)]  # leaves less room for each

    state = fold(*facts)

    assert len(state.series[1].points) < 0.8 * 2 * MAX_POINTS
    assert "loss_1022" in state.series[1].newest
    assert state == fold(*reversed(facts))


def test_what_is_kept_of_each_of_many_ranks_does_not_depend_on_their_order():
    facts: list[ev.Event] = []
    facts += [ev.Reported(float(n), rank, 0, n, {"loss": n}) for rank in range(4) for n in range(700)]
    facts += [ev.Reported(float(n), 3, 1, n, {"loss": n}) for n in range(9)]
    facts += [ev.Reported(0.0, rank, 0, 0, {}) for rank in range(4, 600)]
    facts += [ev.LogChunk(rank, 0, 0, b"x" * 40_000) for rank in range(4)]
    facts += [ev.LogChunk(rank, 0, 0, b"x") for rank in range(4, 2200)]
    state = fold(*facts)

    assert state == fold(*reversed(facts))
    assert state == fold(*random.Random(7).sample(facts, k=len(facts)))
    assert len(state.series[1].points) < len(state.series[0].points) * 0.6
    assert len(state.logs[1].pieces[0].data) == len(state.logs[0].pieces[0].data) // 2
    assert list(state.series) == list(range(600))


def test_of_very_many_ranks_none_is_stopped_that_has_gone_on():
    ranks = range(9000)
    stops = [ev.RankStops(1.0, 0, rank, 0, 1, "step", "<cell>", "breakpoint") for rank in ranks]
    goes_on = [ev.RankGoesOn(2.0, 0, rank, 0, "continues") for rank in ranks]
    state = fold(started(ranks=tuple(ranks)), *stops, *goes_on)
    assert not state.stopped


def test_phases_of_a_job_that_goes_well():
    phases = [fold(*WELL[:n]).phase for n in (0, 1, 2, 7, 8)]

    assert phases == [Phase.SUBMITTED, Phase.PENDING, Phase.RUNNING, Phase.RUNNING, Phase.SUCCEEDED]


def test_a_restart_shows_its_attempt_and_keeps_the_newest_value():
    state = fold(*RESTARTED)

    assert (state.phase, state.restarts, state.round) == (Phase.SUCCEEDED, 1, 1)
    assert state.values[0].ref == "new"
    assert state.failure is None


def test_the_first_failure_is_the_earliest_exception():
    state = fold(started(), error(3.0, 0, text="late"), error(2.0, 1, text="early"), ev.Closed(4.0))

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.rank, state.failure.error and state.failure.error.message) == (1, "early")
    assert state.failure.reason.cause is Cause.USER


def test_a_turn_is_no_life_of_a_labs_ranks_and_its_failure_is_not_the_labs():
    state = fold(*KEPT[:-5])

    assert (state.round, state.last_round, state.world_size) == (1, 2, 2)
    assert [state.base(turn.round) for turn in state.turns] == [1, 1]
    assert state.errors == ()
    assert state.phase is Phase.RUNNING


def test_who_dies_in_a_turn_is_to_blame_for_the_labs_end():
    state = fold(*KEPT[:-3], ev.NodeExited(4.5, 0, code=1), ev.Closed(5.0))

    assert state.failure is not None
    assert (state.failure.rank, state.failure.round) == (1, 2)


def test_the_first_failures_variables_are_kept_and_a_bounded_number_of_others():
    state = fold(*DESCRIBED, ev.Closed(4.0))

    assert state.failure is not None
    assert state.failure.error == TOLD
    assert len(state.variables) == 16
    assert not any(event.error.variables_size for event in state.errors)


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
    state = fold(started(), ev.Lost(3.0, "the job's supervisor was killed"))

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.reason.cause, state.ended) == (Cause.INFRA, 3.0)


def test_an_agent_that_gives_up_is_told_with_its_error():
    refused = ev.NodeFailed(2.0, 0, exits.CONFIG_ERROR, Error("PayloadError", "damaged", time=2.0))

    failure = fold(refused, ev.NodeExited(2.1, 0, code=exits.CONFIG_ERROR), ev.Closed(3.0)).failure

    assert failure is not None
    assert failure.reason.cause is Cause.CONFIG
    assert failure.error is not None


@pytest.mark.parametrize(
    ("code", "text", "cause", "hint"),
    [
        (
            exits.CONFIG_ERROR,
            "--data d: it needs 9 MiB in /c, where 1 MiB are free",
            Cause.CONFIG,
            "?include=",
        ),
        (
            exits.CONFIG_ERROR,
            "--data d: the disk of /c (this machine's cache) is full",
            Cause.CONFIG,
            "?include=",
        ),
        (exits.INFRASTRUCTURE_ERROR, "--data d: the disk of /c is full", Cause.INFRA, "--data-cache"),
    ],
)
def test_a_disk_without_room_for_data_has_a_hint_that_helps_there(code, text, cause, hint):
    event = ev.NodeFailed(2.0, 0, code, Error("nbtorchjob.runtime.data.sources.DataError", text, time=2.0))

    failure = fold(event, ev.NodeExited(2.1, 0, code=code), ev.Closed(3.0)).failure

    assert failure is not None
    assert (failure.reason.cause, "no room for its data" in failure.reason.line) == (cause, True)
    assert hint in failure.reason.hint


def test_elapsed_stops_with_the_job():
    assert fold(*WELL, created=1.0).elapsed(now=100.0) == 5.0
    assert fold(*WELL[:2], created=1.0).elapsed(now=3.5) == 2.5


def test_a_node_is_its_newest_pod():
    node = fold(*REPLACED).nodes[0]

    assert (node.host, node.started, node.ended) == ("other", 6.0, None)
    assert (node.life.pod, node.life.running, node.left) == ("b", True, True)


def test_a_container_that_is_started_again_in_its_pod_has_waited_for_its_first_start():
    again = fold(
        ev.NodeStarted(4.0, 0, "host", 0, "a"),
        ev.NodeExited(3600.0, 0, 1, None, "a"),
        ev.NodeStarted(3612.0, 0, "host", 0, "a", run=1),
        created=1.0,
    )

    assert (again.first_start, again.waited(4000.0)) == (4.0, 3.0)


def test_of_two_pods_born_in_one_second_the_one_that_is_left_is_newest():
    old, new = (ev.Waiting(1.0, "waiting", 0, pod) for pod in ("z", "a"))

    assert fold(old, new, ev.NodeGone(1.0, 0, "z")).nodes[0].life.pod == "a"


def test_a_container_that_is_started_again_in_place_isnt_over_between_its_runs():
    between = fold(*REPLACED[11:15]).nodes[1].life
    again = fold(*REPLACED[11:16]).nodes[1].life

    assert between.waiting is not None
    assert (between.over, between.running) == (False, False)
    assert (again.waiting, again.running) == (None, True)


def test_what_waits_is_told_until_it_runs():
    def texts(count):
        return [wait.text for wait in fold(*REPLACED[:count]).waiting]

    assert texts(2) == ["no host has enough cpu free"]
    assert texts(3) == ["the quota q is used up", "no host has enough cpu free"]
    assert texts(4) == []


def test_memory_that_ran_out_explains_a_killed_rank():
    killed = ev.RankExited(3.0, 0, 1, 0, 0, signal=9)
    exited = ev.NodeExited(4.0, 0, 1, None, "a", "OOMKilled")
    failure = fold(started(), killed, exited, ev.Verdict(5.0, False), ev.Closed(6.0)).failure

    assert failure is not None
    assert (failure.rank, failure.reason.cause) == (1, Cause.USER)
    assert "memory" in failure.reason.line


def test_an_eviction_is_blamed_before_what_it_caused():
    lost = ev.RankFailed(3.5, 1, 2, 0, 0, Error("RuntimeError", "the sum is wrong", time=3.5))
    evicted = ev.NodeDisrupted(3.0, 0, "a", "EvictionByEvictionAPI")
    failure = fold(started(), started(1), evicted, lost, ev.Verdict(5.0, False), ev.Closed(6.0)).failure

    assert failure is not None
    assert (failure.node, failure.reason.cause) == (0, Cause.INFRA)


def test_a_rank_is_blamed_before_the_pods_that_its_operator_then_deletes():
    cleaned = ev.NodeDisrupted(4.0, 0, "a", ev.DELETED)
    failure = fold(started(), error(2.0), cleaned, ev.Verdict(4.0, False), ev.Closed(6.0)).failure

    assert failure is not None
    assert (failure.rank, failure.reason.cause) == (0, Cause.USER)


def test_an_eviction_that_was_overcome_isnt_blamed():
    evicted = ev.NodeDisrupted(3.0, 0, "a", "EvictionByEvictionAPI")
    new = [ev.NodeStarted(4.0, 0, "host", pod="b"), started(round_=9)]
    state = fold(started(), evicted, *new, error(12.0, round_=9), ev.Verdict(13.0, False), ev.Closed(14.0))

    assert state.failure is not None
    assert state.failure.reason.cause is Cause.USER


@pytest.mark.parametrize("every_node", [True, False])
def test_a_node_that_was_evicted_and_ended_politely_is_no_witness_of_success(every_node):
    state = fold(
        ev.NodeStarted(1.0, 0, "host", pod="a"),
        ev.NodeStarted(1.0, 1, "host", pod="b"),
        ev.NodeDisrupted(2.0, 0, "a", "EvictionByEvictionAPI"),
        ev.NodeExited(3.0, 0, 0, pod="a"),
        ev.Verdict(3.0, True, every_node=every_node),
    )

    assert not conclusive(state)
    assert apply(state, ev.Closed(9.0)).phase is (Phase.SUCCEEDED if every_node else Phase.FAILED)


@pytest.mark.parametrize("end", [[], [ev.NodeExited(3.5, 0, exits.CANCELLED, pod="a")]])
def test_pods_that_are_removed_at_once_leave_an_elastic_job_succeeded(end):
    state = fold(
        started(),
        *end,
        ev.NodeDisrupted(3.0, 0, "a", ev.DELETED),
        ev.NodeGone(4.0, 0, "a"),
        ev.Verdict(3.0, True, every_node=False),
    )

    assert conclusive(state)
    assert apply(state, ev.Closed(9.0)).phase is Phase.SUCCEEDED


def test_a_job_is_settled_only_once_its_nodes_have_ended_or_the_culprit_is_known():
    running = ev.NodeStarted(1.0, 0, "host", pod="a")

    assert not conclusive(fold(running))
    assert not conclusive(fold(running, ev.Verdict(2.0, True)))
    assert not conclusive(fold(running, ev.Verdict(2.0, False)))
    assert not conclusive(fold(running, ev.CancelRequested(2.0)))
    assert conclusive(fold(running, ev.Verdict(2.0, False), ev.NodeExited(2.0, 0, 3, pod="a")))
    assert conclusive(fold(running, ev.Removed(2.0), ev.NodeGone(2.0, 0, "a")))
    assert conclusive(fold(running, ev.Verdict(2.0, False, "DeadlineExceeded")))


def test_a_job_that_was_aborted_and_resumed_is_neither_failed_nor_settled():
    aborted = [ev.Verdict(3.0, False, "Aborted"), ev.Suspended(3.0, True)]
    state = fold(ev.NodeStarted(1.0, 0, "host", pod="a"), *aborted, ev.NodeGone(3.0, 0, "a"))

    assert (state.suspended, conclusive(state)) == (True, False)
    assert fold(*aborted, ev.Suspended(4.0, False)).verdict is None


def test_what_pods_write_beside_their_ranks_is_kept_to_a_bound():
    lines = [ev.NodeOutput(float(n), 0, "a", f"line {n}") for n in range(1000)]
    random.Random(0).shuffle(lines)

    assert [line.text for line in fold(*lines).output][-1:] == ["line 999"]
    assert len(fold(*lines).output) < 100


@pytest.mark.parametrize("step", [1, -1])
def test_how_ranks_left_is_told_by_one_that_reported(step):
    silent, reporter = ev.RankLeft(1.0, 0, 1, 0, 5, {}), ev.RankLeft(2.0, 0, 0, 0, 5, {"step": 4.0})

    assert fold(*[silent, reporter][::step]).left == (reporter,)


def test_a_changed_state_keeps_nothing_that_was_concluded_before():
    running = fold(*WELL[:2])
    assert running.phase is Phase.RUNNING

    ended = apply(running, ev.Closed(6.0))
    assert ended == dataclasses.replace(running, closed=6.0)
    assert vars(ended).keys() == {field.name for field in dataclasses.fields(JobState)}
