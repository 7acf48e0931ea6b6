"""Points in time, as people write them."""

import pytest

from nbtorchjob.commands import running
from nbtorchjob.errors import SpecError

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "time"),
    [("30s", NOW - 30), ("1.5h", NOW - 5400), ("1970-01-01T00:00:09Z", 9.0), ("1970-01-01 01:00+01:00", 0.0)],
)
def test_a_time_is_how_long_ago_or_when(text, time):
    assert running.read("since", text, NOW) == time


@pytest.mark.parametrize("text", ["", "10", "soon", "5w", "9" * 20 + "d"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(SpecError, match="since"):
        running.read("since", text, NOW)
