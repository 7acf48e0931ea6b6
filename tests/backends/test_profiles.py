"""Profiles: the node of the rank sends one, which becomes a file, or the reason for none, in one line."""

import base64
import gzip
import json
from functools import reduce
from typing import Any

import pytest

from nbtorchjob import JobEndedError, ProfileError, SpecError
from nbtorchjob.backends import stacks
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import RUNS, STOPPED, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from tests.backends.full import Questions

STARTED = (ev.WorkersStarted(1.0, 0, 0, 0, (0,), 2), ev.WorkersStarted(1.0, 1, 0, 1, (1,), 2))
LISTS: dict[str, list[Any]] = {"looks": [], "stacks": [], "ranges": [], "collectives": []}
TOLD = {"pid": 7, "began": 0, "ended": 10**9, "asked": 1.0, "devices": False, **LISTS}
TRACE = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 7, "ts": 0, "dur": 500000}]}
TRACE_BYTES = json.dumps(TRACE).encode()
FRAMES = (Frame("/tmp/1.py", 3, "<module>"),)


def packed(content, name):
    pressed = gzip.compress(content)
    return [{name: base64.b64encode(part).decode()} for part in (pressed[:20], pressed[20:])]


def records(summary=TOLD, trace=TRACE_BYTES):
    return (*packed(json.dumps(summary).encode(), "told"), *packed(trace, "trace"))


GOOD = records()


class Asked(Questions):
    """A backend that answers for node 1, which has rank 1."""

    def __init__(self, answer=GOOD, trouble="", state=RUNS, sampled=""):
        sample = RankSample(1, state, 7, (Thread("main", FRAMES),))
        fact = json.loads(json.dumps(factlines.to_json(ev.Sampled(5.0, 1, 0, "asked", (sample,)))))
        self.answers = {
            "sample": NodeAnswer(1, () if sampled else (fact,), sampled),
            "profile": NodeAnswer(1, tuple(answer), trouble),
        }
        self.asked = []

    def ask(self, name, question, nodes=None, timeout=10.0):
        self.asked.append((question, nodes))
        yield self.answers[question["question"]]


def take(asked, folder, facts=STARTED, seconds=1.0, rank=1, by: Any = stacks.take_profile):
    state = reduce(apply, facts, JobState(JobInfo("job", sources={"/tmp/1.py": ("Cell In[3]", "")})))
    return by(asked, state, rank, seconds, folder)


def test_the_trace_becomes_a_file_and_an_earlier_one_stays(folder):
    backend = Asked()
    first, second = take(backend, folder), take(backend, folder)

    assert backend.asked[:2] == [
        ({"question": "sample"}, [1]),
        ({"question": "profile", "rank": 1, "seconds": 1.0, "memory": False}, [1]),
    ]
    assert first.spent.parts["compute"] == 0.5
    assert [first.path.name, second.path.name] == [
        "job-rank-1.trace.json.gz",
        "job-rank-1-2.trace.json.gz",
    ]
    assert json.loads(gzip.decompress(first.path.read_bytes())) == TRACE


def test_a_snapshot_of_memory_is_written_and_not_read(folder):
    summary = {"asked": 2.0, "held": [[0, 8192, 1024]], "events": 5}
    profile = take(Asked(records(summary, b"cos\nsystem\n")), folder, by=stacks.take_memory_profile)

    assert (profile.path.name, profile.path.read_bytes()) == ("job-rank-1.memory.pickle", b"cos\nsystem\n")
    assert "5 events" in str(profile)


AWAY = "its main thread hasn't come back to Python for 5 s"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked(sampled="hasn't answered for 10 s"), "node 1: hasn't answered for 10 s"),
        (Asked(state=STOPPED), "stopped, by a signal or a debugger"),
        (Asked([{"trouble": "it has returned"}]), "it has returned"),
        (Asked([{"trouble": AWAY}]), f"{AWAY}: it was in Cell In[3], line 3"),
        (Asked([], "it knows no question 'profile'"), "it knows no question 'profile'"),
        (Asked(GOOD[:2], "it has ended meanwhile"), "it has ended meanwhile"),
        (Asked([*GOOD, {"trouble": "its trace is too long"}]), "its trace is too long"),
    ],
)
def test_why_there_is_no_profile_is_one_line(folder, asked, why):
    with pytest.raises(ProfileError) as refused:
        take(asked, folder)

    assert str(refused.value) == f"rank 1 can't be profiled: {why}"
    assert not [*folder.iterdir()]


@pytest.mark.parametrize(
    "answer",
    [
        (),
        GOOD[:3],
        [{"told": "?"}, {"trace": 5}],
        records({"trouble": ""}),
        records({**TOLD, "looks": [[1, 2, 3]]}),
        records(trace=b"[]"),
        records(trace=b'{"traceEvents": [5]}'),
    ],
)
def test_what_is_damaged_is_no_profile(folder, answer):
    with pytest.raises(ProfileError, match="can't be read"):
        take(Asked(answer), folder)

    assert not [*folder.iterdir()]


def test_what_cannot_be_asked(folder):
    with pytest.raises(SpecError, match="seconds: got 61"):
        take(Asked(), folder, seconds=61)
    with pytest.raises(SpecError, match="a folder that exists"):
        take(Asked(), folder / "missing")
    with pytest.raises(ProfileError, match="rank 0 can't be profiled: no node has it"):
        take(Asked(), folder, rank=0)
    with pytest.raises(JobEndedError, match="job has ended"):
        take(Asked(), folder, facts=(*STARTED, ev.Closed(9.0)))
