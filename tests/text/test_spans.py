"""Several whole numbers, as people write them."""

import pytest

from nbtorchjob.text import spans


def test_what_is_spelled_is_what_was_parsed():
    assert spans.parse("7, 1,3-5,4") == (1, 3, 4, 5, 7)
    assert spans.spell((1, 3, 4, 5, 7)) == "1,3-5,7"
    assert spans.spell(spans.parse("0")) == "0"


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,", "1-", "1-2-3"])
def test_what_names_no_numbers_is_refused(text):
    with pytest.raises(spans.SpansError):
        spans.parse(text)
