"""A lab's turns, and one of them as a job of its own."""

import json
import sys
from dataclasses import replace
from functools import reduce

import pytest

from nbtorchjob.backends import downloads
from nbtorchjob.runtime.api.artifacts import of_round
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobInfo, JobState, Phase, apply, turns
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause
from nbtorchjob.state.text import facts, lifetime
from nbtorchjob.state.turns import Stage, View
from nbtorchjob.ui.card import ranks
from nbtorchjob.ui.record import record

LAB = JobInfo("lab", created=0.5, nodes=(2, 2), lab=60.0)


def base(round_, at, node=None):
    """Return the facts of ranks that begin on both nodes, or on one."""
    nodes = (0, 1) if node is None else (node,)
    return [ev.WorkersStarted(at, node, 0, round_, (node,), 2) for node in nodes]


def taken(round_, at, known_as="", base_=1, ranks=(0, 1), text="x = 1", by=""):
    return ev.TurnTaken(
        at, 0, round_, base_, known_as, ranks, ranks, "cell", text, f"<cell {round_}>", (), by
    )


def ran(round_, at, ranks=(0, 1), failed=()):
    """Return the facts of a turn, from its begin to its end on all its nodes."""
    events: list[ev.Event] = []
    for rank in ranks:
        events.append(ev.WorkersStarted(at, rank, 0, round_, (rank,), 2))
        events.append(ev.RankBegan(at, rank, round_))
        events.append(ev.LogChunk(rank, round_, 0, b"said\n"))
        if rank in failed:
            error = Error("ValueError", "boom", time=at + 0.1)
            events.append(ev.RankFailed(at + 0.1, rank, rank, 0, round_, error, stays=True))
    if not failed:
        events.append(ev.ValueReady(at + 0.2, ranks[0], round_, f"value of {round_}", 8))
    events += [
        ev.TurnEnded(at + 0.3 + rank / 10, rank, round_, (rank,) if rank in failed else ()) for rank in ranks
    ]
    return events


STARTED = [ev.NodeStarted(1.0, node, f"host{node}", 10 + node, pod=f"p{node}") for node in (0, 1)]
FIRST = [*STARTED, *base(1, 2.0), taken(1, 2.0), *ran(1, 2.1)[2:]]


def known(*events, info=LAB):
    return reduce(apply, events, JobState(info))


def seen(events, key, info=LAB, **options):
    """Return a turn's state, folded from the facts that its view makes of the lab's."""
    view = View(JobState(info), key, **options)
    facts = [*view.begin()]
    for event in events:
        facts += view.take(event)
    return reduce(apply, [*facts, *view.last], JobState(turns.of(info, key=key)))


def stages(state):
    return [(turn.number, turn.stage) for turn in turns.turns(state)]


def test_turns_are_counted_in_their_order_and_one_runs_at_a_time():
    ahead = [taken(6, 4.0, "b"), taken(7, 4.0, "c")]
    state = known(*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1, failed=(1,)), *ahead)

    assert stages(state) == [(1, Stage.DONE), (2, Stage.FAILED), (3, Stage.RUNS), (4, Stage.WAITS)]
    assert [turn.fact.id for turn in turns.ahead(state, 7)] == ["b"]
    assert turns.find(state, "2") == turns.find(state, "a")
    assert turns.idle_since(state) is None


def test_a_turn_is_over_once_one_behind_it_has_ended_on_a_node():
    # Of thousands of turns on many nodes only the newest ends are kept.
    state = known(*FIRST, taken(5, 3.0, "a"), taken(6, 4.0, "b"), *ran(6, 4.1)[:-1])

    assert stages(state) == [(1, Stage.DONE), (2, Stage.DONE), (3, Stage.RUNS)]


def test_a_lab_is_idle_from_its_last_turns_end_and_ends_after_that():
    state = known(*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1))

    assert turns.idle_since(state) == pytest.approx(3.5)
    assert turns.ends_at(state) == pytest.approx(63.5)
    assert turns.ends_at(known(*FIRST, info=JobInfo("lab", lab=0))) is None


