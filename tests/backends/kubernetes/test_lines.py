"""Lines of a log, however they arrive, and the record of lines already returned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.backends.kubernetes.podlog import Lines, SeenLines, Splitter, earlier


def stamp(seconds):
    """Return a timestamp that many seconds after the full minute."""
    return f"2026-11-21T11:15:{seconds:012.9f}Z".encode()


@given(st.lists(st.binary(max_size=40).filter(lambda data: b"\n" not in data)), st.randoms())
def test_lines_are_the_same_however_they_arrive(texts, chance):
    entries = [(stamp(1 + index / 1000), text) for index, text in enumerate(texts)]
    text = b"".join(stamp + b" " + data + b"\n" for stamp, data in entries)
    splitter = Splitter()
    lines: list[tuple[bytes, bytes]] = []
    while text:
        size = chance.randint(1, 30)
        lines += splitter.feed(text[:size])
        text = text[size:]

    assert [*lines, *splitter.end()] == entries


def test_a_line_without_end_is_cut():
    splitter = Splitter()
    splitter.feed(stamp(1) + b" ")
    for _ in range(100):
        splitter.feed(b"x" * 100_000)
    ((_, text),) = splitter.feed(b"\n")

    assert 1_000_000 < len(text) < 1_300_000


@pytest.mark.parametrize(
    ("timestamp", "asked"),
    [
        (b"2026-11-21T11:15:00.5Z", "2026-11-21T11:14:59Z"),
        (b"2026-11-21T11:15:01.123456789+02:00", "2026-11-21T11:15:00+02:00"),
    ],
)
def test_sincetime_is_a_full_second_in_the_logs_own_zone(timestamp, asked):
    assert earlier(timestamp) == asked


def test_what_is_remembered_of_a_log_is_bounded():
    seen = SeenLines()
    for start in range(0, 100_000, 1000):
        seen.add([stamp(1 + at / 1_000_000) for at in range(start, start + 1000)])
    repeats = seen.repeats()

    assert not repeats.drop(Lines.of((stamp(1 + at / 1_000_000), b"") for at in range(100_000)))
    assert [*repeats.drop(Lines.of([(stamp(2), b"new")]))] == [(stamp(2), b"new")]
