"""What is smoothed, and how."""

import pytest

from nbtorchjob.ui.card import smooth

NOISE = [n % 2 + n / 100 for n in range(200)]


def test_only_what_is_long_and_noisy_is_smoothed():
    assert smooth.noisy(NOISE)
    assert not smooth.noisy(NOISE[:20])
    assert not smooth.noisy([0.97**n for n in range(200)])
    assert not smooth.noisy([1.0] * 200)
    assert not smooth.noisy([])


def test_a_mean_neither_lags_nor_changes_what_is_straight():
    line = [float(n) for n in range(200)]

    assert smooth.smoothed(line)[:190] == pytest.approx(line[:190])
    assert smooth.smoothed(NOISE)[100:190] == pytest.approx(
        [0.5 + n / 100 for n in range(100, 190)], abs=0.06
    )
