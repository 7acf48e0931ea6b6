"""A failure's frames in the card, with the variables of each folded below it."""

import re
from html import escape

from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.state.text import attempts
from nbtorchjob.state.text.tracebacks import frames_text
from nbtorchjob.ui.card import render

CELL = ("Cell In[3]", "for epoch in range(3):\n    step(epoch)\n")
SOURCES = {"<cell-3>": CELL}.get


def frame(name, **variables):
    return Frame("<cell-3>", 2, name, "step(epoch)", tuple(variables.items()))


def drawn(*frames):
    return render.traceback_html(Error("ValueError", "no", frames), SOURCES)


def words(html):
    return re.sub("<[^>]*>", "", re.sub("</pre>|</summary>", "\n", html)).rstrip("\n").split("\n")


def test_variables_are_folded_below_their_frame():
    html = drawn(frame("<module>", epoch="2", lr="0.1"), frame("step", n="2"))

    cell = ["      1 for epoch in range(3):", "----&gt; 2     step(epoch)"]
    assert words(html) == [
        *("Cell In[3], line 2", *cell, "2 variables: epoch, lr", "epoch = 2", "lr = 0.1"),
        *("Cell In[3], line 2, in step", *cell, "1 variable: n", "n = 2"),
        "ValueError: no",
    ]
    assert "<details" in html
    assert "<details open" not in html


def test_what_they_hold_is_escaped():
    html = drawn(frame("f", **{"x<b>": "<script>alert(1)</script>\x1b[31m"}))

    assert "<script" not in html
    assert "x<b>" not in html
    assert "\x1b" not in html


def test_without_variables_it_is_the_text():
    error = Error("ValueError", "no", (frame("f"), frame("g")))

    assert render.traceback_html(error, lambda _: None).count("<pre") == 1
    assert words(render.traceback_html(error, lambda _: None)) == [
        escape(line) for line in frames_text(error).split("\n")
    ]


def test_of_a_long_traceback_the_ends_keep_theirs():
    html = drawn(*(frame(f"f{n}", n=str(n)) for n in range(200)))

    assert len(html) < 2 * attempts.MOST_BYTES + 25_000
    assert "n</b> = 0\n" in html + "\n" or "n</b> = 0<" in html
    assert "n</b> = 199<" in html
    assert "n</b> = 50<" not in html
    at = words(html).index("n = 199")
    assert "in f199" in words(html)[at - 4]


def test_where_there_is_little_room_the_innermost_frame_has_it():
    html = drawn(frame("f", a="x" * 390), frame("g", **{f"v{n}": "x" * 390 for n in range(40)}))

    assert "describe lists them" in html
    assert "v0</b>" in html
    assert "a</b>" not in html
    assert len(html) < 12_000
