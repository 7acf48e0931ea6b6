"""Attempts, the budgets that they used up, and the next one, in words."""

from dataclasses import replace
from functools import reduce

import pytest

from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text import attempts, facts
from tests.ui.card.retried import CLUSTER, begun, evicted, job, recoverable

EVICTED = "node 1 (host-11): evicted, as when a host is drained"
AWAY = "RecoverableError: the disk is away"


def test_a_job_without_budgets_says_nothing_of_them():
    state = job(*begun(1, 1000.0), retry_owner="", spec={})

    assert facts.counts(state) == ""
    assert attempts.past(state) == []
    assert attempts.coming(state, 1010.0) == ""


def test_budgets_and_attempts_are_counted():
    first, third = (
        job(*begun(1, 1000.0)),
        job(
            *recoverable(1, 1000.0),
            *evicted(2, 1020.0),
            *begun(3, 1060.0),
            retry=Retry(retries=2),
            max_restarts=3,
        ),
    )

    assert facts.counts(first) == "failures 0/2 · preemptions 0/3"
    assert facts.counts(third) == "attempt 3 · restarts 0/3 · failures 1/2 · preemptions 1/unlimited"


def queued(life, at, end=None, step=None):
    """Return a life of a job's pods in a Kueue queue, which takes them away at ``end``, saved at ``step``."""
    pods = [f"life-{life}-{node}" for node in (0, 1)]
    facts: list[ev.Event] = []
    for node in (0, 1):
        facts.append(ev.NodeStarted(at, node, "host", 9, pods[node]))
        facts.append(ev.WorkersStarted(at, node, 0, life, (node,), 2, pod=pods[node]))
    if step is not None:
        facts.append(ev.RankLeft(end, 0, 0, life, 1, {"step": step}))
    if end is not None:
        facts += [
            ev.Evicted(end, "Preempted", "due to prioritization in the ClusterQueue"),
            ev.Suspended(end, True),
            *(ev.NodeDisrupted(end, node, pods[node], ev.DELETED) for node in (0, 1)),
            *(ev.NodeExited(end, node, 143, 15, pod=pods[node]) for node in (0, 1)),
            *(ev.NodeGone(end + 1, node, pods[node]) for node in (0, 1)),
            ev.Suspended(end + 30, False),
        ]
    return facts


def test_each_time_that_a_queue_takes_the_nodes_away_has_its_own_place_in_the_budget():
    facts = [*queued(0, 1000.0, 1100.0), *queued(1, 1140.0, 1200.0), *queued(2, 1240.0)]
    lines = attempts.past(job(*facts, cluster=CLUSTER, backend="kubernetes", policy=None))

    assert [text.rpartition("; ")[2] for text in lines] == [
        "used preemption 2 of 3",
        "used preemption 1 of 3",
    ]


def test_what_an_attempt_used_is_not_used_again_each_time_that_its_queue_took_its_nodes():
    failed = recoverable(1, 1240.0)
    facts = [*queued(8, 1000.0, 1100.0, step=10), *queued(9, 1140.0, 1200.0, step=20), *failed]
    paid = ev.AttemptPaid(1246.0, 1, "failures", AWAY)
    state = job(*facts, paid, *begun(2, 1260.0), cluster=CLUSTER, backend="kubernetes", policy=None)

    taken = "node 0 (host): preempted by a job of higher priority in its queue"
    assert [text.split(", ", 1)[1].split(": ", 1)[1] for text in attempts.past(state)] == [
        f"rank 0: {AWAY}; used failure 1 of 2",
        f"saved at step 20, and went on from there; {taken}; used preemption 2 of 3",
        f"saved at step 10, and went on from there; {taken}; used preemption 1 of 3",
    ]


def test_what_comes_next_is_told_with_why_and_with_what_it_uses():
    state = job(*evicted(1, 1000.0))

    assert attempts.coming(state, 1008.0) == f"attempt 2 starts in 8.0 s: {EVICTED}; uses preemption 1 of 3"
    assert attempts.coming(state, 1016.0) == f"attempt 2 is about to start: {EVICTED}; uses preemption 1 of 3"


