"""What a chart shows, as numbers."""

import re

import pytest

from nbtorchjob.ui.card import chart, readings
from nbtorchjob.ui.card.metrics import Curve


def titles(points, charts=1, label="step"):
    curve = Curve(label, points)
    return re.findall('title="([^"]*)"', readings.html([(chart.curves({"loss": points}), curve)] * charts))


def test_each_of_a_few_points_has_its_value():
    assert titles([(1, 2.0), (2, 0.51234567)], label="epoch") == ["epoch 1: 2", "epoch 2: 0.5123"]


def test_many_points_share_places_and_tell_their_range():
    found = titles([(float(n), 1 / (n + 1)) for n in range(512)], charts=2)

    assert len(found) == 48
    assert len({*found}) == 24
    assert found[0] == "step 0 to 21: 0.04545 to 1"


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
    cells = re.findall("<t[hd][^>]*>([^<]*)", readings.table(curves))

    assert cells[:6] == ["step", "loss", "accuracy", "0", "0", ""]
    assert cells[-3:] == ["499", "49.9", "0.5"]
    assert len(cells) // 3 <= 13
