"""All processes of a rank number their reports in one sequence."""

import json
import multiprocessing
from fractions import Fraction

import numpy
import pytest
import torch

from nbtorchjob.runtime.api import displays
from nbtorchjob.runtime.api.report import MOST, report
from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.state.facts import events, factlines


@pytest.fixture
def facts(folder, monkeypatch):
    """Make this process rank 1 of round 5; return a function that reads its facts."""
    path = folder / "events.jsonl"
    (folder / "round-5").mkdir()
    place = {"EVENTS": str(path), "FOLDER": str(folder), "ROUND": "5"}
    for name, value in {"RANK": "1", **{f"NBTORCHJOB_{name}": of for name, of in place.items()}}.items():
        monkeypatch.setenv(name, value)
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


def worker(many):
    for n in range(many):
        report(decoded=n)


# As text: a spawned process can import these tests only if the checkout is on its path.
TWICE = "from nbtorchjob.runtime.api.report import report; report(decoded=0); report(decoded=1)"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reports_of_processes_that_a_rank_starts_are_numbered_among_its_own(method, facts):
    context = multiprocessing.get_context(method)
    report(step=0)
    for _ in range(2):
        child = context.Process(target=exec, args=(TWICE, {}))
        child.start()
        child.join()
        report(step=1)

    assert [fact["seq"] for fact in facts()] == list(range(7))
    assert {(fact["rank"], fact["round"]) for fact in facts()} == {(1, 5)}


def test_processes_that_report_at_once_take_each_number_once(facts):
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=worker, args=(200,)) for _ in range(4)]
    for child in children:
        child.start()
    worker(200)
    for child in children:
        child.join()

    assert sorted(fact["seq"] for fact in facts()) == list(range(1000))


def test_another_round_counts_anew(facts, folder, monkeypatch):
    worker(2)
    (folder / "round-6").mkdir()
    monkeypatch.setenv("NBTORCHJOB_ROUND", "6")
    worker(2)

    assert [(fact["round"], fact["seq"]) for fact in facts()] == [(5, 0), (5, 1), (6, 0), (6, 1)]


def test_a_report_has_as_many_metrics_as_the_host_believes(facts):
    report(**{f"m{number}": number for number in range(MOST)})

    assert isinstance(factlines.believed(facts()[-1]), events.Reported)
    with pytest.raises(ValueError, match="1025 metrics, but takes at most 1024"):
        report(**{f"m{number}": number for number in range(MOST + 1)})


def test_any_real_number_is_a_metric(facts):
    report(a=1, b=numpy.longdouble(1.5), c=torch.ones(1, 1), d=Fraction(1, 4), e=numpy.float16(2))

    assert facts()[-1]["metrics"] == {"a": 1, "b": 1.5, "c": 1.0, "d": 0.25, "e": 2.0}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (torch.ones(2), r"a Tensor of shape \(2,\)"),
        (numpy.ones((0, 3)), r"a ndarray of shape \(0, 3\)"),
        (1j, "1j"),
        (None, "None"),
    ],
    ids=["a tensor", "an array", "complex", "nothing"],
)
def test_what_is_no_number_is_refused_by_its_name(value, kind):
    with pytest.raises(TypeError, match=rf"report\(loss=…\): got {kind}, but a metric is a number"):
        report(loss=value)


def test_a_display_that_is_shown_is_one_that_the_host_believes(facts, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    displays.begin(0)

    assert not displays.show({"text/html": "\u6587" * 200_000, "text/plain": "a table"})
    assert displays.show({"text/html": "\u6587" * 80_000, "text/plain": "a table"})
    (fact,) = facts()
    assert isinstance(factlines.believed(fact), events.Displayed)
    assert len(json.dumps(fact)) < LONGEST_FACT
