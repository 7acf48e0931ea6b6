import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.text.words import clean, clip, clock, columns, duration, fit, number, ranks, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0.0 s"),
        (4.21, "4.2 s"),
        (9.99, "10 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (277_200, "3 d 5 h"),
    ],
)
def test_durations_read_as_words(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (450_000, "450 kB"),
        (999_600, "1.0 MB"),
        (2 * 10**9, "2.0 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_read_as_words(count, words):
    assert size(count) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3.0, "3"),
        (0.043219, "0.04322"),
        (12345.678, "12346"),
        (1e-9, "1e-09"),
        (2.5e12, "2.5e+12"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_keep_four_digits(value, words):
    assert number(value) == words


def test_runs_of_ranks_are_drawn_together():
    assert ranks([2]) == "rank 2"
    assert ranks([7, 1, 3, 2]) == "ranks 1-3, 7"


def test_what_would_act_is_taken_out():
    assert clean("a\x1b[31m\u202eb\ud800\tc") == "a [31m b \tc"


def test_a_cut_is_marked():
    assert clip("abcdef", 4) == "abc…"
    assert clip("abcd", 4) == "abcd"


@given(st.lists(st.text(max_size=30), max_size=60), st.integers(60, 500))
def test_what_fits_is_kept_from_both_ends(lines, room):
    lines = [clean(line) for line in lines]
    kept = fit(lines, room)

    assert kept == lines or len("\n".join(kept).encode()) <= room + len("[… 60 lines …]\n".encode())
    if kept != lines:
        marks = [i for i, line in enumerate(kept) if line.startswith("[… ")]
        assert any(
            kept[:i] == lines[:i] and kept[i + 1 :] == lines[len(lines) - len(kept) + i + 1 :] for i in marks
        )


def test_a_time_has_its_date_on_another_day(greenwich):
    assert clock(1000.0, 2000.0) == "00:16:40"
    assert clock(1000.0, 200_000.0) == "1970-01-01 00:16:40"


def test_columns_stand_below_each_other():
    assert columns([("a", "bb", "c"), ("long", "", "x y")]) == ["a     bb  c", "long      x y"]
    assert columns([]) == []
