"""Attempts, their budgets and what follows them, from facts alone."""

import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import OPERATOR, US, Budget, JobInfo, JobState, Phase, apply, conclusive
from nbtorchjob.state.attempts import losses
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause


def info(retry_owner=US, nodes=(2, 2), **retry):
    spec = JobSpec(retry=Retry(**{"backoff": 10, **retry}))
    return JobInfo("job", created=0.0, nodes=nodes, retry_owner=retry_owner, spec=spec.to_json())


def fold(about, *events):
    return reduce(apply, events, JobState(about))


def began(node, time, attempt, round_, host=""):
    pod = f"pod-{node}-{attempt}"
    return [
        ev.Waiting(time, "waiting for a host", node, pod, attempt=attempt),
        ev.NodeStarted(time, node, host or f"host-{node}", pod=pod, attempt=attempt),
        ev.WorkersStarted(time + 1, node, 0, round_, (node,), 2),
    ]


def ended(node, time, attempt, code=None, **how):
    return ev.NodeExited(time, node, code, pod=f"pod-{node}-{attempt}", **how)


def raised(node, time, round_, kind="ValueError", recoverable=False):
    error = Error(kind, "boom", time=time, recoverable=recoverable)
    return ev.RankFailed(time, node, node, 0, round_, error)


def evicted(node, time, attempt):
    return ev.NodeDisrupted(time, node, f"pod-{node}-{attempt}", "EvictionByEvictionAPI")


# We number the attempts: rank 1 raises a recoverable error, then node 0 is evicted.
FIRST = [
    *began(0, 1.0, 1, 100),
    *began(1, 1.0, 1, 100),
    ev.LogChunk(1, 100, 0, b"one\ntwo\nlast words\n"),
    raised(1, 5.0, 100, "RecoverableError", recoverable=True),
    ended(1, 6.0, 1, exits.RECOVERABLE_ERROR),
    ended(0, 6.0, 1, exits.INFRASTRUCTURE_ERROR),
    ev.Verdict(7.0, False, attempt=1),
]
SECOND = [
    ev.AttemptBegan(20.0, 2),
    *began(0, 21.0, 2, 121, host="spot"),
    *began(1, 21.0, 2, 121),
    ev.LogChunk(1, 121, 0, b"again\n"),
    evicted(0, 30.0, 2),
    ended(0, 31.0, 2, exits.CANCELLED),
    raised(1, 31.5, 121, "torch.distributed.DistBackendError"),
    ended(1, 32.0, 2, exits.INFRASTRUCTURE_ERROR),
    ev.Verdict(33.0, False, attempt=2),
]
THIRD = [
    ev.AttemptBegan(60.0, 3),
    *began(0, 61.0, 3, 161),
    *began(1, 61.0, 3, 161),
    raised(0, 70.0, 161, "KeyError"),
    ended(0, 71.0, 3, exits.USER_ERROR),
    ended(1, 71.0, 3, exits.USER_ERROR),
    ev.Verdict(72.0, False, attempt=3),
]
# An operator replaces pods: node 1 runs out of memory, node 0 only reports that its peer is gone;
# then its host refuses node 0's new pod, and the next one runs.
REPLACED = [
    *began(0, 1.0, 1, 100),
    *began(1, 1.0, 1, 100),
    ended(1, 5.0, 1, 137, signal=9, reason="OOMKilled"),
    ended(0, 6.0, 1, exits.INFRASTRUCTURE_ERROR),
    ev.Waiting(10.0, "waiting for a host", 1, "pod-1-b"),
    ev.NodeStarted(11.0, 1, "host-1", pod="pod-1-b"),
    ev.Waiting(10.0, "waiting for a host", 0, "pod-0-b"),
    ev.NodeExited(12.0, 0, None, None, "pod-0-b", "OutOfcpu"),
    ev.Waiting(14.0, "waiting for a host", 0, "pod-0-c"),
    ev.NodeStarted(15.0, 0, "host-2", pod="pod-0-c"),
    ev.WorkersStarted(16.0, 0, 0, 115, (0,), 2),
    ev.WorkersStarted(16.0, 1, 0, 115, (1,), 2),
]


