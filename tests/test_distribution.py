"""The order in which workers get tests."""

from types import SimpleNamespace

import pytest

from tests.distribution import spread


def file(name, count, *marks):
    test = {"iter_markers": lambda: [SimpleNamespace(name=mark) for mark in marks]}
    return [SimpleNamespace(name=f"{name}{number}", **test) for number in range(count)]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_each_worker_begins_with_long_tests_and_ends_with_quick_ones(workers):
    files = [file("quick", 50), *(file(letter, 4, "torch") for letter in "abcdefghijkl"), file("zero", 50)]
    names = [test.name for test in spread(files, workers)]
    share = len(names) // workers

    assert sorted(names) == sorted(test.name for tests in files for test in tests)
    for begin in range(0, share * workers, share):
        own = [name[0] for name in names[begin : begin + share]]
        long = own[: 48 // workers]
        assert {*long} <= {*"abcdefghijkl"}
        assert {*own[len(long) :]} <= {*"qz"}
        assert all(long.count(letter) == 4 for letter in long)  # no file is split
