"""How far a job is, and since when it has been still.

A diagnosis is shown while it holds, and names the rank that was missing when a collective gave up.
"""

import math
import sys
from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import RUNS, Collective, Group, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.progress import QUIET_S, STALLED_S, Progress, hang, latest, missed, progress, still
from nbtorchjob.state.text import attempts, facts
from nbtorchjob.state.text import lifetime as words


def job(*facts, world=2, **info):
    """Return a job with ranks that started at 1.0."""
    begun = [ev.NodeStarted(1.0, 0, "here"), ev.WorkersStarted(1.0, 0, 0, 0, tuple(range(world)), world)]
    return reduce(
        apply, [*begun, *facts], JobState(JobInfo("job", created=0.0, nproc_per_node=world, **info))
    )


def reports(*metrics, rank=0, every=2.0, round_=0, since=2.0):
    return [ev.Reported(since + n * every, rank, round_, n, metric) for n, metric in enumerate(metrics)]


def steps(*numbers, total=10, **more):
    return reports(*({"step": n, "steps": total} for n in numbers), **more)


def far(*facts):
    headway = progress(job(*facts))
    return headway and (headway.done, headway.total, headway.unit)


def test_counting_from_zero_ends_with_all_done():
    assert far(*reports(*({"epoch": n, "epochs": 4} for n in range(4)))) == (4, 4, "epoch")


def test_counting_from_one_ends_with_all_done():
    assert far(*steps(1, 2, total=2)) == (2, 2, "step")


def test_a_job_is_as_far_as_its_slowest_rank():
    assert far(*steps(1, 2, 3, 4), *steps(1, 2, rank=1)) == (2, 10, "step")


def test_after_a_restart_from_a_checkpoint_what_began_at_zero_still_did():
    again = ev.WorkersStarted(20.0, 0, 1, 1, (0, 1), 2)

    assert far(*steps(0, 1, 2), again, *steps(2, 3, round_=1, since=21.0)) == (4, 10, "step")


def test_after_many_restarts_what_began_at_zero_still_did():
    facts = [*steps(0, 1, total=99)]
    for round_ in range(1, 12):
        facts.append(ev.WorkersStarted(20.0 * round_, 0, 1, round_, (0, 1), 2))
        facts += steps(round_ + 1, total=99, round_=round_, since=20.0 * round_ + 1)

    assert far(*facts) == (13, 99, "step")


def test_a_ranks_pace_is_that_of_its_newest_reports_however_many_came_before():
    fast = steps(*range(5_000), total=9_999, every=0.1)
    slow = [ev.Reported(510.0 + n, 0, 0, 5_000 + n, {"step": 5_000 + n, "steps": 9_999}) for n in range(20)]

    headway = progress(job(*fast, *slow, world=1))
    assert headway is not None
    assert headway.pace == 1.0


def test_as_ranks_start_again_nobody_knows_how_long_the_rest_takes():
    again = ev.WorkersStarted(20.0, 0, 1, 1, (0, 1), 2)
    headway = progress(job(*steps(0, 1, 2), *steps(0, 1, 2, rank=1), again))

    assert headway is not None
    assert (headway.done, headway.pace, headway.left(21.0), headway.overdue(99.0)) == (3, None, None, None)


def test_a_rank_that_the_newest_round_lacks_holds_up_nobody():
    smaller = ev.WorkersStarted(20.0, 0, 1, 1, (0,), 1)

    assert far(*steps(1, 2, 3), *steps(1, rank=1), smaller, *steps(3, round_=1, since=21.0)) == (
        3,
        10,
        "step",
    )


def test_where_nobody_says_how_much_there_is_what_was_done_is_known():
    assert far(*reports({"step": 7}, {"step": 9})) == (9, None, "step")
    assert far(*reports({"loss": 2.0}, {"loss": 1.0})) == (2, None, "report")
    assert far() is None


@pytest.mark.parametrize(
    "report",
    [
        {"epoch": 1},
        {"epochs": 3},
        {"epoch": 1, "epochs": 0},
        {"epoch": math.nan, "epochs": 3},
        {"epoch": 1, "epochs": math.inf},
        {"epoch": 4, "epochs": 3},
        {"step": 1, "total": 0.53},
        {"step": 1, "total": 500},
    ],
)
def test_without_a_usable_total_there_is_none(report):
    headway = progress(job(*reports(report)))

    assert headway is None or headway.total is None