def kinds(state):
    return [attempt.budget for attempt in state.attempts]


def used(state):
    return [(spent.used, spent.limit) for spent in state.budgets]


def test_each_attempt_tells_its_end_its_cause_its_budget_its_hosts_and_its_last_words():
    state = fold(info(retries=3), *FIRST, *SECOND, *THIRD, ev.Closed(73.0))
    first, second, third = state.attempts

    assert (first.number, first.start, first.end, first.budget) == (1, 1.0, 6.0, Budget.FAILURES)
    assert first.failure.error.type == "RecoverableError"
    assert (first.hosts, first.lines) == (("host-0", "host-1"), ("one", "two", "last words"))
    assert (second.number, second.budget, second.hosts) == (2, Budget.PREEMPTIONS, ("host-1", "spot"))
    assert (second.failure.node, second.failure.reason.cause) == (0, Cause.INFRA)
    assert (third.number, third.budget, third.failure.error.type) == (3, None, "KeyError")
    assert used(state) == [(1, 3), (1, float("inf"))]
    assert (state.phase, state.failure) == (Phase.FAILED, third.failure)


def test_what_follows_is_known_as_soon_as_an_attempt_has_ended():
    state = fold(info(retries=3), *FIRST)

    assert (state.next.number, state.next.at, state.next.budget) == (2, 17.0, Budget.FAILURES)
    assert (state.phase, state.failure, conclusive(state)) == (Phase.PENDING, None, False)
    assert used(state) == [(1, 3), (0, float("inf"))]


def test_the_pause_before_an_attempt_doubles():
    assert fold(info(retries=3), *FIRST, *SECOND).next.at == 33.0 + 20


def test_a_new_attempt_counts_before_it_has_nodes_and_while_its_nodes_start():
    state = fold(info(retries=3), *FIRST, SECOND[0])
    assert (len(state.attempts), state.next, state.phase) == (2, None, Phase.PENDING)

    state = fold(info(retries=3), *FIRST, *SECOND[:3])
    assert (state.phase, state.attempts[-1].failure) == (Phase.PENDING, None)

    assert fold(info(retries=3), *FIRST, *SECOND[:7]).phase is Phase.RUNNING


def test_a_job_that_succeeds_in_the_end_has_succeeded():
    well = [ended(0, 29.0, 2, 0), ended(1, 29.0, 2, 0), ev.Verdict(30.0, True, attempt=2)]
    state = fold(info(retries=1), *FIRST, *SECOND[:8], *well, ev.Closed(31.0))

    assert state.phase is Phase.SUCCEEDED
    assert kinds(state) == [Budget.FAILURES, None]
    assert used(state)[0] == (1, 1)


def test_a_budget_that_is_used_up_ends_the_job():
    spent, left = fold(info(retries=0), *FIRST), fold(info(retries=1), *FIRST)

    assert (conclusive(spent), conclusive(left)) == (True, False)
    assert (apply(spent, ev.Closed(9.0)).phase, left.phase) == (Phase.FAILED, Phase.PENDING)
    assert (used(spent)[0], used(left)[0]) == ((0, 0), (1, 1))


def test_what_an_attempt_was_paid_from_holds_when_nothing_else_tells_of_it():
    paid = [ev.AttemptBegan(20.0, 2), ev.AttemptPaid(6.0, 1, "preemptions", "evicted")]
    unseen = fold(info(retries=1), ev.Verdict(7.0, False, attempt=1), *paid, SECOND[1])
    (first, _), (attempt, _) = unseen.attempts, fold(info(retries=3), *FIRST, SECOND[0]).attempts

    assert (first.budget, first.failure.reason.line, used(unseen)[0]) == (
        Budget.PREEMPTIONS,
        "evicted",
        (0, 1),
    )
    assert fold(info(retries=3), *FIRST, *paid).attempts[0].budget is Budget.PREEMPTIONS
    assert used(fold(info(retries=1), ev.Verdict(7.0, False, attempt=1), *paid))[1][0] == 1  # no node facts
    for nothing_new in ("failures", "gold"):
        other = ev.AttemptPaid(6.0, 1, nothing_new, "boom")
        assert fold(info(retries=3), *FIRST, SECOND[0], other).attempts[0] == attempt


