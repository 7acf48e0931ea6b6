"""A followed job as messages: how much is buffered, how often it is sent, and what remains at its end."""

import asyncio
import threading
import time
from contextlib import aclosing
from types import SimpleNamespace

import pytest

from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.routes import streams
from nbtorchjob.frontends.server.routes.streams import messages
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts import events as ev
from tests.patience import LIMIT

INFO = JobInfo("train-2222")
PIECE = 1 << 16


def notices(state):
    """Return a record of a state: how many notices it has."""
    return {"notices": len(state.notices)}


def taken(events, ranks=None):
    """Return all messages of a job with these events, except the ``loaded`` message."""

    async def take():
        frames = [message async for message in messages(INFO, events, ranks, notices)]
        return [message for message in frames if message != {"loaded": True}]

    return asyncio.run(take())


async def told(*events):
    """Yield these events."""
    for event in events:
        yield event


def test_of_a_long_log_little_waits():
    read = 0

    async def log():
        nonlocal read
        for offset in range(0, 32 << 20, PIECE):
            read += PIECE
            yield ev.LogChunk(0, 0, offset, bytes(PIECE))

    async def take():
        got = 0
        async for message in messages(INFO, log(), None, notices):
            if isinstance(message, bytes):
                got += len(message.partition(b"\n")[2])
                assert read - got <= 3 << 20
        return got

    assert asyncio.run(take()) == read == 32 << 20


def test_an_old_log_that_waits_for_a_slow_page_is_not_taken_for_told(monkeypatch):
    read, got, now = 0, 0, 0.0
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))

    async def log():
        nonlocal read
        for offset in range(0, 8 << 20, PIECE):
            read += PIECE
            yield ev.LogChunk(0, 0, offset, bytes(PIECE))

    async def take():
        nonlocal got, now
        async for message in messages(INFO, log(), None, notices):
            if isinstance(message, bytes):
                got += len(message.partition(b"\n")[2])
            else:
                assert message != {"loaded": True}
            while read < min(8 << 20, got + (1 << 20)):  # noqa: ASYNC110 another loop reads the log
                await asyncio.sleep(0)
            now += 10

    asyncio.run(take())


def test_what_follows_on_travels_together_rank_by_rank():
    lines = [ev.LogChunk(rank, 0, 2 * count, b"x\n") for count in range(1000) for rank in (0, 1)]

    frames = taken(told(*lines))

    assert frames == [{"notices": 0}, b"0.0.0\n" + b"x\n" * 1000, b"1.0.0\n" + b"x\n" * 1000, {"end": True}]


def test_a_gap_is_seen_by_its_offset():
    frames = taken(told(ev.LogChunk(0, 0, 0, b"a"), ev.LogChunk(0, 0, 5, b"b"), ev.LogChunk(0, 1, 0, b"c")))

    assert frames[1:-1] == [b"0.0.0\na", b"0.0.5\nb", b"0.1.0\nc"]


def test_facts_are_told_in_time_but_not_each():
    async def facts():
        for count in range(2000):
            yield ev.Notice(time.time(), str(count))
            await asyncio.sleep(0)

    start = time.monotonic()
    frames = taken(facts())

    assert frames[-1] == {"end": True}
    assert frames[-2] == {"notices": frames[-2]["notices"]}
    assert 1 <= len(frames) - 1 <= 2 + 2 * (time.monotonic() - start)


def test_a_job_of_which_nothing_is_known_yet_is_told_all_the_same():
    async def take():
        async def silence():
            await asyncio.Event().wait()
            yield ev.Closed(0.0)

        async with aclosing(messages(INFO, silence(), None, notices)) as stream:
            return await anext(stream)

    assert asyncio.run(take()) == {"notices": 0}


def test_what_came_before_an_error_is_given_before_it():
    async def broken():
        yield ev.LogChunk(0, 0, 0, b"text")
        raise NBTorchJobError("the cluster is gone")

    frames = []

    async def take():
        async for message in messages(INFO, broken(), None, notices):
            frames.append(message)

    with pytest.raises(NBTorchJobError, match="the cluster is gone"):
        asyncio.run(take())
    assert frames == [{"notices": 0}, b"0.0.0\ntext"]


def test_who_stops_taking_ends_the_following_at_once():
    ended = threading.Event()

    async def endless():
        try:
            while True:
                yield ev.LogChunk(0, 0, 0, b"text")
        finally:
            ended.set()

    async def take():
        async with aclosing(messages(INFO, endless(), None, notices)) as stream:
            await anext(stream)

    asyncio.run(take())
    assert ended.wait(LIMIT)