def test_what_was_taken_for_ranks_that_are_gone_is_lost():
    state = known(*FIRST, taken(5, 3.0, "a"), *base(9, 4.0))

    assert stages(state)[-1] == (2, Stage.LOST)
    assert turns.idle_since(state) == 4.0
    assert turns.began_anew(state) == 4.0


def test_the_first_turn_that_is_run_again_is_still_the_first():
    state = known(*STARTED, *base(1, 2.0), taken(1, 2.0), *base(3, 3.0), taken(3, 3.0, base_=3))

    assert stages(state) == [(1, Stage.RUNS)]

    late = known(*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1), *base(9, 4.0), taken(9, 4.0, base_=9))
    assert stages(late) == [(2, Stage.DONE), (1, Stage.RUNS)]
    assert turns.find(late, "2") == turns.find(late, "a")


def test_a_turn_is_a_job_that_ends_with_its_own_value_and_logs():
    state = seen([*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1), taken(6, 4.0, "b"), *ran(6, 4.1)], "a")

    assert (state.phase, state.ended) == (Phase.SUCCEEDED, pytest.approx(3.5))
    assert state.values[0].ref == "value of 5"
    assert [piece.round for piece in state.logs[0].pieces] == [5]


def test_a_rank_that_stops_in_the_debugger_is_the_turns_and_the_labs_until_it_goes_on():
    stop = ev.RankStops(3.4, 1, 1, 5, 2, "<module>", "<cell 5>", ev.BREAKPOINT)
    begun = [*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], stop]
    through = ev.TurnEnded(3.6, 1, 5)

    assert [event.rank for event in known(*begun).stopped] == [1]
    assert [event.rank for event in seen(begun, "a").stopped] == [1]
    named = replace(stop, filename="<torchjob cell 12>")
    assert facts.stop_of(named, known(*begun), 4.4).startswith(
        "rank 1 stops at Cell In[12], line 2, for 1.0 s"
    )
    for end in (ev.RankGoesOn(3.5, 1, 1, 5, ""), through):
        assert known(*begun, end).stopped == ()
    assert seen([*begun, ev.RankGoesOn(3.5, 1, 1, 5, "")], "a").stopped == ()


def test_a_turn_that_failed_shows_its_first_failing_rank():
    state = seen([*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1, failed=(1,))], "2")

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert (state.failure.rank, state.failure.error and state.failure.error.message) == (1, "boom")


def test_a_turn_on_some_ranks_is_over_when_these_are():
    state = seen([*FIRST, taken(5, 3.0, "a", ranks=(1,)), *ran(5, 3.1, ranks=(1,))], "a")

    assert state.phase is Phase.SUCCEEDED
    assert [node.index for node in state.members] == [1]


def test_a_turn_that_waits_says_behind_which_and_whose():
    ahead = taken(5, 3.0, "a", by="ann, a.ipynb")
    waits = [*FIRST, ahead, taken(6, 3.1, "b")]

    assert [wait.text for wait in seen(waits, "b").waiting] == ["waits behind cell 2 (ann, a.ipynb)"]
    assert seen(waits, "b").phase is Phase.PENDING
    assert seen([*waits, *ran(5, 3.2), *ran(6, 4.0)[:1]], "b").phase is Phase.RUNNING


def test_the_first_turn_shows_how_its_lab_starts():
    pending = [ev.Waiting(1.0, "no host has enough cpu free", 0, "p0", "Unschedulable", ev.Stage.PLACING)]

    assert [wait.text for wait in seen(pending, "1").waiting] == ["no host has enough cpu free"]
    assert seen([*pending, *FIRST], "1").phase is Phase.SUCCEEDED
    assert seen([*FIRST[:-2]], "1").phase is Phase.RUNNING


def test_a_rank_that_dies_in_a_turn_fails_it_and_what_it_held_is_said_to_be_gone():
    died = ev.RankExited(3.3, 1, 1, 0, 5, signal=9)
    state = seen([*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1)[:2], died, *base(9, 4.0)], "a")

    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert state.failure.rank == 1
    assert [notice.text for notice in state.notices] == [turns.GONE]