def test_preemptions_have_a_budget_of_their_own():
    assert fold(info(retries=1, preemptions=0), *FIRST, *SECOND).next is None
    assert fold(info(retries=1, preemptions=1), *FIRST, *SECOND).next.budget is Budget.PREEMPTIONS


def test_an_exception_that_nobody_called_recoverable_ends_the_job():
    assert fold(info(retries=9), *FIRST, *SECOND, *THIRD).next is None


GLOO = "[/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"


@pytest.mark.parametrize(
    "behind", [[], [raised(1, 4.9, 100)], [raised(1, 5.1, 100)]], ids=["no", "before", "after"]
)
def test_a_collective_that_timed_out_is_tried_again_unless_a_rank_failed_for_good(behind):
    gave_up = ev.RankFailed(5.0, 0, 0, 0, 100, Error("RuntimeError", GLOO, time=5.0))
    state = fold(info(retries=1), *FIRST[:4], *behind, gave_up, FIRST[-1])

    cause, budget = (Cause.USER, None) if behind else (Cause.UNKNOWN, Budget.FAILURES)
    assert (state.attempts[-1].failure.reason.cause, state.attempts[-1].budget) == (cause, budget)
    assert (state.next is None) == bool(behind)


@pytest.mark.parametrize(
    "wish", [ev.CancelRequested(8.0), ev.Removed(8.0), ev.DeadlineExceeded(8.0, 5), ev.Suspended(8.0, True)]
)
def test_nothing_follows_what_somebody_wanted_to_end(wish):
    assert fold(info(retries=3), *FIRST, wish).next is None


def test_nothing_follows_behind_the_deadline():
    late = JobInfo("job", deadline_s=16, retry_owner=US, spec=info(retries=3).spec)
    soon = JobInfo("job", deadline_s=18, retry_owner=US, spec=info(retries=3).spec)

    assert fold(late, *FIRST).next is None
    assert fold(soon, *FIRST).next.number == 2


def test_a_deadline_counts_from_the_last_resume_and_not_while_suspended():
    about = JobInfo("job", created=5.0, deadline_s=10)

    assert fold(about).deadline_at == 15.0
    assert fold(about, ev.Suspended(7.0, True)).deadline_at is None
    assert fold(about, ev.Suspended(7.0, True), ev.Suspended(20.0, False)).deadline_at == 30.0


@pytest.mark.parametrize("dates", [(20.0, 30.0), (30.0, 20.0)])
def test_a_deadline_isnt_counted_anew_as_a_resume_is_dated_anew(dates):
    about = JobInfo("job", created=5.0, deadline_s=10)
    again = [ev.Suspended(7.0, True), *(ev.Suspended(date, False, began=7.0) for date in dates)]
    later = [ev.Suspended(40.0, True), ev.Suspended(50.0, False, began=40.0)]

    assert fold(about, *again).deadline_at == 30.0
    assert fold(about, *again, *later).deadline_at == 60.0


def test_a_pod_that_its_operator_restarts_after_a_resume_wasnt_taken_by_the_suspension():
    resumed = [ev.Suspended(date, False, began=0.5) for date in (1.0, 5.0)]
    lost = [ev.NodeDisrupted(5.0, n, f"pod-{n}-1", ev.DELETED) for n in (0, 1)]
    back = [ev.Waiting(6.0, "waiting", n, f"new-{n}") for n in (0, 1)]
    state = fold(info(OPERATOR, retries=3), *resumed, *REPLACED[:6], *lost, *back)

    assert len(state.attempts) == 2


@pytest.mark.parametrize(
    ("retry", "expected"),
    [({"retries": 1}, True), ({"retries": 2}, False), ({"retries": 2, "preemptions": 0}, True)],
)
def test_the_last_attempt_is_on_demand_where_that_was_asked_for(retry, expected):
    assert fold(info(on_demand_last=True, **retry), *FIRST).next.on_demand is expected
    assert fold(info(**retry), *FIRST).next.on_demand is False


