"""The handle on a lab: before its next attempt has begun, and with values that its ranks hold."""

import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import accumulate, chain, count, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from nbtorchjob import JobSpec, capture, labs
from nbtorchjob.backends import backend, resending
from nbtorchjob.backends.talk import STARTING
from nbtorchjob.capture.cells.lookup import NOTHING
from nbtorchjob.errors import AskError, SpecError
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
    """A lab that knows a few more facts at each look."""

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


@pytest.mark.parametrize("none", [[], iter(())])
def test_a_cell_on_none_of_the_ranks_is_refused_rather_than_run_on_all(none):
    with pytest.raises(SpecError, match="None means all"):
        Told(FIRST).run_cell("1", rank=none)


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
    questions: list[Mapping[str, Any]] = []

    class Nodes:
        @contextmanager
        def talk(self, name, node, question, timeout):
            for exc in refusals:
                raise exc
            questions.append(question)
            yield SimpleNamespace(hear=lambda seconds: {})

    monkeypatch.setattr(Told, "_nodes", Nodes())
    lab.end()
    assert questions == [{"question": "end"}]


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
    assert messages == ["Waiting for jobs that bench lost: they are sent again first"]


class Kept(Lab):
    """A lab with ranks that keep the values its cells bring and set."""

    _created = count(1.0)  # each lab has a run of its own

    def __init__(self):
        super().__init__(backend("local"), replace(INFO, created=next(self._created)))
        self.notebook: dict[str, Any] = {}
        self.facts = list(FIRST)
        self.there: set[str] = set()
        key = {"key": lambda name: b"key", "snapshot": lambda name: JobState(INFO)}
        stand_ins: Any = (
            SimpleNamespace(**key),
            SimpleNamespace(now=lambda info: None, sent=lambda *a: None),
        )
        self._backend, self._turns = stand_ins
        self._text = ""

    @property
    def state(self):
        return reduce(apply, self.facts, JobState(INFO))

    @property
    def _nodes(self):
        return self

    @contextmanager
    def talk(self, name, node, question, timeout):
        answer: dict[str, Any] = {"base": self.state.round}
        if question["question"] == "names":
            answer["has"] = self.there & {*question["of"]}
        else:
            answer["round"] = 10 + len(self.facts)
            self.took(answer["round"], question["id"], self._text)
        yield SimpleNamespace(send_all=lambda data: None, hear=lambda seconds: answer)

    def took(self, round_, id_, text, **more):
        base = self.state.round
        fact = ev.TurnTaken(6.0, 0, round_, base, id_, (0,), (0,), "cell", text, "c", **more)
        self.facts.append(fact)

    def notes(self, call, answer):
        self.there |= {*call.sets, *(ship.name for ship in call.ships)}
        return super().notes(call, answer)

    def cell(self, text, push=()):
        """Run a cell; return the names for which a note states that the ranks use their own values."""
        self._text = text
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.run_cell(text, self.notebook, push=push)
        notes = [str(item.message).partition("the ranks of bench use their own ")[2] for item in caught]
        return [note.partition(":")[0] for note in notes if note]


@pytest.fixture
def kept():
    return Kept()


def test_a_value_that_the_notebook_has_changed_since_it_came_along_is_noted_once(kept):
    kept.notebook["config"] = {"lr": 0.1}
    assert kept.cell("config") == []
    assert kept.cell("config") == []
    kept.notebook["config"]["lr"] = 0.2
    assert kept.cell("config") == ["config"]
    assert kept.cell("config") == []
    kept.notebook["config"] = {"lr": 0.3}
    assert kept.cell("config") == ["config"]


def test_a_value_that_the_notebook_makes_again_as_it_came_along_is_not_noted(kept):
    exec("def loss(x): return x * 2\nsizes = [1, 2]", kept.notebook)
    assert kept.cell("loss(sizes)") == []
    exec("sizes = [1, 2]", kept.notebook)
    assert kept.cell("loss(sizes)") == []
    exec("def loss(x): return x * 3", kept.notebook)
    assert kept.cell("loss(sizes)") == ["loss"]


@pytest.mark.parametrize("push", [(), ("config",)])
def test_a_value_that_a_cell_has_set_since_it_came_along_is_noted_once(kept, push):
    kept.notebook["config"] = {"lr": 0.1}
    for _ in range(2 if push else 1):
        assert kept.cell("config", push) == []
        assert kept.cell("config = 77") == []
        assert kept.cell("config") == ["config"]
        assert kept.cell("config") == []


@pytest.mark.parametrize(
    "more", [{"text": "config = 77"}, {"text": "1", "pushed": ("config",)}, {"text": "config += 1"}]
)
def test_a_value_that_another_kernel_has_set_is_noted_once(kept, more):
    kept.notebook["config"] = 1
    assert kept.cell("config") == []
    kept.took(100, "c1", **more)
    assert kept.cell("config") == ["config"]
    assert kept.cell("config") == []


def test_a_value_is_noted_once_that_ranks_got_from_elsewhere_as_they_restarted(kept):
    kept.notebook["config"] = 1
    assert kept.cell("config") == []
    kept.facts += [*ENDS, ev.NodeStarted(4.0, 0, "host", 20, pod="q")]
    kept.facts.append(ev.WorkersStarted(5.0, 0, 0, 200, (0,), 1, pod="q"))
    assert kept.cell("config") == ["config"]
    assert kept.cell("config") == []
