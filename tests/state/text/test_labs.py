"""What is said of a lab."""

from dataclasses import replace
from functools import reduce

import pytest

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.state.text import facts, labs

START = [ev.NodeStarted(1.0, 0, "host", 10), ev.WorkersStarted(2.0, 0, 0, 1, (0, 1), 2)]
FIRST = ev.TurnTaken(2.0, 0, 1, 1, "", (0, 1), (0,), "cell", "x = 1", "<1>", (), "ann, a.ipynb")
SECOND = ev.TurnTaken(4.0, 0, 2, 1, "b", (1,), (0,), "cell", "x", "<2>", (), "bob, b.ipynb")
THIRD = ev.TurnTaken(5.0, 0, 3, 1, "c", (0, 1), (0,), "cell", "x", "<3>", (), "ann, a.ipynb")
OVER = ev.TurnEnded(3.0, 0, 1)
ENDED = [ev.LabEnds(200.0, 0, "idle"), ev.NodeExited(201.0, 0, 0), ev.Closed(202.0)]


def lab(*events, **info):
    given = {"created": 0.5, "nproc_per_node": 2, "lab": 3600.0, **info}
    return reduce(apply, events, JobState(JobInfo("lab", **given)))


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([*START, FIRST], "runs cell 1"),
        ([*START, FIRST, OVER], "idle 3 min"),
        ([*START, FIRST, OVER, SECOND], "runs cell 2"),
        ([*START, FIRST, OVER, SECOND, THIRD], "runs cell 2, 1 waits"),
        ([*START, FIRST, OVER, ENDED[0]], "ending"),
        ([*START, FIRST, OVER, *ENDED], ""),
    ],
)
def test_what_a_lab_does(events, said):
    assert labs.doing(lab(*events), 200.0) == said
    assert said in facts.last_line(lab(*events), 200.0)


def test_a_lab_says_whose_cell_runs_what_it_holds_and_when_it_ends(greenwich):
    used = ev.Used(3.0, 0, 1, 0, 2.0, 5 * 10**9, 8 * 10**9, uses=())

    assert labs.lines(lab(*START, FIRST, OVER, used), 200.0) == [
        "1 cell so far · ends at 01:00:03, in 56 min, unless it is used"
    ]
    assert labs.lines(lab(*START, FIRST), 200.0) == [
        "cell 1 (ann, a.ipynb) runs · 1 cell so far · ends once it is idle for 1 h 00 min"
    ]
    assert labs.lines(lab(*START, FIRST, lab=0.0), 200.0) == ["cell 1 (ann, a.ipynb) runs · 1 cell so far"]
    assert labs.lines(lab(*START, FIRST, OVER, *ENDED), 300.0) == ["1 cell; it ended as nobody used it"]
    assert labs.lines(lab(*START, lab=None), 200.0) == []


def test_who_sends_the_first_cell_after_ranks_began_anew_is_told(greenwich):
    anew = ev.WorkersStarted(100.0, 0, 1, 9, (0, 1, 2), 3)

    assert list(labs.began_anew(lab(*START, FIRST, OVER))) == []
    (said,) = labs.began_anew(lab(*START, FIRST, OVER, anew))
    assert said.startswith("the ranks of lab began anew at 00:01:40, 3 ranks: what former cells set is gone")

    again = replace(FIRST, round=9, base=9)
    assert list(labs.began_anew(lab(*START, FIRST, anew, again))) == []
    (said,) = labs.began_anew(lab(*START, FIRST, OVER, SECOND, anew, again))
    assert said.endswith("and ran its first cell again: what other cells set is gone")
    assert (
        list(labs.began_anew(lab(*START, FIRST, OVER, SECOND, anew, again, replace(THIRD, round=10, base=9))))
        == []
    )
