"""Whatever ranks write, and in whatever pieces it is read, the host gets the same bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.runtime.objects.wire import WireError, sign
from nbtorchjob.runtime.store import frames
from nbtorchjob.runtime.store.frames import Fact, LogPiece, Output, Parser, ValuePart

KEY = b"k" * 32
ROUND = 1763737000

# Bytes that affect how a line is written, and any others.
odd = st.lists(
    st.one_of(
        st.sampled_from([b"\r", b"\n", b"\r\n", b"\r\r\n", b"\0", b"\xff", b"0.1.2 x", b"\x1b[0m"]),
        st.binary(max_size=20),
        st.integers(frames.LONGEST - 2, 2 * frames.LONGEST + 2).map(lambda n: b"x" * n),
    ),
    max_size=12,
).map(b"".join)


def through_containerd(text):
    """Return the lines as a log stream has them, without one carriage return before a newline."""
    assert text == b"" or text.endswith(b"\n")
    return [line[:-1] if line.endswith(b"\r") else line for line in text.split(b"\n")[:-1]]


def parsed(text):
    parser = Parser()
    return [parser.feed(line) for line in through_containerd(text)]


@given(st.lists(st.tuples(odd, st.booleans()), max_size=5))
def test_any_bytes_in_any_split_come_out_as_they_went_in(chunks):
    at, sent = 0, b""
    for chunk, stderr in chunks:
        sent += frames.log(3, ROUND, at, chunk, stderr=stderr)
        at += len(chunk)
    end = 0
    for piece in parsed(sent):
        assert piece[:3] == (3, ROUND, end)
        end += len(piece.data)
    assert b"".join(piece.data for piece in parsed(sent)) == b"".join(chunk for chunk, _ in chunks)
    for stream in (True, False):
        content = b"".join(chunk for chunk, stderr in chunks if stderr is stream)
        assert b"".join(piece.data for piece in parsed(sent) if piece.stderr is stream) == content


@given(odd)
def test_no_line_is_longer_than_what_a_runtime_keeps_whole(data):
    assert all(len(line) < 16_384 for line in frames.log(3, ROUND, 0, data).split(b"\n"))


@given(odd, st.integers(0, 10_000))
def test_any_line_alone_says_which_bytes_it_holds(data, at):
    for line in through_containerd(frames.log(3, ROUND, at, data)):
        piece = Parser().feed(line)
        assert type(piece) is LogPiece
        assert data[piece.offset - at :].startswith(piece.data)


def test_a_log_line_reads_well():
    assert frames.log(0, ROUND, 512, b"loss 0.1\n 10%\rend") == (
        b"0.1763737000.512 loss 0.1\n0.1763737000.521+ 10%\rend\n"
    )


def test_progress_bars_and_windows_newlines_keep_their_carriage_returns():
    assert frames.log(0, 7, 0, b"10%\r20%\r") == b"0.7.0-10%\r20%\n"
    assert frames.log(0, 7, 0, b"a\r\nb\r\r\n") == b"0.7.0<a\n0.7.3-b\n0.7.5<\n"


def test_what_a_user_prints_is_never_taken_for_a_frame():
    spoof = b'fact.0 {"event": "Closed"}\nvalue.0.1.0 AAAA\n7.1.0 other rank\n'
    assert [type(frame) for frame in parsed(frames.log(0, ROUND, 0, spoof))] == [LogPiece] * 3


@given(odd.filter(lambda data: b"\n" not in data))
def test_a_nodes_own_line_is_never_taken_for_a_frame(line):
    (got,) = parsed(frames.output(line))
    assert type(got) is Output


def test_a_nodes_own_line_that_looks_like_a_frame_is_set_apart_by_a_space():
    assert parsed(frames.output(b"1.2.3 released")) == [Output(" 1.2.3 released")]
    assert parsed(frames.output(b"Collecting rich\r\n")) == [Output("Collecting rich")]


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 100_000])
def test_a_fact_of_any_size_comes_whole(size):
    line = b'{"event": "Notice", "text": "%s"}' % (b"x" * size)
    *begun, got = parsed(frames.fact(line + b"\n"))
    assert begun == [None] * len(begun)
    assert got == Fact({"event": "Notice", "text": "x" * size})


def test_parts_of_a_fact_that_come_again_change_nothing():
    first, second, third = frames.fact(b'{"text": "%s"}' % (b"x" * 20_000)).splitlines()
    parser = Parser()
    got = [parser.feed(line) for line in (first, second, first, second, second, third)]
    assert got == [None] * 5 + [Fact({"text": "x" * 20_000})]


def test_a_fact_with_a_part_missing_is_a_plain_line_and_spoils_nothing_after_it():
    first, _, third = frames.fact(b'{"text": "%s"}' % (b"x" * 20_000)).splitlines()
    parser = Parser()
    assert parser.feed(first) is None
    assert type(parser.feed(third)) is Output
    assert parser.feed(b'fact.0 {"a": 1}') == Fact({"a": 1})


@pytest.mark.parametrize("line", [b"", b"fact.0 {", b"fact.0 3", b"fact.9 {}", b"value.0.1.0 ???x", b"\xff"])
def test_what_is_damaged_is_a_plain_line(line):
    assert type(Parser().feed(line)) is Output


def sent(data):
    return parsed(b"".join(frames.value(0, ROUND, data)))


def collect(parts, data, key=KEY):
    return frames.collect(parts, sign(data, key).hex(), KEY)


@given(st.binary(max_size=30_000), st.randoms())
def test_a_value_comes_whole_from_parts_in_any_order_and_repetition(data, random):
    parts = sent(data) * 2
    random.shuffle(parts)
    assert collect(parts, data) == data
    assert all(type(part) is ValuePart for part in parts)


DATA = bytes(range(256)) * 120


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_value_with_a_part_missing_is_refused(lost):
    parts = sent(DATA)
    del parts[lost]
    with pytest.raises(WireError, match=r"didn't arrive|isn't what this job's rank sent"):
        collect(parts, DATA)


def test_a_damaged_value_is_refused():
    first, *others = sent(DATA)
    with pytest.raises(WireError, match="isn't what"):
        collect([first._replace(data=b"!" + first.data[1:]), *others], DATA)


def test_a_value_signed_with_another_key_is_refused():
    with pytest.raises(WireError, match="isn't what"):
        collect(sent(DATA), DATA, key=b"another")
