"""Another Python on the node: part of the corpus on each one here; ``make pythons`` runs all of it."""

import sys

import pytest

from tests.capture.pythons import compared, examples, from_kernel, interpreters

_OTHERS = interpreters()
_KERNELS = [python for there, python in _OTHERS.items() if there >= (3, 10)]
_EVERY = 5  # one cell in five, from each file


@pytest.mark.skipif(not _OTHERS, reason="there is no interpreter of another minor version")
@pytest.mark.parametrize("there", _OTHERS, ids=[f"3.{minor}" for _, minor in _OTHERS])
def test_cells_mean_the_same_on_another_python(there, folder):
    # Each Python runs different cells.
    assert compared(_OTHERS[there], folder, examples()[there[1] % _EVERY :: _EVERY]) == []


@pytest.mark.skipif(not _KERNELS, reason="there is no other interpreter that can stand for a kernel")
def test_cells_of_another_python_mean_the_same_here(folder):
    kernel = from_kernel(_KERNELS[-1], [sys.executable], folder, _EVERY)
    stdout, _ = kernel.communicate()

    assert (kernel.returncode, "0 differ" in stdout) == (0, True), stdout