def test_between_two_attempts_no_node_takes_turns_until_the_next_one_has_ranks():
    state = known(*FIRST)
    assert turns.lead(state) == 0
    died = [ev.NodeExited(3.0, node, 137, pod=f"p{node}") for node in (0, 1)]
    between = known(*FIRST, *died)
    assert (between.phase.terminal, turns.lead(between)) == (False, None)
    again = [ev.NodeStarted(5.0, node, f"host{node}", 20 + node, pod=f"q{node}") for node in (0, 1)]
    ranks = [ev.WorkersStarted(6.0, node, 0, 9, (node,), 2, pod=f"q{node}") for node in (0, 1)]
    assert turns.lead(known(*FIRST, *died, *again, *ranks)) == 0


def test_a_turn_that_was_over_knows_nothing_of_what_came_later():
    later = [ev.CancelRequested(9.0), ev.NodeExited(9.5, 0, 202, pod="p0"), ev.Closed(10.0)]

    assert seen([*FIRST, *later], "1").phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("end", "phase"),
    [
        ([ev.CancelRequested(4.0), ev.Closed(5.0)], Phase.CANCELLED),
        ([ev.Closed(5.0)], Phase.FAILED),
        ([ev.Lost(5.0, "the job was deleted")], Phase.FAILED),
    ],
)
def test_a_turn_ends_with_its_lab(end, phase):
    assert seen([*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1)[:2], *end], "a").phase is phase


def test_of_what_is_known_already_nothing_need_be_told_again():
    before, turn = known(*FIRST), [taken(5, 3.0, "a"), *ran(5, 3.1)]
    view = View(before, "a", 5)
    news = [fact for event in turn for fact in view.take(event)]
    state = reduce(apply, [*view.begin(), *news, *view.last], JobState(turns.of(LAB, key="a")))

    assert state.phase is Phase.SUCCEEDED
    assert {node.host for node in state.members} == {"host0", "host1"}


@pytest.mark.parametrize("turn", [{"key": "a", "round": 5}, {"key": turns.FIRST}])
@pytest.mark.parametrize("first", [0, 1])
def test_the_order_of_nodes_that_are_heard_one_by_one_changes_no_turn(first, turn):
    """On a cluster each pod's log arrives separately: one node's may be read whole before the other's."""
    events = [*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1)]

    def order(event):
        return getattr(event, "node", getattr(event, "rank", 0)) != first

    state = seen(sorted(events, key=order), **turn)

    assert state.phase is Phase.SUCCEEDED
    assert sorted(state.logs) == [0, 1]


def test_what_a_node_wrote_is_what_its_ranks_wrote_in_each_turn():
    state = known(*FIRST, taken(5, 3.0, "a", ranks=(1,)), taken(6, 3.0, "b"))

    assert downloads.written_on(state, 1) == {(1, 1), (1, 5), (1, 6)}


def test_what_a_turn_takes_doesnt_grow_with_those_before_it():
    def calls(before):
        rounds = range(5, 5 + before)
        lab = known(*FIRST, *(e for r in rounds for e in (taken(r, 3.0 + r, f"c{r}"), *ran(r, 3.1 + r))))
        last = 5 + before
        view, count = View(lab, "z", last), 0

        def called(frame, event, arg):
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            view.begin()
            for event in (taken(last, 3.0 + last, "z"), *ran(last, 3.1 + last)):
                view.take(event)
        finally:
            sys.setprofile(None)
        assert view.over
        return count

    assert calls(1000) < 2 * calls(10)


POOL = replace(LAB, name="pool", spec={"fresh": True})
BEGUN = [*STARTED, *base(1, 2.0)]


def test_the_first_job_of_a_pool_is_number_one_and_before_it_the_pool_is_idle():
    assert turns.idle_since(known(*BEGUN, info=POOL)) == 2.0
    state = known(*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1), info=POOL)

    assert [(turn.name, turn.stage) for turn in turns.turns(state)] == [("job 1", Stage.DONE)]
    for key in ("1", "a"):
        job = seen([*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)], key, info=POOL)
        assert (job.phase, job.info.in_pool) == (Phase.SUCCEEDED, True)


