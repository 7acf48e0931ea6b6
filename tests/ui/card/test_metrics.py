"""A job's metrics: their summary, their curves, and a table of their values."""

import math
import re

import pytest

from nbtorchjob.state import Point, Series
from nbtorchjob.ui.card import chart, metrics
from nbtorchjob.ui.card.metrics import Curve


def series(*reports, every=2.0):
    points = (Point(n, n * every, report) for n, report in enumerate(reports))
    return Series(0, tuple(points))


def test_the_newest_value_of_each_metric_is_kept():
    reports = series({"loss": 2.0}, {"val": 0.5}, {"loss": 1.0})

    assert metrics.summary(reports, 1) == ["loss 1", "and 1 more metric"]


def test_counts_and_lone_values_get_no_curve():
    reports = series({"epoch": 0, "epochs": 2, "loss": 2, "lr": 0.1}, {"epoch": 1, "epochs": 2, "loss": 1})

    assert metrics.curves(reports, {}) == {"loss": metrics.Curve("epoch", [(0.0, 2.0), (1.0, 1.0)])}


def test_a_step_that_starts_anew_gives_way_to_the_reports_number():
    reports = series({"step": 0, "loss": 3}, {"step": 1, "loss": 2}, {"step": 0, "loss": 1})

    assert metrics.curves(reports, {})["loss"] == metrics.Curve(
        "report", [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    )


def test_at_most_four_curves_are_drawn():
    reports = series(*({f"m{i}": n for i in range(6)} for n in range(2)))

    assert list(metrics.curves(reports, {})) == ["m0", "m1", "m2", "m3"]


def test_a_metric_that_stays_the_same_is_worth_no_chart():
    reports = series(*({"lr": 0.1, "gap": value, "loss": n} for n, value in enumerate((math.nan, 1, 1))))

    assert list(metrics.curves(reports, {})) == ["loss"]


def over_rounds(*rounds):
    """Return a rank's reports in each round."""
    points = Series()
    for round_, reports in rounds:
        for seq, report in enumerate(reports):
            points = points.add(round_, Point(seq, 0.0, report))
    return points


def test_a_curve_goes_on_over_rounds_and_says_where_each_ended():
    before, after = (
        [{"step": n, "loss": 9 - n} for n in (0, 1, 2)],
        [{"step": n, "loss": 8 - n} for n in (1, 2)],
    )
    curve = metrics.curves(over_rounds((0, before), (2, after)), {1: "node 1 lost", 2: "restart 1"})["loss"]

    assert curve.points == [(0.0, 9.0), (1.0, 8.0), (2.0, 7.0), (1.0, 7.0), (2.0, 6.0)]
    assert curve.marks == ((2.0, "node 1 lost"),)


def test_reports_without_a_step_are_counted_on_over_rounds():
    curve = metrics.curves(
        over_rounds((0, [{"loss": 3}, {"loss": 2}]), (1, [{"loss": 1}])), {1: "restart 1"}
    )["loss"]

    assert curve == metrics.Curve("report", [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], ((2.0, "restart 1"),))


def test_a_total_isnt_listed_beside_its_count():
    assert metrics.summary(series({"epochs": 9, "epoch": 4, "loss": 1}), 8) == ["epoch 4", "loss 1"]
    assert metrics.summary(series({"epochs": 9, "loss": 1}), 8) == ["epochs 9", "loss 1"]


def test_what_counts_nothing_is_a_metric_whatever_it_is_called():
    reports = series(*({"step": n, "steps": 9 - n, "epochs": n, "total": n} for n in range(8)))

    assert [*metrics.curves(reports, {})] == ["steps", "epochs", "total"]
    assert metrics.summary(reports, 8, counting=False) == ["steps 2", "epochs 7", "total 7"]


def titles(points, charts=1, label="step"):
    curve = Curve(label, points)
    return re.findall('title="([^"]*)"', metrics.html([(chart.curves({"loss": points}), curve)] * charts))


def test_each_of_a_few_points_has_its_value():
    assert titles([(1, 2.0), (2, 0.51234567)], label="epoch") == ["epoch 1: 2", "epoch 2: 0.5123"]


def test_many_points_share_places_and_tell_their_range():
    labels = titles([(float(n), 1 / (n + 1)) for n in range(512)], charts=2)

    assert len(labels) == 48
    assert len({*labels}) == 24
    assert labels[0] == "step 0 to 21: 0.04545 to 1"


@pytest.mark.parametrize("points", [[], [(float("nan"), 1.0)]])
def test_where_there_is_nothing_there_is_only_the_image(points):
    assert titles(points) == []


def test_a_value_that_is_no_number_is_told():
    assert titles([(1, float("nan")), (2, float("inf"))]) == ["step 1: nan", "step 2: inf"]


def test_the_table_has_a_dozen_rows_of_what_shares_an_axis():
    curves = {
        "loss": Curve("step", [(float(n), n / 10) for n in range(500)]),
        "accuracy": Curve("step", [(499.0, 0.5)]),
        "other": Curve("epoch", [(1.0, 0.5)]),
    }
    cells = re.findall("<t[hd][^>]*>([^<]*)", metrics.table(curves))

    assert cells[:6] == ["step", "loss", "accuracy", "0", "0", ""]
    assert cells[-3:] == ["499", "49.9", "0.5"]
    assert len(cells) // 3 <= 13