@pytest.mark.parametrize(
    ("step", "told"),
    [(1_234_567, "1,234,567"), (12.5, "12.5"), (10**400, "inf")],
    ids=["many", "part", "all"],
)
def test_the_step_that_ranks_saved_at_is_told_in_full(step, told):
    state = job(*evicted(1, 1000.0), ev.RankLeft(1003.5, 0, 0, 0, 12, {"step": step}))

    assert f"saved at step {told};" in attempts.coming(state, 1008.0)


def test_ranks_that_left_are_told_of_with_the_step_that_they_saved():
    events = [
        ev.NodeLeaves(1003.0, 1, 0, 27.0),
        ev.RankLeft(1003.5, 0, 0, 0, 12, {"step": 1204.0, "loss": 0.5}),
    ]
    state = job(*begun(1, 1000.0), *events)

    assert facts.phase(state) == facts.LEAVING
    assert attempts.pending(state, 1005.0) == ["ranks have 25 s to save: node 1 (host-11) is about to end"]
    assert attempts.pending(state, 1099.0) == ["ranks have 0.0 s to save: node 1 (host-11) is about to end"]

    early = job(*begun(1, 1000.0), ev.NodeLeaves(1003.0, 1, 0, 27.0, "its host has the taint spot"))
    (text,) = attempts.pending(early, 1005.0)
    assert text.endswith(": node 1 (host-11) is about to end: its host has the taint spot")

    state = job(*events, *evicted(1, 1000.0))
    assert facts.phase(state) == facts.RETRYING
    assert attempts.coming(state, 1008.0) == (
        f"attempt 2 starts in 8.0 s: saved at step 1,204; {EVICTED}; uses preemption 1 of 3"
    )

    state = job(*events, *evicted(1, 1000.0), *begun(2, 1020.0))
    assert facts.phase(state) == "RUNNING"
    (past,) = attempts.past(state)
    assert past.endswith(
        f"saved at step 1,204, and attempt 2 went on from there; {EVICTED}; used preemption 1 of 3"
    )


def test_an_unlimited_budget_is_said_to_be():
    state = job(*recoverable(1, 1000.0), *evicted(2, 1020.0), retry=Retry(retries=1))

    assert attempts.coming(state, 1030.0).endswith("; uses preemption 1 of unlimited")


def test_an_attempt_that_must_not_be_preempted_is_said_to_be():
    state = job(*evicted(1, 1000.0), retry=Retry(preemptions=1, on_demand_last=True))

    assert "starts in 8.0 s on a host that isn't preemptible: node 1" in attempts.coming(state, 1008.0)


@pytest.mark.parametrize(("now", "phrase"), [(1025.0, "is about to start"), (1027.0, "waits for someone")])
def test_a_cluster_job_that_nobody_follows_waits_for_somebody(now, phrase):
    state = job(*evicted(1, 1000.0), backend="kubernetes", cluster=CLUSTER)

    assert f"attempt 2 {phrase}" in attempts.coming(state, now)
    assert ("%torchjob attach swift-otter" in attempts.coming(state, now)) == (now > 1026.0)


def test_this_machines_supervisor_needs_nobody():
    assert "attempt 2 is about to start" in attempts.coming(job(*evicted(1, 1000.0)), 2000.0)


def test_a_used_up_budget_is_why_nothing_follows():
    state = job(*recoverable(1, 1000.0), *recoverable(2, 1020.0), retry=Retry(retries=1))
    ended = job(*recoverable(1, 1000.0), *recoverable(2, 1020.0), ev.Closed(1027.0), retry=Retry(retries=1))

    assert attempts.exhausted(state) == ""
    assert attempts.exhausted(ended) == "no retries left (failures 1/1)"
    assert attempts.lines(ended)[-1] == "no retries left (failures 1/1)"


def test_a_cancel_between_two_attempts_changes_nothing_of_the_first():
    waiting = job(*evicted(1, 1000.0))
    cancelled = job(*evicted(1, 1000.0), ev.CancelRequested(1010.0), ev.Closed(1011.0))

    assert cancelled.attempts == waiting.attempts
    assert attempts.use(cancelled.attempts[-1], cancelled) == "preemption 1 of 3"
    assert attempts.exhausted(cancelled) == ""


