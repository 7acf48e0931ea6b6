"""Code in spans, and differences of code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.ui import code


def test_code_is_coloured_by_what_its_words_are():
    text = 'def train(lr=0.1):\n    return "é"  # done\n'

    found = [span for span in code.spans(text) if span[0]]

    assert found == [
        ("keyword", "def"),
        ("def", "train"),
        ("number", "0.1"),
        ("keyword", "return"),
        ("string", '"é"'),
        ("comment", "# done"),
    ]


@pytest.mark.parametrize(
    "text", ["", "!pip list\nx = 1\n", "'''open\n", "  x\n y\n", "f'{a}' 'b\\\n", "\f\x1cx\r\ny"]
)
def test_what_is_no_python_is_shown_whole(text):
    assert "".join(part for _, part in code.spans(text)) == text


@given(st.text(alphabet="ab'\"#\n\r\\{}f( é\t\u2028"))
def test_spans_are_the_text_again(text):
    assert "".join(part for _, part in code.spans(text)) == text


def test_a_unified_diff_is_coloured_by_what_its_lines_are():
    found = code.changes(["--- 1 fox", "+++ 2 owl", "@@ -1,2 +1,2 @@", " a", "-b", "+c"])

    assert found == [
        ("removed", "--- 1 fox\n"),
        ("added", "+++ 2 owl\n"),
        ("hunk", "@@ -1,2 +1,2 @@\n"),
        ("", " a\n"),
        ("removed", "-b\n"),
        ("added", "+c\n"),
    ]
