"""A job's folder as a stream: the newest of its logs for a card, every byte for a reader with offsets."""

import asyncio
import os
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.backends import backend
from nbtorchjob.backends.local.follow import PIECE_BYTES
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.logs import TAIL_BYTES
from tests.backends.full import local_backend
from tests.backends.local.acted import Acted

BIG = bytes(range(256)) * (5 * PIECE_BYTES // 512)  # two pieces and a half


@pytest.fixture
def job():
    """Yield a job with a folder that the test writes."""
    job = Acted()
    yield job
    job.remove()


async def read(job, since=None):
    """Follow the job to its end; return its facts."""
    return [event async for event in backend("local").follow(job.name, since=since)]


def texts(events):
    """Return each log's start and joined chunks; each chunk must begin where the one before it ended."""
    logs: dict[tuple[int, int], tuple[int, bytes]] = {}
    for chunk in (event for event in events if isinstance(event, ev.LogChunk)):
        start, data = logs.setdefault((chunk.rank, chunk.round), (chunk.offset, b""))
        assert chunk.offset == start + len(data)
        logs[chunk.rank, chunk.round] = (start, data + chunk.data)
    return logs


def test_every_byte_comes_once_and_the_end_last(job):
    job.begin(ranks=(0, 1))
    job.log(BIG)
    job.log(b"short")
    job.log(b"other\n", rank=1)
    job.end()

    events = asyncio.run(read(job, since={}))

    assert texts(events) == {(0, 0): (0, BIG + b"short"), (1, 0): (0, b"other\n")}
    assert isinstance(events[-1], ev.Closed)
    assert max(len(event.data) for event in events if isinstance(event, ev.LogChunk)) == PIECE_BYTES


def test_who_knows_nothing_gets_the_newest_alone(job):
    job.begin()
    job.log(BIG)
    job.end()

    start = len(BIG) - TAIL_BYTES
    assert texts(asyncio.run(read(job))) == {(0, 0): (start, BIG[start:])}


def test_what_is_known_is_left_out_round_by_round(job):
    for round, text in enumerate((b"first", b"second", b"third")):
        job.begin(round)
        job.log(text, round=round)
    job.end()

    events = asyncio.run(read(job, since={(0, 0): 5, (0, 1): 4}))

    assert texts(events) == {(0, 1): (4, b"nd"), (0, 2): (0, b"third")}


def test_a_round_comes_behind_the_one_before(job):
    for round in (0, 1):
        job.begin(round)
        job.log(BIG, round=round)
    job.end()

    rounds = [event.round for event in asyncio.run(read(job, since={})) if isinstance(event, ev.LogChunk)]

    assert all(before <= after for before, after in pairwise(rounds))


def test_no_more_is_read_than_is_taken(job):
    job.begin()
    job.log(BIG)

    async def look():
        async with aclosing(backend("local").follow(job.name, since={})) as events:
            head = [await anext(events), await anext(events)]
            job.log(b"more")
            job.end()
            return [*head, *[event async for event in events]]

    assert texts(asyncio.run(look())) == {(0, 0): (0, BIG + b"more")}


def test_a_log_may_be_known_beyond_its_end(job):
    job.begin()
    job.log(b"short")
    job.end()

    assert texts(asyncio.run(read(job, since={(0, 0): 100}))) == {}


def test_the_rest_is_read_of_a_job_whose_supervisor_was_killed(job):
    job.begin()
    job.log(BIG)
    (job.folder.path / "supervisor.json").unlink()
    (job.folder.path / "pool.json").write_text(
        '{"process": {"pid": 1, "started": 0, "boot": ""}, "folder": "/nowhere"}'
    )

    events = asyncio.run(read(job, since={}))

    assert texts(events) == {(0, 0): (0, BIG)}
    assert isinstance(events[-1], ev.Lost)


@settings(max_examples=30, deadline=None)
@given(logs=st.lists(st.binary(max_size=20), max_size=4), offset=st.integers(0, 90))
def test_a_log_is_given_from_an_offset_over_all_rounds(logs, offset):
    job = Acted()
    try:
        for round, text in enumerate(logs):
            job.begin(round)
            job.log(text, round=round)

        assert b"".join(local_backend().log(job.name, 0, offset)) == b"".join(logs)[offset:]
    finally:
        job.remove()


def test_every_byte_has_the_time_by_which_it_was_written(job):
    job.begin()
    job.log(b"one\n", at=10.0)
    job.log(b"two\n", at=12.5)
    job.log(b"last words", marked=False)
    path = job.folder.rank_log(0, 0, 0)
    os.utime(path, (20.0, 20.0))
    job.end()

    for offset, times in ((0, ((4, 10.0), (8, 12.5), (18, 20.0))), (6, ((8, 12.5), (18, 20.0)))):
        chunks = asyncio.run(read(job, since={(0, 0): offset}))
        assert [chunk.times for chunk in chunks if isinstance(chunk, ev.LogChunk)] == [times]


def test_the_spans_of_stderr_are_told_and_what_nobody_marked_waits_for_its_mark_or_the_end(job):
    job.begin()
    job.log(b"one\n")
    job.log(b"two\n", stderr=True)
    job.log(b"three\n")
    job.log(b"last words", marked=False)

    async def look():
        async with aclosing(backend("local").follow(job.name, since={(0, 0): 6})) as events:
            while not isinstance(event := await anext(events), ev.LogChunk):
                pass
            job.end()
            return [event, *[event async for event in events if isinstance(event, ev.LogChunk)]]

    marked, rest = asyncio.run(look())
    assert (marked.data, marked.stderr) == (b"o\nthree\n", ((6, 8),))
    assert (rest.data, rest.stderr) == (b"last words", ((14, 24),))
    (whole,) = local_backend().chunks(job.name, [0])
    assert [chunk.stderr for chunk in whole] == [((4, 8), (14, 24))]


def test_a_time_that_reaches_over_two_pieces_is_that_of_both(job):
    job.begin()
    job.log(BIG, at=10.0)
    job.log(b"more", at=11.0)
    job.end()

    chunks = [e for e in asyncio.run(read(job, since={})) if isinstance(e, ev.LogChunk)]

    assert [[at for _, at in chunk.times] for chunk in chunks] == [[10.0], [10.0], [10.0, 11.0]]
