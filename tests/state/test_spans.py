"""Spans of time, held to the moments that they cover."""

from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.state.spans import common, length, merged, without

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda each: (each[0], sum(each))))


def moments(spans):
    return {at for start, end in spans for at in range(start, end)}


@given(SPANS, SPANS)
def test_they_are_as_sets_of_moments(some, others):
    mine, theirs = merged(some), merged(others)

    assert moments(mine) == moments(some)
    assert moments(without(mine, theirs)) == moments(some) - moments(others)
    assert moments(common(mine, theirs)) == moments(some) & moments(others)
    assert length(mine) == len(moments(some))