def test_a_job_that_is_sent_again_keeps_its_number():
    second, again = taken(6, 3.1, "b"), taken(10, 6.1, turns.again("a", 2), base_=9)
    state = known(*BEGUN, taken(5, 3.0, "a"), second, *base(9, 6.0), again, info=POOL)

    assert [(turn.number, turn.key, turn.stage) for turn in turns.turns(state)] == [
        (2, "b", Stage.LOST),
        (1, "a", Stage.RUNS),
    ]
    assert turns.sent(state, "b") == (2, second)
    assert turns.find(state, "1") == turns.find(state, "a")


def test_a_job_has_the_number_that_its_sender_gave_it_whatever_is_known_of_others():
    second, unnumbered = replace(taken(6, 4.0, "b"), number=9), taken(7, 5.0, "c")
    events = [replace(taken(5, 3.0, "a"), number=7), *ran(5, 3.1), second, unnumbered]
    state = known(*BEGUN, *events, info=POOL)

    assert [(turn.number, turn.key) for turn in turns.turns(state)] == [(7, "a"), (9, "b"), (10, "c")]
    assert (turns.sent(state, "b"), turns.sent(state, "c")) == ((9, second), (10, unnumbered))
    assert (turns.find(state, "1"), turns.find(state, "9")) == (None, turns.find(state, "b"))


def test_a_job_that_is_sent_again_waits_in_front_of_those_that_were_sent_later():
    ids, rounds = {1: "a", 2: turns.again("b", 2), 3: "c"}, {1: 10, 3: 11, 2: 12}
    again = [replace(taken(r, 6.0 + r / 100, ids[n], base_=9), number=n) for n, r in rounds.items()]
    events = [*BEGUN, replace(taken(5, 3.0, "b"), number=2), *base(9, 6.0), *again]
    state = known(*events, info=POOL)

    in_line = [(1, Stage.RUNS), (2, Stage.WAITS), (3, Stage.WAITS)]
    assert stages(state) == in_line
    assert [[turn.number for turn in turns.ahead(state, round_)] for round_ in (10, 12, 11)] == [
        [],
        [1],
        [1, 2],
    ]
    texts = [seen(events, str(n), info=POOL, round=rounds[n]).waits[-1].text for n in (2, 3)]
    assert texts == ["waits behind job 1", "waits behind job 1, job 2"]

    # The last job hadn't begun either, as the one in front of it had come by then.
    job = seen([*events, *ran(10, 6.3), *base(20, 9.0)], "c", info=POOL)
    assert job.verdict.text == turns.POOL_GONE_BEFORE


def test_a_rank_of_a_pools_job_that_ends_is_the_jobs_failure_alone():
    exited = ev.RankExited(3.2, 1, 1, 0, 5, signal=9, stays=True)
    events = [*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], exited]
    events += [ev.TurnEnded(3.4, node, 5, (node,) * node) for node in (0, 1)]

    assert known(*events, info=POOL).failure is None
    failure = seen(events, "a", info=POOL).failure
    assert (failure.rank, failure.reason.line) == (1, "killed by SIGKILL")


def test_whose_job_fails_in_a_pool_is_told_what_would_try_it_again():
    error = Error("RecoverableError", "soon", time=3.2, recoverable=True)
    failed = ev.RankFailed(3.2, 0, 0, 0, 5, error, stays=True)
    ends = [ev.TurnEnded(3.4, node, 5, (node,)) for node in (0, 1)]
    job = seen([*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], failed, *ends], "a", info=POOL)

    assert "--retries N" in facts.cause(job.failure, job)


def test_a_pools_job_whose_end_was_asked_for_is_cancelled():
    ends = [ev.TurnEnded(3.4, 1, 5, (1,)), ev.TurnEnded(3.5, 0, 5, (0,), cancelled=True)]
    job = seen([*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], *ends], "a", info=POOL)

    assert (job.phase, job.failure.reason.line) == (Phase.CANCELLED, "was cancelled")