def test_an_operators_replacements_are_attempts_with_what_they_were_lost_by():
    state = fold(info(OPERATOR, retries=3), *REPLACED)

    assert kinds(state) == [Budget.FAILURES, Budget.PREEMPTIONS, None]
    assert "memory" in state.attempts[0].failure.reason.line
    assert (state.attempts[1].failure.node, state.attempts[2].failure) == (0, None)
    assert used(state) == [(1, 3), (1, float("inf"))]
    assert (state.phase, state.next) == (Phase.RUNNING, None)


@pytest.mark.parametrize("pods", ["ab", "ba"])
def test_pods_of_one_second_that_never_took_part_are_attempts_of_their_own(pods):
    def life(time, end, pod, code=exits.INFRASTRUCTURE_ERROR):
        return [ev.NodeStarted(time, 0, "host", pod=pod), ev.NodeExited(end, 0, code, pod=pod)]

    first, second = pods
    third = [*life(12.0, 15.0, "c", 0), ev.WorkersStarted(13.0, 0, 0, 2, (0,), 1, "c")]
    # The second pod starts in the second in which the first one ended, and ends later.
    lives = [*life(10.0, 10.0, first), *life(10.0, 11.0, second), *third]
    state = fold(info(OPERATOR, (1, 1)), *lives, ev.Verdict(16.0, True))

    assert [attempt.end for attempt in state.attempts[:2]] == [10.0, 11.0]
    assert len(state.attempts) == 3


def test_pods_of_one_second_are_in_the_order_in_which_their_operator_counts_its_restarts():
    def fails(node, restarts, pod, *, joins=True):
        round_ = 100 + restarts
        started = [ev.WorkersStarted(10.2, node, 0, round_, (node,), 2, pod=pod)] if joins else []
        waits = ev.Waiting(10.0, "waiting for a host", node, pod, since=10.0, restarts=restarts)
        return [waits, *started, ev.NodeExited(10.0, node, exits.RECOVERABLE_ERROR, pod=pod)]

    # The facts of node 1's second pod haven't come, or never will.
    pods = [*fails(0, 0, "0-a"), *fails(0, 1, "0-b"), *fails(1, 0, "1-b"), *fails(1, 1, "1-a", joins=False)]
    state = fold(info(OPERATOR, retries=1), *pods, ev.Verdict(11.0, False))

    assert [attempt.number for attempt in state.attempts] == [1, 2]


def test_the_attempts_of_a_job_without_budgets_are_told_all_the_same():
    plain = JobInfo("job", nodes=(2, 2))
    state = fold(plain, *REPLACED)

    assert (len(state.attempts), state.budgets) == (3, ())


def test_pods_that_a_suspension_took_are_no_loss():
    away = [ev.Suspended(5.0, True), *(ev.NodeDisrupted(5.0, n, f"pod-{n}-1", ev.DELETED) for n in (0, 1))]
    back = [ev.Suspended(9.0, False), *(ev.Waiting(10.0, "waiting", n, f"new-{n}") for n in (0, 1))]
    state = fold(info(OPERATOR, retries=3), *REPLACED[:6], *away, *back)

    assert len(state.attempts) == 1


@pytest.mark.parametrize(("replaced", "attempts"), [(None, 1), (6.0, 2)])
def test_a_suspension_that_shows_seconds_after_it_took_its_pods_took_them_unless_they_were_replaced_before(
    replaced, attempts
):
    deletions = [ev.NodeDisrupted(5.0, n, f"pod-{n}-1", ev.DELETED) for n in (0, 1)]
    between = [] if replaced is None else [ev.Waiting(replaced, "waiting", 1, "again-1")]
    pauses = [ev.Suspended(8.0, True), ev.Suspended(9.0, False)]
    back = [ev.Waiting(10.0, "waiting", n, f"new-{n}") for n in (0, 1)]
    state = fold(info(OPERATOR, retries=3), *REPLACED[:6], *deletions, *between, *pauses, *back)

    assert len(state.attempts) == attempts


