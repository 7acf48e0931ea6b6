"""Addresses in logs, as links."""

import pytest

from nbtorchjob.text import ansi, links


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://wandb.ai/team/run?a=1&b=2.", ["https://wandb.ai/team/run?a=1&b=2"]),
        ("(http://127.0.0.1:6006/) and https://b.example…", ["http://127.0.0.1:6006/", "https://b.example"]),
        (
            "https://en.wikipedia.org/wiki/Torch_(disambiguation)",
            ["https://en.wikipedia.org/wiki/Torch_(disambiguation)"],
        ),
        ("<a href='https://a.example/x'>", ["https://a.example/x"]),
        ("javascript:alert(1) file:///etc ftp://x data:text/html,x xhttps://no http://", []),
    ],
)
def test_only_addresses_of_pages_are_found(text, found):
    assert [text[start:end] for start, end in links.spans(text)] == found


def test_a_line_has_links_and_everything_else_escaped():
    (row,) = ansi.rows('<b> \x1b[33mhttp://a.example/\x1b[0m?q="1"&x')
    html = row.html()

    assert html.startswith(
        '&lt;b&gt; <a href="http://a.example/?q=" target="_blank" rel="noopener noreferrer"'
    )
    assert html.endswith('>http://a.example/</span>?q=</a>"1"&amp;x')


def test_half_an_address_is_no_link():
    (row,) = ansi.rows("at http://a.example/long")

    assert "<a" not in row.html(15)
    assert row.html(40) == row.html()
