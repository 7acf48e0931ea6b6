"""Text for a terminal: colours and progress bars take effect, everything else is only shown."""

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.text import Filter, coloured, safe, shown

HOSTILE = {
    "the clipboard": ("\x1b]52;c;ZXZpbA==\x07", "^[]52;c;ZXZpbA==^G"),
    "a title": ("\x1b]0;root@host\x1b\\", "^[]0;root@host^[\\"),
    "a link": ("\x1b]8;;http://evil\x07here\x1b]8;;\x07", "^[]8;;http://evil^Ghere^[]8;;^G"),
    "a cleared screen": ("\x1b[2J\x1b[H\x1bc", "^[[2J^[[H^[c"),
    "lines above": ("\x1b[1A\x1b[3F\x1bM", "^[[1A^[[3F^[M"),
    "another screen": ("\x1b[?1049h", "^[[?1049h"),
    "a question": ("\x1b[6n\x05\x1b[c", "^[[6n^E^[[c"),
    "a device string": ("\x1bPq#0\x1b\\", "^[Pq#0^[\\"),
    "C1": ("\x9b2J\x9d0;t\x9c", "<U+009B>2J<U+009D>0;t<U+009C>"),
    "C0": ("a\x00\x07\x0b\x0c\x0e\x7f", "a^@^G^K^L^N^?"),
    "bidi": ("\u202eabc\u2066\u061c\u200f", "<U+202E>abc<U+2066><U+061C><U+200F>"),
    "no room": ("a\u200bb\ufeff\u2028\u2029", "a<U+200B>b<U+FEFF><U+2028><U+2029>"),
    "concealed": ("\x1b[8mhidden\x1b[0m", "^[[8mhidden\x1b[0m"),
    "half a pair": ("\ud800", "<U+D800>"),
}
HARMLESS = [
    "plain ünïcödé 日本 👩‍👩‍👧\tand a tab\n",
    "\x1b[1;31mred\x1b[0m",
    "\x1b[38;5;8mgrey\x1b[38;2;8;8;8m\x1b[38:2::8:8:8mcolour\x1b[m",
    " 10%|#  |\r 20%|## |\b\b",
    "long line\r\x1b[Kshort\x1b[2K\r\n",
    # What tqdm (4.70) writes for a bar within a bar.
    "\router 0\n\rinner 0\x1b[A\n\rinner 1\x1b[A\n\r       \x1b[A\router 1\n\rinner 0\x1b[A\n",
    "one\ntwo\nthree\x1b[2A\x1b[2Bfour\x1b[A\x1b[B",
]


@pytest.mark.parametrize(("text", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_what_would_act_on_a_terminal_is_seen_there(text, expected):
    assert safe(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\x1b[2Aup", "\n^[[2Aup"),
        ("\n\x1b[A\x1b[Aup", "\n\x1b[A^[[Aup\x1b[1B\n"),
        ("\x1b[Bdown", "^[[Bdown"),
        ("\n\x1b[A\x1b[2B", "\n\x1b[A^[[2B\x1b[1B\n"),
        ("\n\n\x1b[0A\x1b[99999A", "\n\n\x1b[0A^[[99999A\x1b[1B\n"),
    ],
)
def test_nothing_is_reached_that_is_not_the_texts_own(text, expected):
    assert safe(text) == expected


def test_lines_before_another_writers_are_not_reached():
    log = Filter()
    first = log.feed(b"one\ntwo\n") + log.end()  # as when a line of our own comes next

    assert first == "one\ntwo\n"
    assert log.feed(b"\x1b[A\r") == "^[[A\r"


@pytest.mark.parametrize("text", HARMLESS)
def test_colours_and_progress_bars_are_as_they_were(text):
    assert safe(text) == text


def test_colours_end_with_the_text():
    assert safe("\x1b[31mred") == "\x1b[31mred\x1b[0m"


noise = st.lists(
    st.one_of(
        st.text(max_size=6),
        st.sampled_from([*(text for text, _ in HOSTILE.values()), *HARMLESS, "\x1b", "\x1b[", "\x1b[31"]),
    ),
    max_size=6,
).map("".join)


@given(noise, st.lists(st.integers(0, 60), max_size=4))
def test_parts_of_any_size_come_out_as_the_whole_does(text, cuts):
    data = text.encode(errors="replace")
    ends = [0, *sorted(cuts), len(data)]
    sieve = Filter()

    parts = [sieve.feed(data[a:b]) for a, b in pairwise(ends)]

    assert "".join([*parts, sieve.end()]) == safe(data.decode())
    assert safe(safe(text)) == safe(text)


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_only_a_terminal_is_given_less_than_all():
    hostile, expected = HOSTILE["the clipboard"]

    assert shown(hostile, io.StringIO()) == hostile
    assert shown(hostile, Screen()) == expected


def test_only_a_terminal_is_given_colours():
    text, bare = "\x1b[32mgreen\x1b[39m \x1b[38;5;28;01mbold\x1b[39;00m\x1b[0m\x07\n", "green bold^G\n"

    assert coloured(text, io.StringIO()) == bare
    assert coloured(text, Screen()) == text.replace("\x07", "^G")


def test_an_error_that_ipython_draws_is_safe():
    assert NBTorchJobError("no: \x1b]0;title\x07")._render_traceback_() == [
        "NBTorchJobError: no: ^[]0;title^G"
    ]
