"""A diagnosis is shown for as long as it holds, and names who was missing when a collective gave up."""

from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import RUNS, Collective, Group, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.state.hanging import hang, missed
from nbtorchjob.state.text import attempts, facts

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
    (told,) = attempts.pending(state(sampled()), 160.0)

    assert told.startswith(SAID.format("has", "is"))
    assert told.endswith(" (seen 10 s ago)")


@pytest.mark.parametrize(
    "facts",
    [
        (sampled("asked"),),  # it may wait for a moment only
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
    found = state(ev.Sampled(150.0, 0, 0, "quiet", (WAITS, works)))

    assert hang(found, 160.0) is None


@pytest.mark.parametrize("file", ["torch/serialization.py", "torch/_dynamo/convert_frame.py"])
def test_a_checkpoint_that_goes_through_the_users_own_file_is_no_hang(file):
    below = (
        Frame(f"/usr/lib/python3/site-packages/{file}", 1, "save"),
        Frame("<cell>", 9, "write", "time.sleep(60)"),
    )
    found = state(ev.Sampled(150.0, 0, 0, "quiet", (WAITS, rank(1, below=below))))

    assert hang(found, 160.0) is None


def test_names_who_was_missing_when_a_collective_gave_up():
    failed = state(sampled("timeout"), *gave_up())

    heading, *_ = attempts.lines(failed)

    assert heading.startswith(f"a collective gave up: {SAID.format('had', 'was')}")
    assert "RuntimeError: Timed out waiting" in "\n".join(attempts.lines(failed))


@pytest.mark.parametrize(
    "facts",
    [
        (sampled(), *gave_up(text="no such file")),
        (sampled(), *gave_up(time=1000.0)),  # the call that was seen had ended long before
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
    held = ev.RankStops(130.0, 0, 0, 0, 9, "<module>", "/home/me/a.py", ev.FAILURE)
    found = state(stops, sampled())

    assert attempts.pending(found, 180.0) == [
        "rank 1 stops at Cell In[1], line 7, in `step`, for 1 min 00 s: %torchjob debug job --rank 1"
    ]
    assert facts.status(found, 9e9) == "DEBUGGING"
    assert attempts.pending(state(stops, held), 250.0)[0] == (
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