def test_a_pools_job_that_took_too_long_has_exceeded_its_deadline():
    ends = [ev.TurnEnded(3.4, 1, 5, (1,)), ev.TurnEnded(3.5, 0, 5, (0,), deadline=60)]
    job = seen([*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], *ends], "a", info=POOL)

    assert (job.phase, job.deadline) == (Phase.FAILED, ev.DeadlineExceeded(3.5, 60))


@pytest.mark.parametrize(("begun", "text"), [(6, turns.POOL_GONE), (0, turns.POOL_GONE_BEFORE)])
def test_a_pools_job_that_lost_its_node_says_whether_it_had_begun(begun, text):
    lost = [ev.NodeExited(4.0, 1, 137, pod="p1"), *base(9, 6.0)]
    before = [taken(4, 3.0, "b"), *ran(4, 3.0)[:-1]]  # one node hasn't reported its end
    job = seen([*BEGUN, *before, taken(5, 3.0, "a"), *ran(5, 3.1)[:begun], *lost], "a", info=POOL)

    assert job.phase is Phase.FAILED
    assert [notice.text for notice in job.notices] == [text]
    alone = seen([*BEGUN, taken(5, 3.0, "a"), *lost], "a", info=POOL)
    assert [notice.text for notice in alone.notices] == [turns.POOL_GONE]  # it may have begun


def test_how_a_pools_job_lost_its_node_is_told_also_to_who_looks_later():
    lost = [ev.NodeExited(4.0, 1, 201, pod="p1"), ev.NodeStarted(5.0, 1, "host1", 12, pod="p2")]
    history = [*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], *lost, *base(9, 6.0)]
    pods = {1: ("p0", "p1"), 5: ("p0", "p1"), 9: ("p0", "p2")}
    events = [
        replace(event, pod=pods[event.round][event.node]) if isinstance(event, ev.WorkersStarted) else event
        for event in history
    ]
    live, later = seen(events, "a", info=POOL), View(known(*events, info=POOL), "a")
    facts = [*later.begin(), *(fact for event in events for fact in later.take(event)), *later.last]
    state = reduce(apply, facts, JobState(POOL))

    assert (state.failure, state.attempts) == (live.failure, live.attempts)
    assert state.failure is not None
    assert state.failure.reason.cause is Cause.INFRA


def test_a_job_may_have_begun_where_the_one_before_it_was_lost_with_earlier_ranks():
    lost = [
        ev.NodeExited(4.0, 1, 137, pod="p1"),
        ev.NodeStarted(5.0, 1, "host1", 12, pod="p2"),
        *base(9, 6.0),
    ]
    before = [*BEGUN, taken(4, 3.0, "b"), *ran(4, 3.1)[:6], *lost]
    events = [*before, taken(10, 10.0, "a", base_=9), ev.NodeExited(14.0, 1, 137, pod="p2"), *base(20, 16.0)]
    job = seen(events, "a", info=POOL)

    assert [notice.text for notice in job.notices] == [turns.POOL_GONE]


ALL = (0, 1)


def accepted(round_, at, known_as, many, by=""):
    """Return the fact that a pool accepts a job, which may run on ``many`` of its two nodes."""
    return replace(taken(round_, at, known_as, ranks=ALL[:many], by=by), nodes=ALL)


def placed(round_, at, *nodes):
    return ev.TurnPlaced(at, 0, round_, nodes)


def alone(round_, at, node, failed=()):
    """Return the facts of a job that runs on this node alone."""
    events = [
        replace(event, node=node) if hasattr(event, "node") else event for event in ran(round_, at, (0,))
    ]
    return [replace(event, failed=failed) if isinstance(event, ev.TurnEnded) else event for event in events]


SIDE_BY_SIDE = [
    *BEGUN,
    *(accepted(5, 3.0, "a", 1, "Ann"), placed(5, 3.1, 0), *alone(5, 3.2, 0)[:2]),
    *(accepted(6, 3.3, "b", 1), placed(6, 3.4, 1), *alone(6, 3.5, 1)[:2]),
    *(accepted(7, 3.6, "c", 2), accepted(8, 3.7, "d", 1)),
]