def test_an_attempt_that_would_start_behind_the_deadline_is_told_of():
    state = job(*evicted(1, 1000.0), ev.Closed(1008.0), policy=RunPolicy(active_deadline_seconds=12))

    assert attempts.exhausted(state) == "attempt 2 would start after the deadline, so it isn't retried"


def test_an_exception_that_nobody_named_is_why_nothing_follows():
    error = Error("KeyError", "'x'", time=1004.0)
    fatal = [fact for fact in recoverable(1, 1000.0) if not isinstance(fact, ev.RankFailed)]
    fatal.append(ev.RankFailed(1004.0, 0, 0, 0, 0, error))
    state = job(*fatal, ev.Closed(1007.0), retry=Retry(retries=2))

    line = "not retried: KeyError isn't a RecoverableError or named by --retry-on"
    assert attempts.exhausted(state) == line


def test_a_failure_that_is_never_tried_again_has_no_budget():
    fatal = [fact for fact in recoverable(1, 1000.0) if not isinstance(fact, ev.RankFailed)]
    exit_ = ev.RankExited(1004.0, 0, 0, 0, 0, code=3)
    ended = job(*fatal, exit_, ev.Closed(1007.0), retry=Retry(retries=2))

    assert attempts.exhausted(ended) == ""


def test_earlier_attempts_are_told_newest_first_with_the_hosts_they_had():
    state = job(*evicted(1, 1000.0), *recoverable(2, 1020.0), *begun(3, 1060.0))

    assert attempts.past(state) == [
        f"attempt 2, 4.0 s: rank 0: {AWAY}; used failure 1 of 2",
        f"attempt 1, 4.0 s: {EVICTED}; used preemption 1 of 3",
    ]


def test_of_many_attempts_the_newest_are_told_and_where_the_rest_is():
    history = [fact for number in range(1, 9) for fact in evicted(number, 1000.0 * number)]
    lines = attempts.past(job(*history, *begun(9, 9000.0), retry=Retry(), policy=None))

    assert [line.partition(",")[0] for line in lines[:-1]] == [f"attempt {n}" for n in (8, 7, 6, 5, 4)]
    assert lines[-1] == "and 3 more: %torchjob describe swift-otter"


