"""A job's facts are written by whatever runs in it: none, however wrong, stops a viewer of the job."""

import json
import math
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.errors import DamagedError
from nbtorchjob.frontends.cli import output
from nbtorchjob.state import OPERATOR, US, JobInfo, JobState, apply, conclusive, fold, turns
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.info import read
from nbtorchjob.state.text import attempts
from nbtorchjob.ui import page
from nbtorchjob.ui.card import describe, render
from nbtorchjob.ui.record import below, detail, jobs_html, jobs_text, record
from tests.forging import NOW, budgets, chunks, corpus, facts, infos, lines, numbers, of_labs, texts, times


def draw(state):
    """Draw a state everywhere a job is drawn; a page takes no value that JSON can't hold."""
    json.dumps(page.description(state, NOW, {}, Path("/state")), allow_nan=False)
    render.html(state, NOW).encode()
    render.text(state, NOW).encode()
    jobs_html([record(state, NOW)]).encode()
    jobs_text([record(state, NOW)]).encode()
    describe.html(state, NOW, {}, Path("/state")).encode()
    describe.text(state, NOW, {}, Path("/state")).encode()
    json.dumps(below(record(state, NOW), ["/"]), allow_nan=False)  # for a page
    json.dumps(output.plain(detail(state, NOW, {})), allow_nan=False)  # for a program
    conclusive(state)


@settings(max_examples=300, deadline=None)
@given(facts, chunks, infos, st.randoms(use_true_random=False))
def test_whatever_facts_say_a_state_can_be_drawn(records, chunks, info, random):
    events = [*factlines.read(lines(records)), *chunks]

    state = reduce(apply, events, JobState(info))

    draw(state)
    random.shuffle(events)
    assert reduce(apply, [*events, *events[:3]], JobState(info)) == state


def draw_lab(records):
    events = [*factlines.read(lines(records))]
    lab = reduce(apply, events, JobState(JobInfo("lab", created=NOW, nodes=(1, 4), lab=60.0)))

    draw(lab)
    attempts.lab_lines(lab, NOW)
    turns.idle_since(lab), turns.ends_at(lab), turns.began_anew(lab)
    for turn in turns.turns(lab)[:3]:
        turns.ahead(lab, turn.fact.round), turns.sent(lab, turn.key)
        view = turns.View(lab, turn.key)
        parts = [*view.begin(), *(part for fact in events for part in view.take(fact)), *view.last]
        draw(reduce(apply, parts, JobState(turns.info(lab.info, turn))))


@settings(max_examples=100, deadline=None)
@given(of_labs)
def test_whatever_facts_say_of_a_lab_it_and_its_turns_can_be_drawn(records):
    draw_lab(records)


def test_honest_histories_with_a_few_forged_fields_can_be_drawn():
    for at, history in enumerate(corpus(100)):
        draw(reduce(apply, factlines.read(lines(history)), JobState(JobInfo("job", created=NOW))))
        if at % 2:
            draw_lab(history)


plain = st.recursive(
    st.none() | st.booleans() | numbers | times | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
WILD = {
    **dict.fromkeys(("name", "backend", "label", "ships", "call", "notebook", "cell"), texts),
    **dict.fromkeys(("nproc_per_node", "max_restarts", "ttl_s", "deadline_s"), numbers),
    "created": times,
    "nodes": st.lists(numbers, min_size=2, max_size=2),
    "retry_owner": st.sampled_from(["", US, OPERATOR, "x"]),
    "sources": st.dictionaries(texts, st.lists(texts, min_size=2, max_size=2), max_size=2),
    "cluster": st.dictionaries(st.sampled_from(["context", "namespace", "kind"]), texts, max_size=3),
}
SPEC = {
    **dict.fromkeys(("launch", "retry", "env", "name", "backend"), plain),
    "cluster": plain | st.fixed_dictionaries({"storage": plain}),
}


def some(fields):
    """Return a strategy for one or two of the fields: a record that is wrong throughout tests nothing."""
    names = st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=2)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


records = st.builds(
    lambda wild, spec: (
        {"name": "job", "nodes": [1, 2], "created": NOW, "cluster": {"kind": "a"}}
        | {"retry_owner": US, "spec": {**budgets, **spec}}
        | wild
    ),
    some(WILD) | st.just({}),
    some(SPEC) | st.just({}),
)


@settings(max_examples=200, deadline=None)
@given(records, facts)
def test_whatever_a_record_says_its_job_can_be_drawn_or_is_refused(entry, history):
    try:
        info = read(json.dumps(entry), "local", "job")
    except DamagedError:
        return
    draw(reduce(apply, factlines.read(lines(history)), JobState(info)))