def test_the_time_left_shrinks_between_steps_and_is_gone_once_one_is_overdue():
    headway = progress(job(*steps(1, 2, 3)))
    assert headway is not None

    assert [headway.left(now) for now in (6.0, 7.0, 12.0, 13.0)] == [14.0, 13.0, 8.0, None]
    assert [headway.overdue(now) for now in (12.0, 13.0)] == [None, 7.0]


def epochs_of_steps(many, *, first, rank=0):
    """Return one report a second, of 3 epochs of 100 steps; each report has its epoch."""
    values = ({"epoch": n // 100 + first, "epochs": 3, "loss": 1.0} for n in range(many))
    return reports(*values, rank=rank, every=1.0)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("many", "done", "left"), [(60, 0, None), (101, 1, 200), (150, 1, 151), (201, 2, 100), (290, 2, 11)]
)
def test_an_epoch_that_each_of_its_steps_tells_is_done_once_the_next_begins(first, many, done, left):
    headway = progress(job(*epochs_of_steps(many, first=first)))

    assert headway is not None
    assert (headway.done, headway.left(1.0 + many)) == (done, left)


def test_a_job_can_stall_in_its_last_epoch_and_has_done_all_once_it_succeeds():
    facts = epochs_of_steps(290, first=0)
    assert since(job(*facts), 292.0 + STALLED_S) == (291.0, True)
    status = words.progress_line(job(*facts), 292.0 + STALLED_S)
    assert status == "2 of 3 epochs · no report for 1 min 01 s; one came every 1.0 s"

    assert far(*facts, ev.NodeExited(400.0, 0, code=0), ev.Closed(401.0)) == (3, 3, "epoch")


def test_an_epoch_that_is_told_at_its_end_is_done_however_often_it_is_told():
    events = [
        ev.Reported(10.0 * epoch + more, 0, 0, 2 * epoch + more, {"epoch": epoch, "epochs": 9, name: 1.0})
        for epoch in range(1, 4)
        for more, name in enumerate(("loss", "val_loss"))
    ]
    headway = progress(job(*events))

    assert headway is not None
    assert (headway.done, headway.left(31.0)) == (3, 59.0)


def test_the_time_left_shrinks_while_reports_come_that_count_nothing():
    facts = [*reports({"epoch": 1, "epochs": 3}, {"epoch": 2}, every=10.0)]
    facts += [ev.Reported(13.0 + n, 0, 0, 2 + n, {"loss": 1.0}) for n in range(7)]
    headway = progress(job(*facts))

    assert headway is not None
    assert headway.left(19.0) == 3.0


def test_nothing_is_overdue_when_all_is_done():
    headway = Progress("step", 10, 10, 2.0, 2.0, 6.0, 6.0)

    assert (headway.left(500.0), headway.overdue(500.0)) == (0.0, None)


def test_the_newest_value_of_each_metric_is_known():
    state = job(*reports({"loss": 2.0}, {"val": 0.5}, {"loss": 1.0, "n": -(10**400)}))

    assert latest(state.series[0]) == {"loss": 1.0, "val": 0.5, "n": -math.inf}


def since(state, now):
    silence = still(state, now)
    return silence and (silence.since, silence.stalled)


def test_a_job_that_has_stopped_reporting_is_stalled():
    state = job(*steps(1, 2, 3), *steps(1, 2, rank=1))

    assert since(state, 6.0 + STALLED_S) is None
    assert since(state, 6.1 + STALLED_S) == (6.0, True)


def test_what_prints_or_reports_rarely_isnt_stalled():
    assert since(job(*steps(1, 2, 3), ev.Wrote(50.0)), 70.0) is None
    assert since(job(*steps(1, 2, 3, every=30.0)), 200.0) is None


def test_a_job_that_never_reports_is_quiet_after_a_while():
    assert since(job(), 1.0 + QUIET_S) is None
    assert since(job(), 1.1 + QUIET_S) == (1.0, False)
    assert since(job(ev.Wrote(40.0)), 40.1 + QUIET_S) == (40.0, False)


def test_of_a_job_whose_logs_arent_read_nobody_knows_how_quiet_it_is():
    cluster = {"kind": "job", "namespace": "ml", "context": ""}

    assert since(job(cluster=cluster), 1000.0) is None


def test_a_job_that_doesnt_run_is_neither():
    ended = [ev.NodeExited(5.0, 0, 0), ev.Closed(6.0)]

    assert since(job(*steps(1, 2, 3), *ended), 1000.0) is None


def test_how_far_a_job_is_its_operator_may_know_of_which_no_reports_are_read():
    status = ev.TrainerStatus(10.0, 40, 30, {"loss": 0.5})

    headway = progress(job(ev.TrainerStatus(5.0, 20), status))
    assert headway is not None
    assert (headway.done, headway.total, headway.unit) == (40, 100, "percent")
    assert headway.left(12.0) == pytest.approx(28.0)
    assert far(status, *reports({"loss": 1.0}, {"loss": 0.9})) == (40, 100, "percent")
    assert far(status, *steps(1, 2)) == (2, 10, "step")  # reports take precedence
    assert far(ev.TrainerStatus(5.0, metrics={"loss": 1.0})) is None


def test_what_was_known_of_an_attempt_says_nothing_of_the_next_one():
    assert far(ev.TrainerStatus(5.0, 90), ev.AttemptBegan(9.0, 2)) is None
    assert far(ev.TrainerStatus(5.0, 90), ev.AttemptBegan(9.0, 2), ev.TrainerStatus(11.0, 3, attempt=2)) == (
        3,
        100,
        "percent",
    )


def test_metrics_that_only_an_operator_was_told_stand_for_reports():
    statuses = [ev.TrainerStatus(5.0, metrics={"loss": 2.0}), ev.TrainerStatus(10.0, metrics={"loss": 1.0})]

    assert [point.metrics["loss"] for point in job(*statuses).spoken.points] == [2.0, 1.0]
    assert latest(job(*statuses, *steps(1)).spoken) == {"step": 1.0, "steps": 10.0}


def calls(world):
    """Return the number of functions that ``progress`` calls for a job of ``world`` ranks."""
    state = job(*(fact for rank in range(world) for fact in steps(1, 2, 3, rank=rank)), world=world)
    events = []
    sys.setprofile(lambda frame, event, _: events.append(event == "call"))
    try:
        progress(state)
    finally:
        sys.setprofile(None)
    return sum(events)


def test_how_far_a_job_is_takes_time_in_proportion_to_its_ranks():
    assert calls(64) < 1.5 * 8 * calls(8)


C10D = "/site-packages/torch/distributed/distributed_c10d.py"


def rank(number, *calls, below=()):
    frames = (Frame("<cell>", 3 + number, "<module>", "f()"), *below)
    return RankSample(number, RUNS, 1, (Thread("main", frames),), (Group("0", (0, 1), calls),))


WAITS = rank(
    0, Collective(1, "all_reduce", 100.0, False, timeout=60.0), below=(Frame(C10D, 1, "all_reduce"),)
)
STARTED = ev.NodeStarted(1.0, 0, "here", 1), ev.WorkersStarted(99.0, 0, 0, 0, (0, 1), 2)
WAITED = "rank 1 never entered all_reduce #1 of the default group, which rank 0"
SAID = f"{WAITED} {{}} waited in for 50 s; it {{}} in Cell"


def state(*facts):
    info = JobInfo("job", sources={"<cell>": ("Cell In[1]", "")})
    return reduce(apply, (*STARTED, *facts), JobState(info))


def sampled(why="quiet", time=150.0):
    return ev.Sampled(time, 0, 0, why, (WAITS, rank(1)))


def gave_up(time=161.0, text="Timed out waiting 60000ms for recv operation"):
    error = Error("RuntimeError", text, (Frame("<cell>", 3, "<module>"),), time=time)
    return ev.RankFailed(time, 0, 0, 0, 0, error), ev.NodeExited(162.0, 0, 1), ev.Closed(163.0)


def test_shows_why_a_running_job_hangs():
    (line,) = attempts.pending(state(sampled()), 160.0)

    assert line.startswith(SAID.format("has", "is"))
    assert line.endswith(" (seen 10 s ago)")


@pytest.mark.parametrize(
    "facts",
    [
        (sampled("asked"),),  # the rank may wait only for a moment
        (sampled(), ev.Reported(155.0, 0, 0, 0, {"loss": 1.0})),
        (sampled(), ev.Wrote(158.0)),
        (sampled(), *gave_up()),
        (sampled(), ev.WorkersStarted(155.0, 0, 1, 1, (0, 1), 2)),
        (),
    ],
)
def test_says_no_more_of_it_once_something_moves(facts):
    assert hang(state(*facts), 160.0) is None


def test_believes_what_was_asked_for_once_nothing_was_heard_for_long():
    assert hang(state(sampled("asked")), 400.0) is not None


@pytest.mark.parametrize(
    "file",
    [
        "torch/serialization.py",
        "torch/distributed/checkpoint/filesystem.py",
        "torch/_dynamo/convert_frame.py",
    ],
)
def test_ranks_that_wait_for_one_that_saves_or_compiles_do_not_hang(file):
    works = rank(1, below=(Frame(f"/usr/lib/python3/site-packages/{file}", 1, "save"),))
    snapshot = state(ev.Sampled(150.0, 0, 0, "quiet", (WAITS, works)))

    assert hang(snapshot, 160.0) is None


@pytest.mark.parametrize("file", ["torch/serialization.py", "torch/_dynamo/convert_frame.py"])
def test_a_checkpoint_that_goes_through_the_users_own_file_is_no_hang(file):
    below = (
        Frame(f"/usr/lib/python3/site-packages/{file}", 1, "save"),
        Frame("<cell>", 9, "write", "time.sleep(60)"),
    )
    snapshot = state(ev.Sampled(150.0, 0, 0, "quiet", (WAITS, rank(1, below=below))))

    assert hang(snapshot, 160.0) is None


def test_names_who_was_missing_when_a_collective_gave_up():
    failed = state(sampled("timeout"), *gave_up())

    heading, *_ = attempts.lines(failed)

    assert heading.startswith(f"a collective gave up: {SAID.format('had', 'was')}")
    assert "RuntimeError: Timed out waiting" in "\n".join(attempts.lines(failed))


@pytest.mark.parametrize(
    "facts",
    [
        (sampled(), *gave_up(text="no such file")),
        (sampled(), *gave_up(time=1000.0)),  # the sampled call had ended long before
        (sampled(), ev.Reported(155.0, 0, 0, 0, {"loss": 1.0}), *gave_up()),
        gave_up(),
    ],
)
def test_names_nobody_where_it_is_not_known(facts):
    failed = state(*facts)

    assert missed(failed, failed.failure) is None
    assert "never entered" not in attempts.lines(failed)[0]


def test_ranks_that_wait_for_one_in_the_debugger_do_not_hang():
    stops = ev.RankStops(120.0, 0, 1, 0, 7, "step", "<cell>", ev.BREAKPOINT)
    hold = ev.RankStops(130.0, 0, 0, 0, 9, "<module>", "/home/me/a.py", ev.FAILURE)
    snapshot = state(stops, sampled())

    assert attempts.pending(snapshot, 180.0) == [
        "rank 1 stops at Cell In[1], line 7, in `step`, for 1 min 00 s: %torchjob debug job --rank 1"
    ]
    assert facts.status(snapshot, 9e9) == "DEBUGGING"
    assert attempts.pending(state(stops, hold), 250.0)[0] == (
        "rank 0 failed, and is held at a.py, line 9, for 2 min 00 s: %torchjob debug job --rank 0, or "
        "%torchjob release job"
    )
    for over in (
        ev.RankGoesOn(121.0, 0, 1, 0, "continues"),
        ev.RankExited(125.0, 0, 1, 0, 0, signal=9),
        ev.WorkersStarted(140.0, 0, 1, 1, (0, 1), 2),
        ev.Closed(150.0),
    ):
        assert not state(stops, over).stopped
    assert len(state(stops, ev.RankGoesOn(119.0, 0, 1, 0, "steps")).stopped) == 1
