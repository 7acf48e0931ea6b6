"""Forged answers, from something in a node's place: shown, or refused with an error of one line."""

import asyncio
import json
import random
from contextlib import asynccontextmanager, suppress
from functools import reduce
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbtorchjob import ProfileError
from nbtorchjob.backends import stacks, talk
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes.api import connection
from nbtorchjob.backends.kubernetes.jobs import results
from nbtorchjob.backends.talk import Conversation
from nbtorchjob.runtime.ask.questions import OWN, RECORD_BYTES, Messages
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from tests.backends.test_profiles import STARTED, TOLD, TRACE, Asked, packed, take

CASES = 1500
KEY = b"k" * 32
DEEP = b"[" * 100_000 + b"]" * 100_000
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 10**400, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", "\ud800", "\x1b]52;c;YQ==\x07", "9" * 5000, [], {}, [[]], {"a": {}}, [1, 2], ["", "", ""]),
)


def forged(value, draw):
    """Return a copy with an odd value in one place."""
    if draw.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return draw.choice(ODD)
    copy = dict(value) if isinstance(value, dict) else list(value)
    place = draw.choice([*copy] if isinstance(copy, dict) else range(len(copy)))
    copy[place] = forged(copy[place], draw)
    return copy


FULL = {
    **TOLD,
    "looks": [[0, 0, 0, 0], [10**8, 10**7, 0, 1]],
    "stacks": [[["/tmp/1.py", 3, "f"]]],
    "ranges": [["step", 0, 10**8]],
    "collectives": [["gloo:all_reduce", 0, 10**8]],
}
HELD = {"asked": 2.0, "held": [[0, 8192, 1024]], "events": 5}


def profile_of(summary, trace):
    try:
        content = json.dumps(summary).encode(), json.dumps(trace).encode()
    except (ValueError, RecursionError):
        return ()
    return (*packed(content[0], "told"), *packed(content[1], "trace"))


@pytest.mark.parametrize(("by", "summary"), [(stacks.take_profile, FULL), (stacks.take_memory_profile, HELD)])
def test_a_forged_profile_is_shown_or_refused(folder, by, summary):
    draw = random.Random(41)
    refused = []
    for _ in range(CASES):
        answer = profile_of(*draw.choice([(forged(summary, draw), TRACE), (summary, forged(TRACE, draw))]))
        try:
            profile = take(Asked(answer), folder, by=by)
        except ProfileError as exc:
            refused.append(str(exc))
        else:
            assert str(profile)
            assert profile._repr_html_()
            assert json.dumps(profile.to_json())
            profile.path.unlink()
    assert 0 < len(refused) < CASES
    assert [text for text in refused if "\n" in text or "\x1b" in text] == []


@pytest.mark.parametrize(
    "trace", [DEEP, b'{"traceEvents": [%b]}' % DEEP, b'{"a": %b, "traceEvents": []}' % DEEP]
)
def test_a_deep_trace_is_one_line(folder, trace):
    answer = (*packed(json.dumps(TOLD).encode(), "told"), *packed(trace, "trace"))

    with pytest.raises(ProfileError, match=r"the profile that rank \d+ sent can't be read: ") as refused:
        take(Asked(answer), folder)

    assert "\n" not in str(refused.value)
    assert not [*folder.iterdir()]


def answering(*records) -> Any:
    """Return a backend on which node 1 answers each question with these records."""
    return SimpleNamespace(talk=lambda *_: None, ask=lambda *_, **__: iter([NodeAnswer(1, records, "")]))


def saying(words) -> Any:
    """Return a conversation in which a rank offers these words as completions."""
    return SimpleNamespace(send=lambda _: None, hear=lambda _: {"words": words})


def state(*facts):
    return reduce(apply, (*STARTED, *facts), JobState(JobInfo("job", nodes=(2, 2))))


def test_forged_stacks_are_shown_or_left_out():
    draw = random.Random(41)
    frame = {"filename": "/tmp/1.py", "lineno": 3, "name": "f"}
    thread = {"name": "main", "frames": [frame]}
    sample = {"rank": 1, "state": "runs", "pid": 7, "threads": [thread], "note": ""}
    fact = {"event": "Sampled", "time": 5.0, "node": 1, "round": 0, "why": "asked", "samples": [sample]}
    for _ in range(CASES):
        answer = stacks.ask(answering(forged(fact, draw)), state(), 1.0)
        assert str(answer)
        assert answer._repr_html_()


def test_forged_words_of_the_debugger_are_left_out():
    stop = ev.RankStops(5.0, 1, 1, 1, 3, "f", "/tmp/1.py", ev.FAILURE)
    for odd in ODD:
        completed = talk.Session(saying(odd), stop).complete("a", 0, 1)
        assert all(isinstance(word, str) for word in completed)
        assert {*talk.release(answering({"released": odd}), state(stop))} <= {1}


@pytest.mark.parametrize(
    ("end", "trouble"),
    [
        ("no\nroom \x1b]52;c;YQ==\x07", "no room  ]52;c;YQ== "),
        ("x" * 900_000, "x" * 499 + "…"),
        ({}, "the answer isn't from a node of this job: it isn't a message"),
        ([[]], "the answer isn't from a node of this job: it isn't a message"),
    ],
)
def test_what_a_node_ends_with_is_one_short_line(end, trouble):
    node, conversation = Messages(KEY), Conversation(1, KEY, {"question": "sample"})
    request = conversation.hear(node.write({"number": "1"}, RECORD_BYTES))
    node.number("1")
    question = node.read(bytearray(request), RECORD_BYTES)
    assert isinstance(question, dict)
    node.number(question[OWN])
    conversation.hear(node.write({"end": end}, RECORD_BYTES))
    assert conversation.over
    assert conversation.answer.trouble == trouble


@pytest.mark.parametrize(
    "status",
    [
        *(json.dumps({"status": "Failure", "details": odd}).encode() for odd in ({"causes": 5}, 7, "x", [1])),
        b'{"details": {"causes": [{"reason": "ExitCode", "message": Infinity}]}, "status": ""}',
        b'{"details": {"causes": [{"reason": "ExitCode", "message": "x"}]}, "status": ""}',
        *(b"", b"5", b"[]", b"\xff", DEEP),
    ],
)
def test_an_end_that_no_command_has_is_none_that_can_be_read(status):
    assert connection._end(status) == connection.End(None, "its exit status can't be read")


def test_a_pod_that_does_not_stop_talking_is_not_heard_ahead(monkeypatch):
    count = 0

    async def receive():
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return b"x" * 100

    @asynccontextmanager
    async def leading(*_):
        yield SimpleNamespace(receive=receive)

    async def carried():
        line = results.PodLine(cast("Any", None), {})
        for _ in range(10 * results._AHEAD):
            await asyncio.sleep(0)
        before = count
        assert line.receive(0) == b"x" * 100
        line._work.cancel()
        return before

    monkeypatch.setattr(results, "_leading", leading)
    assert asyncio.run(carried()) == results._AHEAD


def test_a_number_that_no_node_gives_ends_the_conversation():
    for odd in (value for value in ODD if value not in ("", "9" * 5000, "\x1b]52;c;YQ==\x07")):
        conversation = Conversation(1, KEY, {"question": "sample"})
        with suppress(ValueError):  # values that no message can hold
            message = Messages(KEY).write({"number": odd}, RECORD_BYTES)
            assert conversation.hear(message) == b""
            assert "the answer isn't from a node of this job" in conversation.answer.trouble
