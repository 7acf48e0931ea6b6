"""Another Python on the node: some of the corpus on the oldest and newest here (all: ``make pythons``)."""

import pytest

from tests.capture.pythons import compared, examples, interpreters

_OTHERS = interpreters()
_PAIRS = [*_OTHERS][:1] + [*_OTHERS][1:][-1:]


@pytest.mark.skipif(not _PAIRS, reason="there is no interpreter of another minor version")
@pytest.mark.parametrize("there", _PAIRS, ids=[f"3.{minor}" for _, minor in _PAIRS])
def test_cells_mean_the_same_on_another_python(there, folder):
    assert compared(_OTHERS[there], folder, examples()[::5]) == []