def test_a_job_that_is_sent_again_waits_behind_those_that_have_begun():
    begun = [replace(accepted(5, 3.0, "b", 2), number=2), placed(5, 3.1, 0, 1), *ran(5, 3.2)[:4]]
    events = [*BEGUN, *begun, replace(accepted(6, 4.0, turns.again("a", 2), 2), number=1)]
    state = known(*events, info=POOL)

    assert stages(state) == [(2, Stage.RUNS), (1, Stage.WAITS)]
    assert [turn.number for turn in turns.ahead(state, 6)] == [2]
    assert seen(events, "1", info=POOL, round=6).waits[-1].text == "waits behind job 2"
    job = seen([*events, *base(20, 9.0)], "a", info=POOL)
    assert job.verdict.text == turns.POOL_GONE_BEFORE


def test_jobs_that_fit_run_side_by_side_and_the_others_wait_in_their_order():
    state = known(*SIDE_BY_SIDE, info=POOL)
    assert [turn.stage for turn in turns.turns(state)] == [Stage.RUNS, Stage.RUNS, Stage.WAITS, Stage.WAITS]
    assert [turn.number for turn in turns.running(state)] == [1, 2]

    first, second, third = (seen(SIDE_BY_SIDE, key, info=POOL) for key in ("a", "b", "c"))
    assert ([*first.nodes], [*second.nodes], second.nodes[1].ranks) == ([0], [1], (0,))
    assert third.phase is Phase.PENDING
    assert (
        third.waits[-1].text == "waits behind job 1 (Ann) on node 0, job 2 on node 1; it needs 2 of 2 nodes"
    )


@pytest.mark.parametrize("late", [False, True])
def test_a_job_is_over_once_the_nodes_that_it_has_are(late):
    ends = alone(6, 3.5, 1)[2:]
    events = [*SIDE_BY_SIDE, *ends]
    if late:  # another node's facts arrive before the lead's
        events.remove(placed(6, 3.4, 1))
        events.append(placed(6, 3.4, 1))
    first, second = (seen(events, key, info=POOL) for key in ("a", "b"))

    assert (first.phase, second.phase) == (Phase.RUNNING, Phase.SUCCEEDED)
    assert second.ended == ends[-1].time
    assert [turn.over for turn in turns.turns(known(*events, info=POOL))] == [False, True, False, False]


def test_of_jobs_that_a_pool_lost_those_had_not_begun_for_which_there_was_no_room():
    lost = [*SIDE_BY_SIDE, *base(9, 5.0)]
    texts = [seen(lost, key, info=POOL).verdict.text for key in "abcd"]
    assert texts == [turns.POOL_GONE, turns.POOL_GONE, turns.POOL_GONE_BEFORE, turns.POOL_GONE_BEFORE]

    back = [*SIDE_BY_SIDE, *alone(5, 4.0, 0)[2:], *alone(6, 4.0, 1)[2:], placed(7, 4.5), *base(9, 5.0)]
    assert seen(back, "c", info=POOL).verdict.text == turns.POOL_GONE_BEFORE

    def unseen(events):
        view = View(known(*SIDE_BY_SIDE, info=POOL), "c", 7, unseen=True)
        return [*view.begin()], [fact for event in events for fact in view.take(event)], view.last

    assert turns.POOL_GONE in str(unseen(base(9, 5.0)))  # it may have begun while nobody watched
    assert turns.POOL_GONE_BEFORE in str(unseen([placed(7, 4.5), *base(9, 5.0)]))

    unheard = [event for event in lost if event != placed(6, 3.4, 1) and getattr(event, "round", 0) != 6]
    room = [*unheard[:-2], accepted(6, 3.3, "b", 1), *unheard[-2:]]
    assert seen(room, "b", info=POOL).verdict.text == turns.POOL_GONE  # it may have begun beside job 1