@pytest.mark.parametrize(
    ("code", "deleted", "failed"),
    [
        (exits.INFRASTRUCTURE_ERROR, True, False),  # it lost its peer, as that pod was deleted first
        (exits.INFRASTRUCTURE_ERROR, False, True),
        (exits.USER_ERROR, True, True),
    ],
)
def test_a_suspension_that_its_operator_shows_as_an_end_is_none_unless_a_node_failed_by_itself(
    code, deleted, failed
):
    deletions = [ev.NodeDisrupted(5.0, n, f"pod-{n}-1", ev.DELETED) for n in ((0, 1) if deleted else (1,))]
    ends = [ended(1, 5.0, 1, exits.LEFT), ended(0, 5.0, 1, code)]
    aborted = [ev.Verdict(5.0, False, "Aborted", pauses=True), ev.Suspended(5.0, True)]
    state = fold(info(OPERATOR), *began(0, 1.0, 1, 100), *began(1, 1.0, 1, 100), *deletions, *ends, *aborted)

    assert (state.verdict is not None, state.suspended, conclusive(state)) == (failed, True, failed)


def test_what_its_queue_takes_from_an_attempt_of_ours_is_paid_for_though_its_number_stays():
    away = [
        ev.Evicted(4.0, "Preempted", "due to prioritization in the ClusterQueue"),
        *(ev.NodeDisrupted(5.0, n, f"pod-{n}-1", ev.DELETED) for n in (0, 1)),
        ev.Suspended(5.0, True),
        ev.Suspended(9.0, False),
    ]
    back = [
        fact
        for n in (0, 1)
        for fact in (
            ev.NodeStarted(10.0, n, f"host-{n}", pod=f"new-{n}"),
            ev.WorkersStarted(11.0, n, 0, 101, (n,), 2, f"new-{n}"),
        )
    ]
    first = [*began(0, 1.0, 1, 100), *began(1, 1.0, 1, 100)]
    state = fold(info(US, retries=1, preemptions=1), *first, *away, *back)

    assert [(a.number, a.budget) for a in state.attempts] == [(1, Budget.PREEMPTIONS), (1, None)]
    assert [spent.used for spent in state.budgets] == [0, 1]
    assert "preempted by a job of higher priority" in state.attempts[0].failure.reason.line


PREEMPTED = ev.Evicted(4.0, "Preempted", "due to prioritization in the ClusterQueue")
WAS_SUSPENDED: dict[str, list[ev.Event]] = {
    "its queue said so": [PREEMPTED, ev.Suspended(5.0, True)],
    "it was resumed in the second of the deletion": [ev.Suspended(5.0, False)],
    "it was resumed in the next one": [ev.Suspended(6.0, False)],
}
PODS_WENT: dict[str, list[ev.Event]] = {
    "deleted": [ev.NodeDisrupted(5.0, 0, "pod-0-1", ev.DELETED), ended(0, 5.0, 1, 143)],
    "gone, and nobody saw how": [ev.NodeGone(20.0, 0, "pod-0-1")],
    "their deletion dated anew": [ended(0, 5.0, 1, 143), ev.NodeDisrupted(7.0, 0, "pod-0-1", ev.DELETED)],
}


@pytest.mark.parametrize("again", [False, True], ids=["it waits", "it runs again"])
@pytest.mark.parametrize("went", PODS_WENT)
def test_what_its_queue_took_is_no_loss_that_its_operator_goes_on_with(went, again):
    facts = [*began(0, 1.0, 1, 100), PREEMPTED, ev.Suspended(4.0, True), *PODS_WENT[went]]
    back = [ev.Suspended(9.0, False), ev.NodeStarted(10.0, 0, "host", pod="new", attempt=1)]
    state = fold(info(US, (1, 1), preemptions=1), *facts, *(back if again else []))

    assert losses(state) == []
    assert [attempt.budget for attempt in state.attempts[:-1]] == [Budget.PREEMPTIONS] * again


@pytest.mark.parametrize("known", WAS_SUSPENDED)
def test_a_pod_that_a_suspension_took_is_no_loss_however_little_is_known_of_it(known):
    facts = [*began(0, 1.0, 1, 100), *PODS_WENT["deleted"], *WAS_SUSPENDED[known]]
    state = fold(info(US, (1, 1), preemptions=1), *facts, ev.Waiting(6.0, "waiting", 0, "new"))

    assert losses(state) == []