def test_a_job_that_starts_again_says_from_where_it_goes_on_until_it_has_caught_up():
    def steps(round_, since, *numbers):
        return [ev.Reported(since + n, 0, round_, n, {"step": s, "steps": 80}) for n, s in enumerate(numbers)]

    again = [*begun(1, 1000.0), *steps(0, 1003.0, 0, *range(1, 48)), *begun(2, 1060.0)]

    assert attempts.setback(job(*again)) == "attempt 2: step 48 was reached before"
    behind = attempts.setback(job(*again, *steps(1, 1064.0, 40, 41)))
    assert behind == "attempt 2: goes on from step 40, of 48 done before"

    every_tenth = [*begun(1, 1000.0), *steps(0, 1003.0, *range(10, 210, 10)), *begun(2, 1060.0)]
    behind = attempts.setback(job(*every_tenth, *steps(1, 1064.0, 110)))
    assert behind == "attempt 2: goes on from step 100, of 200 done before"

    def epochs(round_, since, *numbers):
        return [ev.Reported(since + n, 0, round_, n, {"epoch": e}) for n, e in enumerate(numbers)]

    history = [*begun(1, 1000.0), *epochs(0, 1003.0, *(1 + n // 9 for n in range(900))), *begun(2, 2060.0)]
    behind = attempts.setback(job(*history, *epochs(1, 2064.0, 51)))
    assert behind == "attempt 2: goes on from epoch 50, of 100 done before"
    assert attempts.setback(job(*again, *steps(1, 1064.0, *range(40, 48)))) == ""


def test_only_the_newest_attempts_failures_stand_beside_its_first_one():
    also = ev.RankExited(1024.5, 1, 1, 0, 1, code=3)
    state = job(*recoverable(1, 1000.0), *recoverable(2, 1020.0), also)

    assert facts.beside(state) == ["rank 1: exited with code 3"]


def test_foreign_text_is_cleaned_and_cut():
    state = job(*recoverable(1, 1000.0, "\x1b[31m\u202e" + "x" * 9000), *begun(2, 1020.0))

    (line,) = attempts.past(state)
    assert len(line) <= 300
    assert "\u202e" not in line
    assert "\x1b" not in line


START = [ev.NodeStarted(1.0, 0, "host", 10), ev.WorkersStarted(2.0, 0, 0, 1, (0, 1), 2)]
FIRST = ev.TurnTaken(2.0, 0, 1, 1, "", (0, 1), (0,), "cell", "x = 1", "<1>", (), "ann, a.ipynb")
SECOND = ev.TurnTaken(4.0, 0, 2, 1, "b", (1,), (0,), "cell", "x", "<2>", (), "bob, b.ipynb")
THIRD = ev.TurnTaken(5.0, 0, 3, 1, "c", (0, 1), (0,), "cell", "x", "<3>", (), "ann, a.ipynb")
OVER = ev.TurnEnded(3.0, 0, 1)
ENDED = [ev.LabEnds(200.0, 0, "idle"), ev.NodeExited(201.0, 0, 0), ev.Closed(202.0)]


def lab(*events, **info):
    fields = {"created": 0.5, "nproc_per_node": 2, "lab": 3600.0, **info}
    return reduce(apply, events, JobState(JobInfo("lab", **fields)))


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([], ""),
        ([*START, FIRST], "runs cell 1"),
        ([*START, FIRST, OVER], "idle 3 min"),
        ([*START, FIRST, OVER, SECOND], "runs cell 2"),
        ([*START, FIRST, OVER, SECOND, THIRD], "runs cell 2, 1 more waits"),
        ([*START, FIRST, ev.Suspended(150.0, True)], ""),
        ([*START, FIRST, OVER, ENDED[0]], "ending"),
        ([*START, FIRST, OVER, *ENDED], ""),
    ],
)
def test_what_a_lab_does(events, text):
    assert attempts.doing(lab(*events), 200.0) == text
    assert text in facts.last_line(lab(*events), 200.0)


def test_a_lab_says_whose_cell_runs_what_it_holds_and_when_it_ends(greenwich):
    used = ev.Used(3.0, 0, 1, 0, 2.0, 5 * 10**9, 8 * 10**9, uses=())

    assert attempts.lab_lines(lab(*START, FIRST, OVER, used), 200.0) == [
        "1 cell so far · ends at 01:00:03, in 56 min, unless it is used"
    ]
    assert attempts.lab_lines(lab(*START, FIRST), 200.0) == [
        "cell 1 (ann, a.ipynb) runs · 1 cell so far · ends once it is idle for 1 h 00 min"
    ]
    assert attempts.lab_lines(lab(*START, FIRST, lab=0.0), 200.0) == [
        "cell 1 (ann, a.ipynb) runs · 1 cell so far"
    ]
    assert attempts.lab_lines(lab(*START, FIRST, ev.Suspended(150.0, True)), 200.0) == ["1 cell so far"]
    assert attempts.lab_lines(lab(*START, FIRST, OVER, *ENDED), 300.0) == [
        "1 cell; it ended because it was idle"
    ]
    assert attempts.lab_lines(lab(*START, lab=None), 200.0) == []


def test_who_sends_the_first_cell_after_ranks_began_anew_is_told(greenwich):
    anew = ev.WorkersStarted(100.0, 0, 1, 9, (0, 1, 2), 3)

    assert list(attempts.began_anew(lab(*START, FIRST, OVER))) == []
    (text,) = attempts.began_anew(lab(*START, FIRST, OVER, anew))
    assert text.startswith("the ranks of lab began anew at 00:01:40, 3 ranks: what earlier cells set is gone")

    again = replace(FIRST, round=9, base=9)
    assert list(attempts.began_anew(lab(*START, FIRST, anew, again))) == []
    (text,) = attempts.began_anew(lab(*START, FIRST, OVER, SECOND, anew, again))
    assert text.endswith("and ran its first cell again: what other cells set is gone")
    assert (
        list(
            attempts.began_anew(
                lab(*START, FIRST, OVER, SECOND, anew, again, replace(THIRD, round=10, base=9))
            )
        )
        == []
    )