def run_of(accepted, number, at_once):
    """Return the fact of an accepted job as that of a run of a sweep."""
    sweep = {"group": "lr-1", "number": number, "given": {"lr": number}, "at_once": at_once, "early": {}}
    return replace(accepted, sweep=json.dumps(sweep))


@pytest.mark.parametrize("at_once", [None, 1])
def test_runs_that_their_sweep_holds_back_wait_and_so_do_jobs_behind_them(at_once):
    begun = [run_of(accepted(5, 3.0, "a", 1), 1, at_once), placed(5, 3.1, 0), *alone(5, 3.2, 0)[:2]]
    second_run = run_of(accepted(6, 3.3, "b", 1), 2, at_once)
    wide = [replace(event, nodes=(0, 1, 2)) for event in (*begun[:1], second_run, accepted(7, 3.4, "c", 1))]
    events = [*BEGUN, wide[0], *begun[1:], *wide[1:]]
    info = replace(POOL, nodes=(3, 3))

    stage = Stage.RUNS if at_once is None else Stage.WAITS
    assert [turn.stage for turn in turns.turns(known(*events, info=info))] == [Stage.RUNS, stage, stage]

    text = turns.POOL_GONE if at_once is None else turns.POOL_GONE_BEFORE
    for key in ("b", "c"):
        job = seen([*events, *base(9, 5.0)], key, info=info)
        assert bool(job.waits) == (at_once == 1)
        held_back = "; --at-once allows 1 run of its sweep at a time"
        assert [wait.text.endswith(held_back) for wait in job.waits] == [key == "b"] * len(job.waits)
        assert job.verdict.text == text

    over = known(*events, *alone(5, 4.0, 0)[2:], info=info)
    assert [turn.stage for turn in turns.turns(over)] == [Stage.DONE, Stage.RUNS, Stage.RUNS]


def test_a_record_of_a_sweep_that_no_sender_writes_is_ignored():
    forged = run_of(accepted(5, 3.0, "a", 1), float("inf"), float("inf"))
    (turn,) = turns.turns(known(*BEGUN, forged, info=POOL))

    assert turns.info(POOL, turn).group == ""


def test_artifacts_of_a_pool_are_those_of_the_job_that_has_their_number():
    sent = [ev.ArtifactsReady(3.3, 0, of_round(round_), "log#x", 9, 1, 9) for round_ in (5, 6)]
    events = [*BEGUN, taken(5, 3.0, "a"), *ran(5, 3.1)[:6], *sent, *ran(5, 3.1)[6:]]

    assert [*seen(events, "a", info=POOL).artifacts] == [(1, 0)]


def test_a_cell_that_was_withdrawn_says_nothing_of_those_before_it():
    withdrawn = [ev.TurnEnded(5.0, node, 6, (node,), begun=False) for node in (0, 1)]
    running = ran(5, 3.1)[:4]
    state = known(*FIRST, taken(5, 3.0, "a"), *running, taken(6, 4.0, "b"), taken(7, 4.5, "c"), *withdrawn)

    assert stages(state) == [(1, Stage.DONE), (2, Stage.RUNS), (3, Stage.FAILED), (4, Stage.WAITS)]
    assert [turn.fact.id for turn in turns.ahead(state, 7)] == ["a"]
    assert turns.idle_since(state) is None


def test_a_labs_ranks_are_silent_for_a_reason_between_cells_and_its_cells_cards_compare_them():
    info = JobInfo("lab", created=0.5, nodes=(2, 2), lab=7200.0)
    reports = [
        ev.Reported(4.0 + n * 0.5, rank, 5, n, {"step": n + 1, "steps": 200})
        for n in range(100)
        for rank in (0, 1)
    ]
    begun = [*FIRST, taken(5, 3.0, "a"), *ran(5, 3.1)[:4], *reports]
    runs, idle = known(*begun, info=info), known(*begun, *ran(5, 60.0)[-2:], info=info)

    assert ranks.rank_lines(runs, 54.0) == []
    assert ranks.rank_lines(seen(begun, "a", info=info), 54.0)
    assert lifetime.progress_line(idle, 3661.0) == "100 of 200 steps"
    assert record(idle, 3661.0)["still"] is None
