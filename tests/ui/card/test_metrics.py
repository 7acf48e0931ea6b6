import math

import pytest

from nbtorchjob.state import Point, Series
from nbtorchjob.ui.card import metrics


def series(*reports, every=2.0):
    points = (Point(n, n * every, report) for n, report in enumerate(reports))
    return Series(0, tuple(points))


def test_the_newest_value_of_each_metric_is_kept():
    reports = series({"loss": 2.0}, {"val": 0.5}, {"loss": 1.0})

    assert metrics.latest(reports) == {"loss": 1.0, "val": 0.5}
    assert metrics.told(reports, 1) == ["loss 1", "and 1 more metric"]


@pytest.mark.parametrize("total", ["epochs", "total"])
def test_counting_from_zero_ends_with_all_done(total):
    reports = series(*({"epoch": n, total: 4} for n in range(4)))

    assert str(metrics.progress(reports)) == "4 of 4 epochs"


def test_counting_from_one_ends_with_all_done():
    assert str(metrics.progress(series({"step": 1, "steps": 2}, {"step": 2, "steps": 2}))) == "2 of 2 steps"


def test_the_time_left_shrinks_between_reports():
    reports = series(*({"epoch": n, "epochs": 10} for n in (1, 2, 3)))

    left = [
        progress and progress.left
        for progress in (metrics.progress(reports, now) for now in (4.0, 5.0, 500.0))
    ]

    assert left == [14.0, 13.0, 0.0]


@pytest.mark.parametrize(
    "report",
    [
        {"epoch": 1},
        {"epochs": 3},
        {"epoch": 1, "epochs": 0},
        {"epoch": math.nan, "epochs": 3},
        {"epoch": 1, "epochs": math.inf},
    ],
)
def test_without_a_usable_total_there_is_no_progress(report):
    assert metrics.progress(series(report), 1.0) is None


def test_the_rate_is_said_the_way_round_that_reads():
    assert metrics.rate(series({"step": 0}, {"step": 25})) == "12.5 steps/s"
    assert metrics.rate(series({"epoch": 0}, {"epoch": 1})) == "2.0 s per epoch"
    assert metrics.rate(series({"epoch": 1})) == ""
    assert metrics.rate(series({"loss": 1})) == ""


def test_counts_and_lone_values_get_no_curve():
    reports = series({"epoch": 0, "epochs": 2, "loss": 2, "lr": 0.1}, {"epoch": 1, "epochs": 2, "loss": 1})

    assert metrics.curves(reports) == {"loss": metrics.Curve("epoch", [(0.0, 2.0), (1.0, 1.0)])}


def test_a_step_that_starts_anew_gives_way_to_the_reports_number():
    reports = series({"step": 0, "loss": 3}, {"step": 1, "loss": 2}, {"step": 0, "loss": 1})

    assert metrics.curves(reports)["loss"] == metrics.Curve("report", [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])


def test_at_most_four_curves_are_drawn():
    reports = series(*({f"m{i}": n for i in range(6)} for n in range(2)))

    assert list(metrics.curves(reports)) == ["m0", "m1", "m2", "m3"]


def test_an_integer_beyond_any_float_is_infinite():
    assert metrics.latest(series({"n": -(10**400)})) == {"n": -math.inf}


def test_a_total_isnt_listed_beside_its_count():
    assert metrics.told(series({"epochs": 9, "epoch": 4, "loss": 1}), 8) == ["epoch 4", "loss 1"]
    assert metrics.told(series({"epochs": 9, "loss": 1}), 8) == ["epochs 9", "loss 1"]