def test_a_pod_that_failed_by_itself_before_its_queue_took_it_is_a_loss():
    facts = [*began(0, 1.0, 1, 100), ended(0, 3.0, 1, exits.USER_ERROR), PREEMPTED]
    state = fold(info(US, (1, 1)), *facts, ev.NodeDisrupted(5.0, 0, "pod-0-1", ev.DELETED))

    assert [life.pod for life in losses(state)] == ["pod-0-1"]


def test_restarts_in_place_are_no_attempts():
    restarted = [raised(1, 3.0, 100), ev.WorkersStarted(4.0, 0, 1, 101, (0,), 2)]
    state = fold(info(OPERATOR, retries=3), *REPLACED[:6], *restarted)

    assert (len(state.attempts), state.restarts) == (1, 1)


def test_a_node_that_an_elastic_job_goes_on_without_is_no_attempt():
    state = fold(
        info(nodes=(1, 2), retries=3),
        *FIRST[:6],
        evicted(1, 3.0, 1),
        ended(1, 4.0, 1, exits.CANCELLED),
        ev.WorkersStarted(6.0, 0, 0, 105, (0,), 1),
    )

    assert (len(state.attempts), state.phase) == (1, Phase.RUNNING)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([US, OPERATOR, ""]))
def test_any_order_and_any_repetition_give_the_same_attempts(chance: random.Random, retry_owner):
    story = [*FIRST, *SECOND, *THIRD] if retry_owner == US else REPLACED
    events = [*story, *chance.sample(story, 5)]
    chance.shuffle(events)
    straight, mixed = fold(info(retry_owner, retries=3), *story), fold(info(retry_owner, retries=3), *events)

    assert mixed == straight
    assert (mixed.attempts, mixed.budgets, mixed.next) == (straight.attempts, straight.budgets, straight.next)


def test_all_this_is_told_of_half_a_story_too():
    story = [*FIRST, *SECOND, *THIRD]
    for count in range(len(story) + 1):
        state = fold(info(retries=3), *story[:count])
        assert [attempt.number for attempt in state.attempts] == list(range(1, len(state.attempts) + 1))
        assert sum(spent.used for spent in state.budgets) <= len(state.attempts)


def test_of_two_ranks_that_fail_at_once_one_that_may_not_be_tried_again_decides():
    both = [*FIRST[:-1], raised(0, 5.02, 100, "KeyError"), FIRST[-1]]
    state = fold(info(retries=3), *both)

    assert (state.next, state.attempts[0].failure.error.type) == (None, "KeyError")


@pytest.mark.parametrize("wish", [ev.CancelRequested(8.0), ev.DeadlineExceeded(8.0, 5)])
def test_a_wish_between_two_attempts_leaves_the_first_as_it_was(wish):
    before, after = fold(info(retries=3), *FIRST), fold(info(retries=3), *FIRST, wish, ev.Closed(9.0))

    assert (after.attempts, after.budgets) == (before.attempts, before.budgets)
    assert after.failure.reason.cause in (Cause.CANCELLED, Cause.DEADLINE)


def test_a_supervisor_that_is_lost_between_two_attempts_is_why_none_follows():
    lost = ev.Lost(9.0, "the job's supervisor was killed")
    state = fold(info(retries=3), *FIRST, lost)

    assert (state.phase, state.failure.reason.cause) == (Phase.FAILED, Cause.INFRA)
    assert "supervisor was killed" in state.failure.reason.line
    assert state.attempts[0].failure.error.type == "RecoverableError"


def test_an_attempt_that_would_start_behind_the_deadline_is_known():
    late = JobInfo("job", deadline_s=16, retry_owner=US, spec=info(retries=3).spec)

    assert fold(late, *FIRST, ev.Closed(9.0)).missed.number == 2
    assert fold(info(retries=3), *FIRST).missed is None


def test_a_collective_that_misses_a_peer_nobody_knows_to_be_lost_draws_on_failures():
    missed = [raised(1, 5.0, 100, "torch.distributed.DistBackendError"), ended(1, 6.0, 1, 200)]
    state = fold(info(retries=3), *FIRST[:6], *missed, ev.Verdict(7.0, False, attempt=1))

    assert state.next.budget is Budget.FAILURES
