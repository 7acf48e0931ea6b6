"""Lines with their times, from chunks that end anywhere."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.state.facts.events import LogChunk
from nbtorchjob.state.facts.logs import LineFilter, LogLine, lines, merged

TEXT = b"one\ntwo\r\n\n50%\r100%\nlast"


@given(st.sets(st.integers(1, len(TEXT) - 1)))
def test_lines_are_whole_wherever_chunks_end(cuts):
    edges = [0, *sorted(cuts), len(TEXT)]
    chunks = [LogChunk(0, 0, at, TEXT[at:end]) for at, end in pairwise(edges)]

    assert [line.data for line in lines(0, chunks)] == [
        b"one\n",
        b"two\r\n",
        b"\n",
        b"50%\r100%\n",
        b"last",
    ]


def test_a_line_has_the_time_by_which_it_was_whole():
    first = LogChunk(0, 0, 0, b"one\ntwo\nthr", ((4, 1.0), (11, 2.0)))
    rest = LogChunk(0, 0, 11, b"ee\nfour\n", ((14, 3.0), (19, 2.5)))

    assert list(lines(0, [first, rest])) == [
        LogLine(1.0, 0, b"one\n"),
        LogLine(2.0, 0, b"two\n"),
        LogLine(3.0, 0, b"three\n"),
        LogLine(3.0, 0, b"four\n"),  # a clock that was set back reorders no lines
    ]


def test_a_line_without_an_end_is_left_out_while_the_job_goes_on():
    chunks = [LogChunk(0, 0, 0, b"half"), LogChunk(0, 1, 0, b"one\ntw")]

    assert [line.data for line in lines(0, chunks, ended=False)] == [b"half", b"one\n"]
    assert [line.data for line in lines(0, chunks)] == [b"half", b"one\n", b"tw"]


def test_a_round_ends_what_the_one_before_began():
    chunks = [LogChunk(0, 0, 0, b"half"), LogChunk(0, 1, 0, b"anew\n")]

    assert [line.data for line in lines(0, chunks)] == [b"half", b"anew\n"]


def test_logs_are_merged_by_time():
    logs = [[LogLine(at, rank, b"") for at in times] for rank, times in enumerate(((1, 4, 4), (2, 3, 5)))]

    assert [line.rank for line in merged(map(iter, logs))] == [0, 1, 1, 0, 0, 1]


def test_what_is_wanted_lies_between_times_and_matches():
    line_filter = LineFilter(since=1.0, until=2.0, pattern=re.compile("lo.s$"))

    assert [
        line_filter.has(LogLine(at, 0, text))
        for at, text in (
            (0.9, b"loss\n"),
            (1.0, b"loss\n"),
            (2.0, b"loss\n"),
            (2.1, b"loss\n"),
            (1.5, b"los"),
        )
    ] == [False, True, True, False, False]


def test_a_shown_line_is_whole_and_says_who_wrote_it():
    assert LogLine(0.0, 3, b"half").shown(time=False, rank=True) == b"[rank3]: half\n"
    assert LogLine(0.0, 3, b"one\n").shown(time=True, rank=False).endswith(b"00.000+00:00 one\n")
