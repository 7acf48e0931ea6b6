"""A value in one line."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.text.values import short


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
