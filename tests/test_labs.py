"""The handle on a lab whose node has ended, and whose next attempt hasn't begun."""

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import accumulate, chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from nbtorchjob import JobSpec, capture, labs
from nbtorchjob.backends import backend, resending
from nbtorchjob.backends.talk import STARTING
from nbtorchjob.capture.cells.lookup import NOTHING
from nbtorchjob.errors import AskError
from nbtorchjob.labs import Lab, LabAnswer
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev

INFO = JobInfo("bench", nodes=(1, 1), lab=60.0)
FIRST: list[ev.Event] = [
    ev.NodeStarted(1.0, 0, "host", 10, pod="p"),
    ev.WorkersStarted(2.0, 0, 0, 1, (0,), 1),
]
ENDS: list[ev.Event] = [ev.NodeExited(3.0, 0, 137, pod="p")]
AGAIN: list[ev.Event] = [
    ev.NodeStarted(4.0, 0, "host", 20, pod="q"),
    ev.WorkersStarted(5.0, 0, 0, 2, (0,), 1, pod="q"),
]


class Told(Lab):
    """A lab of which a little more is known at each look."""

    def __init__(self, *facts):
        super().__init__(backend("local"), INFO)
        self._known = chain(accumulate(facts), repeat([event for part in facts for event in part]))

    @property
    def state(self):
        return reduce(apply, next(self._known), JobState(INFO))


def test_a_cell_waits_while_a_lab_restarts_and_says_so(monkeypatch):
    monkeypatch.setattr(labs, "_QUIET_S", 0.0)
    lab = Told(FIRST + ENDS, [], AGAIN)
    messages: list[str] = []

    answer = lab.asked([], {}, say=messages.append)

    assert (answer.seen, messages) == (2, ["Waiting for bench, which is restarting"])


def test_a_cell_waits_for_a_labs_first_ranks_and_says_what_the_lab_does(monkeypatch):
    monkeypatch.setattr(labs, "_QUIET_S", 0.0)
    lab = Told([], [], FIRST)
    messages: list[str] = []

    answer = lab.asked([], {}, say=messages.append)

    assert (answer.seen, messages) == (1, ["Waiting for bench, which is submitted"])


@pytest.mark.parametrize("trouble", [STARTING, "it has ended"])
def test_a_node_whose_place_another_one_takes_is_waited_for(monkeypatch, trouble):
    monkeypatch.setattr(labs, "_GONE_S", 0.0)
    lab = Told(FIRST)
    refusals = repeat(AskError(trouble, absent=True), 2 * labs._TRIES)
    asked: list[Mapping[str, Any]] = []

    class Nodes:
        @contextmanager
        def talk(self, name, node, question, timeout):
            for exc in refusals:
                raise exc
            asked.append(question)
            yield SimpleNamespace(hear=lambda seconds: {})

    monkeypatch.setattr(Told, "_nodes", Nodes())
    lab.end()
    assert asked == [{"question": "end"}]


def test_a_cell_that_was_taken_as_its_sender_was_interrupted_is_cancelled(monkeypatch):
    cancelled: list[str] = []
    events: list[Any] = []

    class Nodes:
        @contextmanager
        def talk(self, name, node, question, timeout):
            events.append(ev.TurnTaken(6.0, 0, 5, 1, question["id"], (0,), (0,), "cell", "1", "c"))
            yield SimpleNamespace(send_all=lambda data: None, hear=lambda seconds: {"round": 5, "base": 1})

    class Heard(Told):
        @property
        def state(self):
            if len(events) == 1:
                events.append(None)
                raise KeyboardInterrupt
            return reduce(apply, FIRST + events[:1] * (len(events) > 1), JobState(INFO))

    lab: Any = Heard()
    monkeypatch.setattr(Heard, "_nodes", Nodes())
    lab._backend = SimpleNamespace(key=lambda name: b"key", snapshot=lambda name: JobState(INFO))
    since = SimpleNamespace(forget=lambda: None)
    lab._turns = SimpleNamespace(now=lambda info: since, cancel=cancelled.append)

    with pytest.raises(KeyboardInterrupt):
        lab.send(capture.from_cell("1", {}), LabAnswer(NOTHING, 1))
    assert cancelled == [f"bench#{events[0].id}"]


def test_a_job_waits_for_those_that_are_sent_again_first_and_says_so(monkeypatch):
    monkeypatch.setattr(labs, "_QUIET_S", 0.0)
    behind = iter([True, True, False])
    monkeypatch.setattr(resending, "is_behind", lambda pool, number, base: next(behind))
    lab: Any = Told(FIRST)
    lab.info = replace(INFO, spec={"fresh": True})
    key = {"key": lambda name: b"key", "number": lambda name, newest: 2}
    lab._backend = SimpleNamespace(**key, snapshot=lambda name: JobState(INFO))
    lab._turns = SimpleNamespace(now=lambda info: SimpleNamespace(forget=lambda: None))
    messages: list[str] = []

    class Sent(Exception):
        pass

    class Nodes:
        def talk(self, name, node, question, timeout):
            raise Sent

    monkeypatch.setattr(Told, "_nodes", Nodes())
    with pytest.raises(Sent):
        lab.send_job(capture.from_cell("1", {}), JobSpec(pool="bench"), NOTHING, say=messages.append)
    assert messages == ["Waiting for jobs that bench lost, which are sent again first"]
