from functools import reduce
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.state.facts.logs import LogTail

TEXT = b"".join(b"line %d\n" % n for n in range(60))
CUTS = st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 120)), max_size=30)


def chunks(cuts):
    return [
        (1, start, TEXT[start : start + length]) for start, length in cuts if TEXT[start : start + length]
    ]


def fold(pieces, cap=200):
    tail = LogTail(cap=cap)
    for piece in pieces:
        tail = tail.add(*piece)
    return tail


@given(CUTS.flatmap(lambda cuts: st.tuples(st.just(cuts), st.permutations(cuts))))
def test_the_order_of_chunks_does_not_matter(both):
    first, second = both

    assert fold(chunks(first)).text() == fold(chunks(second)).text()


@given(CUTS)
def test_repeated_chunks_change_nothing(cuts):
    tail = fold(chunks(cuts))

    assert fold([*chunks(cuts), *chunks(cuts)]).text() == tail.text()


def test_of_two_that_claim_the_same_bytes_the_same_stay_in_any_order():
    both = [(0, b"a forged one"), (2, b"wrote"), (9, b" and more")]
    tails = {
        reduce(lambda tail, chunk: tail.add(0, *chunk), order, LogTail()) for order in permutations(both)
    }
    assert len(tails) == 1


@given(CUTS)
def test_it_never_holds_more_than_its_cap(cuts):
    assert sum(len(p.data) for p in fold(chunks(cuts)).pieces) <= 200


def test_a_whole_log_reads_as_it_was_written():
    tail = LogTail().add(0, 0, b"one\n").add(0, 4, b"two\n")

    assert (tail.text(), tail.truncated, tail.end) == ("one\ntwo\n", False, (0, 8))


def test_a_log_cut_at_the_front_starts_with_a_whole_line():
    tail = LogTail(cap=10).add(0, 0, b"first line\nsecond\nthird\n")

    assert (tail.text(), tail.truncated) == ("third\n", True)


def test_a_gap_and_a_new_round_are_marked():
    tail = LogTail().add(0, 0, b"a\n").add(0, 100, b"half\nb\n").add(1, 0, b"c\n")

    assert tail.text().split("\n") == ["a", "", "[…]", "b", "", "[restarted: round 1]", "c", ""]


def test_a_character_cut_in_two_waits_for_its_other_half():
    smile = "☺".encode()

    assert LogTail().add(0, 0, b"x" + smile[:1]).text() == "x"
    assert LogTail().add(0, 0, b"x" + smile[:1]).add(0, 2, smile[1:]).text() == "x☺"
