"""Logs as HTML: terminal colours as spans, and addresses as links."""

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.text import colours
from nbtorchjob.text.colours import GROUND, Style, css, readable, rows, to_text

_SPAN = re.compile(r'<span style="[a-z0-9#:;.-]+">|</span>')

noise = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(["\r", "\n", "\r\n", "\b", "\t", "\x1b", "\x1b[", "\x1b]", "\x9b", "<b>&"]),
        st.from_regex(r"\x1b\[[0-9;:?]{0,8}[A-Za-z]", fullmatch=True),
    )
).map("".join)


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("one\r\ntwo\n", "one\ntwo\n"),
        ("one\r\r\ntwo", "one\ntwo"),
        (" 10%|#  |\r 20%|## |\rend", "end%|## |"),
        ("abc\b\bX", "aXc"),
        ("\b\bok", "ok"),
        ("long line\r\x1b[Kshort", "short"),
        ("long line\x1b[2K\rshort", "short"),
        ("abcdef\x1b[3D\x1b[K", "abc"),
        ("abc\x1b[1Gx\x1b[9Cy", "xbcy"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("\x1b(B\x1b=\x07bell", "bell"),
        ("cut off \x1b[3", "cut off "),
        ("\x1b]never ended\nnext", "\nnext"),
    ],
)
def test_text_is_what_a_terminal_shows(log, shown):
    assert to_text(log) == shown


def test_nested_tqdm_bars_stay_on_their_lines():
    log = "outer 0%\n\rinner 0%\x1b[A\n\rinner 50%\x1b[A\router 50%\n\rinner 99%\x1b[A"

    assert to_text(log) == "outer 50%\ninner 99%"


@pytest.mark.parametrize(
    ("log", "html"),
    [
        ("a < b && c > d", "a &lt; b &amp;&amp; c &gt; d"),
        ("\x1b[1mbold\x1b[22m plain", '<span style="font-weight:bold">bold</span> plain'),
        (
            "\x1b[2;3;4mx",
            '<span style="opacity:0.7;font-style:italic;text-decoration:underline">x</span>',
        ),
        ("\x1b[38;5;196mx\x1b[mx", f'<span style="{css(Style(fg=(255, 0, 0)))}">x</span>x'),
        ("\x1b[38:2::1:2:3mx", f'<span style="{css(Style(fg=(1, 2, 3)))}">x</span>'),
        ("\x1b[48;2;0;0;128mx", '<span style="color:#ffffff;background-color:#000080">x</span>'),
        ("\x1b[97;40mx", '<span style="color:#ffffff;background-color:#000000">x</span>'),
        ("\x1b[31m\x1b[39mplain", "plain"),
        ("\x1b[>4;1mplain", "plain"),
        ("\x1b[38;5mplain\x1b[38;2;9m", f'<span style="{css(Style(fg=(0, 0, 0)))}">plain</span>'),
    ],
)
def test_colours_become_spans(log, html):
    assert html_of(log) == html


def test_a_style_lasts_over_lines_and_each_line_closes_its_own():
    red = css(Style(fg=(205, 49, 49)))

    assert html_of("\x1b[31ma\nb\x1b[0m") == f'<span style="{red}">a</span>\n<span style="{red}">b</span>'


def html_of(text):
    return "\n".join(row.html() for row in rows(text))


@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_every_colour_reads_on_the_logs_ground(colour):
    def light(rgb):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in rgb)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    ground = bytes.fromhex(GROUND.removeprefix("#"))

    assert light(readable(colour)) / light(ground) >= 4.5


@given(noise)
def test_hostile_logs_stay_text(log):
    html = html_of(log)
    bare = _SPAN.sub("", html)

    assert html.count("<span") == html.count("</span>")
    assert "<" not in bare
    assert "&" not in re.sub("&(amp|lt|gt);", "", bare)
    assert unescape(bare) == to_text(log)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", bare)


@given(noise)
def test_nothing_is_made_up(log):
    assert len(to_text(log)) <= len(log)


@pytest.mark.parametrize(
    "unit", ["\x1b[", "\x1b]", "\x1b[2Kx", "\ry", "\x1b[A\n", "1;", "\x1b[Bx", "\x1b[31mx"]
)
def test_long_runs_of_one_sequence_are_read(unit):
    log = unit * (250_000 // len(unit))

    assert len(to_text("x" * 250_000 + log)) <= 500_000


@pytest.mark.parametrize(
    ("text", "addresses"),
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
def test_only_addresses_of_pages_are_found(text, addresses):
    assert [text[start:end] for start, end in colours.spans(text)] == addresses


def test_a_line_has_links_and_everything_else_escaped():
    (row,) = colours.rows('<b> \x1b[33mhttp://a.example/\x1b[0m?q="1"&x')
    html = row.html()

    assert html.startswith(
        '&lt;b&gt; <a href="http://a.example/?q=" target="_blank" rel="noopener noreferrer"'
    )
    assert html.endswith('>http://a.example/</span>?q=</a>"1"&amp;x')


def test_half_an_address_is_no_link():
    (row,) = colours.rows("at http://a.example/long")

    assert "<a" not in row.html(15)
    assert row.html(40) == row.html()
