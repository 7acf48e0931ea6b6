"""How far a job is, and for how long nothing was heard of it, in words."""

import pytest

from nbtorchjob.state.progress import PERCENT, REPORT, Progress
from nbtorchjob.state.text import progress as words


@pytest.mark.parametrize(
    ("every", "pace", "now", "said"),
    [
        (2.0, 2.0, 4.0, "3 of 9 steps · about 12 s left · 2.0 s per step"),
        (0.5, 0.5, 4.0, "3 of 9 steps · about 3.0 s left · 2.0 steps/s"),
        (2.0, 2.0, 44.0, "3 of 9 steps · no step for 40 s; a step took 2.0 s"),
        (20.0, 0.2, 204.0, "3 of 9 steps · no report for 3 min 20 s; one came every 20 s"),
        (None, None, 500.0, "3 of 9 steps"),
    ],
)
def test_it_is_said_how_far_it_is_and_how_fast_or_since_when_it_stands(every, pace, now, said):
    assert words.far(Progress("step", 3, 9, pace, every, 4.0), now) == said


def test_percents_have_no_rate():
    assert words.far(Progress(PERCENT, 40, 100, 0.5, None, 4.0), 4.0) == "40 % · about 30 s left"


def test_without_a_total_what_was_done_is_counted():
    assert words.far(Progress("epoch", 1, None, None, None, 4.0), 5.0) == "1 epoch"
    assert words.far(Progress("step", 40, None, 0.1, 0.1, 4.0), 5.0) == "40 steps · 10.0 steps/s"


def test_reports_that_count_nothing_are_told_only_once_they_stop():
    assert words.far(Progress(REPORT, 3, None, 2.0, 2.0, 4.0), 5.0) == ""
    assert (
        words.far(Progress(REPORT, 3, None, 2.0, 2.0, 4.0), 44.0)
        == "no report for 40 s; one came every 2.0 s"
    )
