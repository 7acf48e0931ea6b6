"""Texts about swaps of a job's code."""

from functools import reduce
from pathlib import Path

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text import facts, swaps
from nbtorchjob.ui import comparison, record
from nbtorchjob.ui.card import describe, metrics

CELL = "lr = 1\ndef loss():\n    return 1"


def swapped(time=2.5, number=1, *, back="", **fields):
    arguments = {
        "metrics": {"step": 3.0},
        "names": {"lr": "replaced", "math": "same"},
        "text": "lr = 2",
        **fields,
    }
    return ev.Swapped(
        time,
        0,
        0,
        number,
        f"s{time}",
        "ada, a.ipynb",
        diff="-lr = 1\n+lr = 2",
        back=back,
        point="report()",
        call=4,
        **arguments,
    )


def state(*events):
    started = [
        ev.NodeStarted(1.0, 0, "host", 10),
        ev.WorkersStarted(1.0, 0, 0, 0, (0,), 1),
        *(ev.Reported(1.0 + step, 0, 0, step, {"step": step, "loss": 9.0 - step}) for step in range(3)),
    ]
    return reduce(apply, [*started, *events], JobState(JobInfo("job", sources={"a": ("Cell In[1]", CELL)})))


TWICE = state(swapped(), swapped(2.8, 2, back="rank 1: ValueError: no"), swapped(2.9, 2, metrics={}))


def test_a_card_tells_of_the_newest_swap_that_stays():
    assert facts.notices(TWICE) == ["Code swapped at call 4 of report(): lr, 2 swaps so far"]
    assert facts.notices(state(swapped())) == ["Code swapped at step 3: lr"]
    assert facts.notices(state()) == []


def test_curves_have_a_mark_where_code_was_swapped():
    curves = metrics.curves(TWICE.spoken, {}, swaps=swaps.marks(TWICE))

    assert curves["loss"].marks == ((1.0, "swap 1"), (1.0, "swap 2"))


def test_a_description_has_all_swaps_and_what_they_changed():
    text = describe.text(TWICE, 9.0, {}, Path("/"))

    assert "ada, a.ipynb" in text
    assert "put back: rank 1: ValueError: no" in text
    assert text.count("+lr = 2") == 2
    assert "code as swapped, 2 times" in text
    assert [row["step"] for row in record.detail(TWICE, 9.0, {})["swaps"]] == [3.0, 3.0, None]


def test_jobs_are_compared_as_they_were_swapped():
    loss = swapped(2.6, 2, text="def loss():\n    return 2\nby = 3\n# optimizer.lr = 0.5")
    code = compared(state(), state(swapped(), loss))

    assert dict(code.rows) == {
        "lr": ("1", "2"),
        "loss": ("as submitted", "swap 2"),
        "by": ("", "3"),
        "optimizer.lr": ("as submitted", "0.5"),
    }
    assert code.changes[0][3:6] == ("-lr = 1", "+by = 3", "+lr = 2")
    assert code.changes[0][6:] == (" def loss():", "-    return 1", "+    return 2")
    assert compared(state(), state(swapped(back="no"))).differs is False


def test_a_job_is_like_one_that_it_was_retried_from_as_swapped():
    job = state(swapped(), swapped(2.6, 2, text="# optimizer.lr = 0.5"))
    info = job.info.swapped(swaps.texts(swaps.as_swapped(job), "job"))
    again = JobState(info)

    assert compared(job, again).differs is False
    assert set(compared(state(), again).rows) == {"lr", "optimizer.lr"}


def compared(*states):
    """Return the aspect in which the code of two jobs differs."""
    return next(aspect for aspect in comparison.aspects(states, ["a", "b"]) if aspect.key == "code")
