"""A node profiles a rank, and sends the result in pieces."""

import base64
import gzip
import json
import os
from typing import Any

import pytest

from nbtorchjob.runtime.look import profiling
from nbtorchjob.runtime.look.profiler import TOLD, TRACE, profile_path
from nbtorchjob.runtime.look.profiling import Profiling

ASKED = {"question": "profile", "rank": 1, "seconds": 0.5, "memory": False}


class Ranks:
    """A stub of a node's ranks: a rank writes its profile as soon as it is asked, or ends."""

    def __init__(self, folder, record=None, trace=b"", refuses=""):
        self.folder, self.told, self.trace, self.refuses = str(folder), record, trace, refuses
        self.asked = []

    def profile(self, rank, question, seconds):
        self.asked.append((rank, question, seconds))
        if self.told is not None:
            for name, content in ((TRACE, self.trace), (TOLD, json.dumps(self.told).encode())):
                with open(profile_path(self.folder, name, rank), "wb") as file:
                    file.write(content)
        return self.refuses

    def is_there(self, rank):
        return False


def node(folder, ranks: Any):
    return Profiling(str(folder), ranks)


def joined(records, name):
    return gzip.decompress(b"".join(base64.b64decode(record[name]) for record in records if name in record))


@pytest.mark.parametrize(("memory", "question"), [(False, "profile"), (True, "memory")])
def test_what_a_rank_wrote_comes_in_pieces_and_nothing_is_left(folder, monkeypatch, memory, question):
    monkeypatch.setattr(profiling, "_PIECE", 10_000)
    trace = os.urandom(100_000)
    ranks = Ranks(folder, {"pid": 7}, trace)

    records = [*node(folder, ranks).answer({**ASKED, "memory": memory})]

    assert ranks.asked == [(1, question, 0.5)]
    assert json.loads(joined(records, "told")) == {"pid": 7}
    assert joined(records, "trace") == trace
    assert len(records) > 4
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("ranks", "trouble"),
    [
        ({}, "it ended meanwhile"),
        ({"refuses": "it has returned"}, "it has returned"),
        ({"record": {"trouble": "no room"}}, "no room"),
    ],
)
def test_why_there_is_no_profile_is_the_answer(folder, ranks, trouble):
    assert [*node(folder, Ranks(folder, **ranks)).answer(ASKED)] == [{"trouble": trouble}]


@pytest.mark.parametrize("limit", ["_MOST", "MOST_WRITTEN"])
def test_a_trace_may_be_too_long(folder, monkeypatch, limit):
    monkeypatch.setattr(profiling, limit, 1000)
    ranks = Ranks(folder, {}, os.urandom(5000))

    *_, last = node(folder, ranks).answer(ASKED)

    assert last == {"trouble": "its trace is too long: ask for fewer seconds"}


@pytest.mark.parametrize("seconds", [0, -1, 61, float("nan")])
def test_its_time_is_bounded(folder, seconds):
    ranks = Ranks(folder)

    assert [*node(folder, ranks).answer({**ASKED, "seconds": seconds})] == [
        {"trouble": "a profile takes up to 60 s"}
    ]
    assert ranks.asked == []


def test_one_at_a_time(folder):
    profiling = node(folder, Ranks(folder, {}, b"trace"))
    first: Any = profiling.answer(ASKED)
    next(first)

    assert [*profiling.answer(ASKED)] == [{"trouble": "a rank of its node is being profiled already"}]
    first.close()  # as when the client leaves
    assert "told" in next(profiling.answer(ASKED))
