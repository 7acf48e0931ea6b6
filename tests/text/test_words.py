"""Durations, sizes, numbers, ranks and values, as people write them."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.text import words
from nbtorchjob.text.words import clean, clip, clock, columns, duration, fit, number, ranks, short, size


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
        (9999.7, "10000"),
        (-9999.9, "-10000"),
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


def test_what_is_spelled_is_what_was_parsed():
    assert words.parse("7, 1,3-5,4") == (1, 3, 4, 5, 7)
    assert words.spell((1, 3, 4, 5, 7)) == "1,3-5,7"
    assert words.spell(words.parse("0")) == "0"


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,", "1-", "1-2-3", "0 1", "1 2-3"])
def test_what_names_no_numbers_is_refused(text):
    with pytest.raises(words.SpansError):
        words.parse(text)


class Loud:
    def __repr__(self):
        raise RuntimeError("no")


class Shapeless:
    dtype = "float32"

    @property
    def shape(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (None, "None"),
        (0.125, "0.125"),
        ("a\nb", "'a\\nb'"),
        (torch.tensor(1.5), "tensor(1.5000)"),
        (torch.zeros(2, 3), "Tensor float32 (2, 3)"),
        (np.zeros((4, 5), np.int64), "ndarray int64 (4, 5)"),
        (np.float32(0.5), "np.float32(0.5)"),
        ({"loss": 0.5, "w": torch.zeros(2)}, "{'loss': 0.5, 'w': Tensor float32 (2,)}"),
        ({}, "{}"),
        (OrderedDict(a=1), "OrderedDict of 1"),
        (dict.fromkeys(range(7)), "dict of 7"),
        ([1, "a"], "[1, 'a']"),
        ([0] * 7, "list of 7"),
        ((1,), "(1,)"),
        ((1, 2), "(1, 2)"),
        ({1}, "set of 1"),
        ([[[[1]]]], "[[[list of 1]]]"),
        (Loud(), "<Loud whose repr raises RuntimeError>"),
        ([1, Loud()], "[1, <Loud whose repr raises RuntimeError>]"),
    ],
)
def test_a_value_is_told_in_a_few_words(value, line):
    assert short(value) == line


@pytest.mark.parametrize("value", [{Loud(): 1}, Shapeless(), {"a": Shapeless()}])
def test_an_object_that_raises_when_it_is_looked_at_costs_no_value(value):
    assert "raises RuntimeError" in short(value)


def test_a_value_that_holds_itself_comes_to_an_end():
    value: list[object] = [1]
    value.append(value)

    assert short(value) == "[1, [1, [1, list of 2]]]"


class Told:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


@settings(deadline=None)
@given(text=st.text(max_size=400))
def test_whatever_a_repr_says_is_one_clean_bounded_line(text):
    for value in (Told(text), {Told(text): [Told(text)]}):
        line = short(value)
        assert len(line) <= 160
        assert not set(line) & set("\n\r\x1b\x00\u202e")
