"""Where a chart draws which value."""

import pytest

from nbtorchjob.ui.card import axes


def decay(low, high, points=100):
    return [low + (high - low) * 0.8**n for n in range(points)]


@pytest.mark.parametrize(
    ("values", "log"),
    [
        (decay(0.01, 8), True),
        (decay(0.5, 8), False),  # less than two decades
        ([0.01, 0.5, 0.8, 0.9, 0.95], False),  # an accuracy
        ([*decay(0.01, 8), 0.0], False),
        ([*decay(0.01, 8), -1.0], False),
        ([], False),
        ([3.0], False),
    ],
)
def test_an_axis_is_logarithmic_where_most_values_would_be_flat(values, log):
    assert axes.up(values, 100, 0).log is log


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.02, 8, [0.03, 0.1, 0.3, 1, 3]),
        (0.1, 50, [0.1, 1, 10]),
        (0.01, 1000, [0.01, 1, 100]),
        (1e-20, 1, [1e-20, 1e-15, 1e-10, 1e-5, 1]),
    ],
)
def test_a_logarithmic_axis_has_round_ticks(low, high, ticks):
    axis = axes.Axis(low, high, 100, 0, log=True)

    assert axis.ticks() == pytest.approx(ticks)
    assert all(0 <= axis(tick) <= 100 for tick in ticks)
    assert (axis(low), axis(high)) == (100, 0)
