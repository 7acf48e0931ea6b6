"""Parts of a log."""

from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.frontends.server.routes.texts import window


@given(
    pieces=st.lists(st.binary(max_size=5), max_size=6),
    limit=st.none() | st.integers(0, 40),
)
def test_a_window_is_a_slice_however_the_log_comes(pieces, limit):
    found = list(window(iter(pieces), limit))

    assert b"".join(found) == b"".join(pieces)[:limit]
    assert all(found)


def test_no_more_is_read_than_is_wanted():
    read = []

    def log():
        for piece in (b"abc", b"def", b"ghi"):
            read.append(piece)
            yield piece

    assert b"".join(window(log(), 4)) == b"abcd"
    assert read == [b"abc", b"def"]