BIG = {"filename": "a", "lineno": 1, "name": "f", "variables": [["x", "x" * 9_000]]}
TURN = {"round": 2, "base": 1, "id": "a", "label": "cell", "text": "1", "filename": "<cell>"}
FORGED = {
    "a run": ("NodeStarted", {"host": "h", "run": 2_000_000_000}),
    "an attempt": ("NodeStarted", {"host": "h", "attempt": 2_000_000_000}),
    "an attempt that began": ("AttemptBegan", {"attempt": 2_000_000_000}),
    "a round": ("WorkersStarted", {"restart": 0, "round": 10**300, "ranks": [0], "world_size": 1}),
    "a world": ("WorkersStarted", {"restart": 0, "round": 0, "ranks": [0], "world_size": 2_000_000_000}),
    "no ranks": ("WorkersStarted", {"restart": 0, "round": 0, "ranks": [], "world_size": 1}),
    "an empty world": ("WorkersStarted", {"restart": 0, "round": 0, "ranks": [0], "world_size": 0}),
    "a turn on no node": ("TurnTaken", {**TURN, "ranks": [0], "nodes": []}),
    "a turn on no rank": ("TurnTaken", {**TURN, "ranks": [], "nodes": [0]}),
    "nothing displayed": ("Displayed", {"rank": 0, "round": 0, "seq": 0, "data": {}}),
    "a value nowhere": ("ValueReady", {"rank": 0, "round": 0, "ref": "", "size": 0}),
    "ranks": ("WorkersStarted", {"restart": 0, "round": 0, "ranks": [*range(5000)], "world_size": 2}),
    "no time": ("Closed", {"time": math.nan}),
    "the end of time": ("Closed", {"time": 1e308}),
    "metrics": ("Reported", {"rank": 0, "round": 0, "seq": 0, "metrics": {str(n): n for n in range(2000)}}),
    "variables": (
        "RankFailed",
        {"rank": 0, "restart": 0, "round": 0} | {"error": {"type": "E", "message": "", "frames": [BIG] * 9}},
    ),
    "an error": ("RankFailed", {"rank": 0, "restart": 0, "round": 0, "error": {"type": 5, "message": ""}}),
}


@pytest.mark.parametrize(("event", "fields"), FORGED.values(), ids=FORGED)
def test_a_fact_that_cannot_be_is_counted_and_told(event, fields):
    record = {"event": event, "time": NOW, "node": 0, **fields}
    fact = ev.Notice(NOW, "known")

    state = reduce(
        apply, factlines.read(lines([record, record, factlines.to_json(fact)])), JobState(JobInfo("job"))
    )

    assert [notice.text for notice in state.notices] == ["known"]
    assert len(state.refused) == 1
    text = render.text(state, NOW).replace("it has", "its")
    assert f"Ignored 1 invalid fact from this job ({event}: its " in text


def test_a_line_without_an_end_is_refused():
    [refused] = factlines.read([b'{"event": "Notice", "time": 1.0, "text": "' + b"x" * (1 << 20) + b'"}'])

    assert isinstance(refused, ev.Refused)


def test_numbers_that_occur_are_all_there_is_of_runs_and_attempts():
    events: list[ev.Event] = [ev.NodeStarted(NOW, 0, "h", run=10**9), ev.NodeExited(NOW, 0, 1, run=10**9)]
    state = reduce(
        apply, [*events, ev.AttemptBegan(NOW, 10**9)], JobState(JobInfo("job", retry_owner=US, spec=budgets))
    )

    assert [attempt.number for attempt in state.attempts] == [1, 10**9]
    draw(state)


AGAIN = {
    "lives": lambda n: ev.NodeExited(NOW + n, 0, 1, pod=str(n)),
    "runs": lambda n: ev.NodeExited(NOW + n, 0, 1, run=n),
    "rounds": lambda n: ev.WorkersStarted(NOW + n, n % 2, 0, n, (n,), 8),
    "notices": lambda n: ev.Notice(NOW, str(n)),
    "waits": lambda n: ev.Waiting(NOW, "", None, "", str(n)),
    "verdicts": lambda n: ev.Verdict(NOW, False, attempt=n),
    "attempts": lambda n: ev.AttemptBegan(NOW, n),
    "pauses": lambda n: ev.Suspended(NOW + n, bool(n % 2)),
    "pieces of a log": lambda n: ev.LogChunk(0, 0, 2 * n, b"x"),
    "refused": lambda n: ev.Refused(str(n), "why"),
    "uses": lambda n: ev.Used(NOW + n, 0, n, n, 1.0, n, 2 * n),
}


@pytest.mark.parametrize("fact", AGAIN.values(), ids=AGAIN)
def test_what_comes_again_and_again_is_kept_to_a_bound(fact):
    def kept(n):
        state = reduce(apply, map(fact, range(1000, 1000 + n)), JobState(JobInfo("job")))
        draw(state)
        return repr(state).count("=")

    # Two nodes alternate.
    assert kept(2050) == kept(2150)


def test_of_more_than_anybody_needs_the_same_are_kept_in_any_order():
    @given(st.permutations(range(6)))
    def check(order):
        numbers: tuple[int, ...] = ()
        mapped: Mapping[int, str] = {}
        for number in order:
            numbers = fold.merged(numbers, number, int, int, 3)
            mapped = fold.bounded(mapped, number, "", 3)
        assert (numbers, dict(mapped)) == ((3, 4, 5), {0: "", 1: "", 2: ""})

    check()
