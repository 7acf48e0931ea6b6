"""The same cell over the same values has the same fingerprint, also in a new kernel."""

import subprocess

import pytest

from nbtorchjob import capture
from nbtorchjob.capture import fingerprint
from tests.programs import program


def fingerprint_in_kernel(*, pid="17", count="3", lr="0.1"):
    done = subprocess.run(program("cells", pid, count, lr), check=True, capture_output=True, text=True)
    return done.stdout


def test_a_new_kernel_and_another_prompt_number_change_nothing():
    assert fingerprint_in_kernel() == fingerprint_in_kernel(pid="123456", count="41")


def test_another_value_is_another_call():
    assert fingerprint_in_kernel() != fingerprint_in_kernel(lr="0.2")


@pytest.mark.parametrize(("left", "right"), [("a + 1", "a + 2"), ("a", "a  # said")])
def test_another_text_is_another_call(left, right):
    one, two = (capture.from_cell(text, {"a": 1}) for text in (left, right))
    assert fingerprint.of(one) != fingerprint.of(two)


def test_memory_that_travels_beside_the_pickle_counts():
    numpy = pytest.importorskip("numpy")
    calls = [capture.from_function(sum, (numpy.full(4096, value),)) for value in (1.0, 1.0, 2.0)]
    same, again, other = map(fingerprint.of, calls)
    assert same == again != other
