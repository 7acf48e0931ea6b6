"""Jobs of a pool, sent again by the processes that follow them."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import pytest

from nbtorchjob import Elastic, JobSpec, Retry, pools
from nbtorchjob.backends import resending
from nbtorchjob.backends import turns as backends_turns
from nbtorchjob.backends.resending import Plan, ResendFolder, SendMoment, SentTurn, TakenTurn
from nbtorchjob.backends.turns import TurnBackend
from nbtorchjob.errors import JobNotFoundError, NBTorchJobError, SpecError
from nbtorchjob.machine import folders, loop
from nbtorchjob.runtime.api.artifacts import of_round
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import US, JobState, Phase, apply, turns
from nbtorchjob.state.facts import events as ev
from tests.patience import LIMIT
from tests.state.test_turns import BEGUN, POOL, base, known, ran, taken

LAB = known(*BEGUN, info=POOL)
BEFORE, AFTER = TakenTurn(LAB, 5, SendMoment(None, None)), TakenTurn(LAB, 7, SendMoment(None, None))
RECORD = {"question": {}, "times": 1, "round": 5, "attempt": 1, "past": []}
AGAIN = Error("RecoverableError", "again", recoverable=True, time=150.1)
LOST = [
    taken(5, 100.0, "c1"),
    *(
        ev.RankFailed(150.1, 1, 1, 0, 5, AGAIN, stays=True) if isinstance(event, ev.RankFailed) else event
        for event in ran(5, 150.0, failed=(1,))
    ),
]


class Pool:
    """A backend of one pool, with the facts of a job that is due for a retry, and later of that attempt."""

    login = ""

    def __init__(self, facts=LOST):
        self.told = list(facts)

    def brief_state(self, name):
        return reduce(apply, self.told, LAB)

    def info(self, name):
        return POOL

    def facts(self, name, turn):
        yield from self.told

    async def follow(self, name, *, since=None, turn=None):
        for event in self.told:
            yield event
            if turn.over:
                return


def job(key="c1", **fields):
    spec = JobSpec(Elastic(nnodes=2), retry=Retry(retries=3, backoff=0)).to_json()
    return turns.of(POOL, key=key, created=100.0, spec=spec, retry_owner=US, **fields)


def followed(backend, info):
    async def all_of_it():
        return [event async for event in backend.follow(info.address)]

    return asyncio.run(asyncio.wait_for(all_of_it(), LIMIT))


def test_what_is_known_of_a_pool_may_be_read_on_the_loop_that_waits_to_send_a_job_again():
    async def read():
        return LAB

    sent = SentTurn(job(), BEFORE, lambda times, attempt: AFTER)
    going = sent.go_on(BEFORE, Plan(2, time.time()), [], lambda: loop.run(read(), 1.0))

    assert loop.start(going).result(LIMIT)
    assert sent.acceptance is AFTER


def of_pool(facts=LOST):
    return TurnBackend(cast("Any", Pool(facts)))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a function that keeps a job as its sender does."""
    monkeypatch.setenv(folders.STATE, str(tmp_path))
    monkeypatch.setattr(backends_turns, "able", lambda inner, *args: inner)
    return lambda info: ResendFolder.create(info, POOL.run, "c1", memoryview(b"payload"), RECORD)


def sends(backend):
    """Return a function that sends the job again; its pool then reports an attempt that succeeds."""

    def again(times, attempt):
        lab = backend.inner.brief_state("")
        backend.inner.told += [taken(7, 160.0, turns.again("c1", times)), *ran(7, 160.5)]
        return TakenTurn(lab, 7, SendMoment(None, None))

    return again


def test_artifacts_of_each_attempt_are_fetched_by_the_number_of_its_own_round(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *args: inner)
    fetched = []

    class WithArtifacts(Pool):
        def artifacts(self, lab, sent):
            fetched.append((sent.ref, sent.attempt))

    def left(round_):
        return ev.ArtifactsReady(170.0, 0, of_round(round_), f"of {round_}", 9, 1, 9)

    def again(times, attempt):
        sent = replace(taken(7, 160.0, turns.again("c1", times)), attempt=attempt)
        pool.told += [sent, *ran(7, 160.5)[:-2], left(7), *ran(7, 160.5)[-2:]]
        return AFTER

    pool, info = WithArtifacts([*LOST[:-2], left(5), *LOST[-2:]]), job()
    backend = TurnBackend(cast("Any", pool))
    backend.sent(info, BEFORE, lambda times, attempts: again(times, attempts["attempt"]))

    for ready in reduce(apply, followed(backend, info), JobState(info)).artifacts.values():
        backend.artifacts(info.address, ready)
    assert fetched == [("of 5", of_round(5)), ("of 7", of_round(7))]


def test_what_may_be_sent_again_is_remembered_whatever_was_sent_since():
    def refused(times, attempt):
        raise NBTorchJobError("no room")

    backend, first = of_pool(), job()
    backend.sent(first, BEFORE, refused)
    for number in range(100):
        backend.sent(job(f"d{number}"), BEFORE)
    assert backend.info(first.address) is first

    notices = [event.text for event in followed(backend, first) if isinstance(event, ev.Notice)]
    assert notices == ["it can't be sent to its pool again: no room"]
    for number in range(100):
        backend.sent(job(f"e{number}"), BEFORE)
    assert backend.info(first.address) is not first  # rebuilt from what the pool knows


def test_a_job_that_is_over_is_kept_no_longer_though_nobody_follows_it(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *args: inner)
    backend, info = TurnBackend(cast("Any", Pool([taken(5, 100.0, "c1"), *ran(5, 150.0)]))), job()
    backend.sent(info, BEFORE, lambda times, attempt: AFTER)
    assert backend.snapshot(info.address).phase is Phase.SUCCEEDED

    for number in range(100):
        backend.sent(job(f"d{number}"), BEFORE)
    assert backend.info(info.address) is not info


@pytest.mark.parametrize("deadline", [None, 600, 30])
def test_a_deadline_counts_for_each_attempt_of_a_pools_job_and_ends_no_retries(deadline):
    sent = SentTurn(job(deadline_s=deadline), BEFORE, lambda times, attempt: AFTER)
    view = sent.view("c1")
    facts = [fact for event in LOST for fact in view.take(event)]

    plan = sent.plan([*facts, *view.last])
    assert plan is not None
    assert plan.attempt == 2
    assert plan.at == pytest.approx(150.4)


def test_a_job_that_had_not_begun_is_sent_again_at_once_whatever_the_clocks_of_pods_say():
    sent, ahead = SentTurn(job(), BEFORE, lambda times, attempt: AFTER), time.time() + 600
    plan = sent.plan([ev.Verdict(ahead, False, turns.ANEW, turns.POOL_GONE_BEFORE)])

    assert plan is not None
    assert (plan.attempt, plan.at <= time.time()) == (1, True)


def test_a_job_that_is_cancelled_between_two_attempts_is_so_whoever_asks_and_whenever(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *args: inner)
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, lambda times, attempt: AFTER)
    backend.cancel(info.address)

    states = [backend.snapshot(info.address)]
    states += [reduce(apply, followed(backend, info), JobState(info)) for _ in range(2)]
    assert [state.phase for state in [*states, backend.snapshot(info.address)]] == [Phase.CANCELLED] * 4


def test_one_that_failed_for_good_before_it_was_cancelled_has_failed(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *args: inner)
    backend, info = of_pool(), replace(job(), spec=JobSpec(Elastic(nnodes=2)).to_json(), retry_owner="")
    backend.sent(info, BEFORE, lambda times, attempt: AFTER)
    backend.cancel(info.address)

    assert backend.snapshot(info.address).phase is Phase.FAILED
    assert reduce(apply, followed(backend, info), JobState(info)).phase is Phase.FAILED


def test_who_follows_a_job_again_once_it_is_over_hears_of_all_its_attempts():
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, sends(backend))
    first, second = (reduce(apply, followed(backend, info), JobState(info)) for _ in range(2))

    assert (first.phase, first.tries) == (second.phase, second.tries) == (Phase.SUCCEEDED, 2)
    assert [attempt.number for attempt in second.attempts] == [1, 2]


def test_another_process_knows_budgets_and_attempts_of_a_job_also_once_it_is_over(kept):
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, sends(backend), kept(info))
    state = reduce(apply, followed(backend, info), JobState(info))
    other = of_pool(backend.inner.told).snapshot(info.address)

    attempts = [
        [replace(attempt, lines=()) for attempt in job_state.attempts] for job_state in (state, other)
    ]
    assert [attempt.number for attempt in attempts[1]] == [1, 2]
    assert attempts[1] == attempts[0]
    assert other.budgets == state.budgets
    assert [spent.used for spent in other.budgets] == [1, 0]
    assert not [*folders.state_dir().rglob("payload")]


def test_of_two_processes_one_sends_and_who_cannot_follows_what_was_sent(kept):
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, sends(backend), kept(info))
    others = [TurnBackend(backend.inner) for _ in range(2)]
    sent = others[0].sent_by_user(info.address)
    assert sent is not None
    sent.take_up(lambda *args: pytest.fail("it was sent twice"))

    async def followed_by_all():
        async def follow(backend):
            return [event async for event in backend.follow(info.address)]

        waiting = [asyncio.ensure_future(follow(other)) for other in others[1:]]
        facts = [await follow(backend), *await asyncio.gather(*waiting), await follow(others[0])]
        return [reduce(apply, events, JobState(info)) for events in facts]

    states = asyncio.run(asyncio.wait_for(followed_by_all(), LIMIT))
    assert [state.phase for state in states] == [Phase.SUCCEEDED] * 3
    assert [state.tries for state in states] == [2] * 3


def test_who_reads_the_pools_state_before_a_retry_and_the_record_after_it_follows_the_retry(kept):
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, sends(backend), kept(info))
    other = TurnBackend(backend.inner)
    states = [backend.inner.brief_state("")]
    followed(backend, info)

    def brief_state(name):
        return states.pop() if states else type(backend.inner).brief_state(backend.inner, name)

    backend.inner.brief_state = brief_state
    assert reduce(apply, followed(other, info), JobState(info)).phase is Phase.SUCCEEDED


def test_who_reads_the_pools_state_after_a_retry_and_the_record_before_it_counts_its_attempts(
    kept, monkeypatch
):
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, sends(backend), kept(info))
    other, note = TurnBackend(backend.inner), ResendFolder.note
    newest: Any = ResendFolder.record
    attempts = []

    def read_while_noted(folder, record):
        note(folder, record)
        if record["round"] == 7 and "end" not in record:
            older = [RECORD]
            with monkeypatch.context() as patch:
                read = property(lambda folder: older.pop() if older else newest.fget(folder))
                patch.setattr(ResendFolder, "record", read)
                sent = other.sent_by_user(info.address)
            attempts.append(sent and sent.attempt)

    monkeypatch.setattr(ResendFolder, "note", read_while_noted)
    followed(backend, info)
    assert attempts == [2]


def test_a_job_that_was_sent_again_goes_on_though_that_cannot_be_written_down(kept, monkeypatch):
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, sends(backend), kept(info))

    def full(self, record):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ResendFolder, "note", full)
    state = reduce(apply, followed(backend, info), JobState(info))
    assert (state.phase, state.tries) == (Phase.SUCCEEDED, 2)
    assert backend.snapshot(info.address).phase is Phase.SUCCEEDED


def test_what_a_killed_kernel_kept_of_half_a_job_goes_in_the_end(kept, tmp_path):
    kept(job())
    half, recent = (tmp_path / "pools" / POOL.run / name for name in ("half", "recent"))
    for folder in (half, recent):
        folder.mkdir()
        (folder / "payload").write_bytes(b"whole")
    os.utime(half / "payload", (0.0, 0.0))
    kept(job())

    assert (half.exists(), recent.exists()) == (False, True)
    assert ResendFolder.of(POOL.run, "c1", "pool#c1") is not None


def told_of(fact, **more):
    """Return a fact as a lead reports it of a job with budgets, wherever the job was sent."""
    return replace(fact, retry=json.dumps({"retries": 3, "backoff": 0}), sent=99.0, **more)


def sent_elsewhere():
    """Return a pool that has lost a job, and its lead's facts once the job is sent again and succeeds."""
    first, *rest = LOST
    paid = (ev.AttemptPaid(150.4, 1, "failures", "RecoverableError"),)
    again = told_of(taken(7, 160.0, turns.again("c1", 2)), attempt=2, paid=paid)
    return Pool([told_of(first), *rest]), [again, *ran(7, 160.5)]


@pytest.mark.usefixtures("kept")
def test_a_machine_elsewhere_knows_budgets_and_attempts_and_waits_until_the_job_is_sent_again():
    pool, again = sent_elsewhere()
    backend = TurnBackend(cast("Any", pool))
    state = backend.snapshot("pool#1")
    assert (state.phase, state.info.created) == (Phase.PENDING, 99.0)
    assert state.next is not None
    with pytest.raises(SpecError, match="cancel it where it was sent"):
        backend.cancel("pool#1")

    async def follow():
        events = []
        async for event in backend.follow("pool#1"):
            events.append(event)
            if isinstance(event, ev.Waiting):
                pool.told += again
        return events

    states = [reduce(apply, asyncio.run(asyncio.wait_for(follow(), LIMIT)), JobState(state.info))]
    states.append(TurnBackend(cast("Any", pool)).snapshot("pool#1"))
    for state in states:
        assert state.phase is Phase.SUCCEEDED
        assert [attempt.number for attempt in state.attempts] == [1, 2]
        assert [attempt.failure and attempt.failure.reason.line for attempt in state.attempts] == [
            "RecoverableError",
            None,
        ]
        assert [spent.used for spent in state.budgets] == [1, 0]


@pytest.mark.usefixtures("kept")
def test_a_job_that_nobody_has_sent_again_has_failed_once_its_pool_has_ended():
    pool, _ = sent_elsewhere()
    pool.told += [ev.CancelRequested(200.0), ev.Closed(201.0)]
    backend = TurnBackend(cast("Any", pool))

    states = [backend.snapshot("pool#1")]
    states.append(reduce(apply, followed(backend, states[0].info), JobState(states[0].info)))
    assert [state.phase for state in states] == [Phase.FAILED] * 2


@pytest.mark.parametrize("retry", ["{", "[1]", '{"retries": -1}', '{"retries": "x"}', "null", "7"])
def test_budgets_that_make_no_sense_are_none(retry):
    state = known(*BEGUN, replace(taken(5, 100.0, "c1"), retry=retry), info=POOL)

    assert turns.info(POOL, turns.turns(state)[0]).retry is None


@pytest.mark.parametrize("how", ["is sent", "pauses", "is followed by nobody"])
def test_jobs_that_are_sent_again_keep_their_order_whoever_sends_them(kept, how):
    first, later, order = job(), job("2"), []
    keeps = [
        ResendFolder.create(
            info, POOL.run, f"c{number}", memoryview(b"whole"), {**RECORD, "question": {"number": number}}
        )
        for number, info in ((1, first), (2, later))
    ]

    def sends(number):
        def again(times, attempt):
            if resending.is_behind(POOL.run, number, 7):
                raise resending.OutOfTurnError
            order.append(number)
            return TakenTurn(LAB, 8 + number, SendMoment(None, None))

        return again

    sents = [SentTurn(info, BEFORE, sends(n), keeps[n - 1]) for n, info in ((1, first), (2, later))]

    async def send():
        with sents[0].followed() if how != "is followed by nobody" else nullcontext():
            at = time.time() + 600 if how == "pauses" else 0.0
            plans = ((sents[1], Plan(1, 0.0)), (sents[0], Plan(1, at)))[
                : 2 - (how == "is followed by nobody")
            ]
            goes_on = [sent.go_on(BEFORE, plan, [], lambda: LAB) for sent, plan in plans]
            second, *others = map(asyncio.ensure_future, goes_on)
            assert await second
            for other in others:
                assert how == "pauses" or await other
                other.cancel()

    asyncio.run(asyncio.wait_for(send(), LIMIT))
    assert order == ([1, 2] if how == "is sent" else [2])


def test_a_job_that_another_process_cancels_between_two_attempts_is_never_sent_again(kept, monkeypatch):
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, lambda times, attempt: pytest.fail("it was sent"), kept(info))
    TurnBackend(backend.inner).cancel(info.address)

    states = [reduce(apply, followed(backend, info), JobState(info))]
    states += [TurnBackend(backend.inner).snapshot(info.address)]
    assert [state.phase for state in states] == [Phase.CANCELLED] * 2


def test_a_job_that_waited_as_its_pool_was_lost_shows_that_it_is_sent_again(kept):
    before = [taken(5, 100.0, "c0"), *ran(5, 101.0)[:6], taken(6, 102.0, "c1")]
    backend, info = of_pool([*before, *base(9, 200.0)]), job()
    backend.sent(info, TakenTurn(LAB, 6, SendMoment(None, None)), lambda times, attempt: AFTER)
    state = backend.snapshot(info.address)

    assert not state.phase.terminal
    assert [wait.text for wait in state.waits] == ["it is being sent to its pool again"]
    assert not state.notices


WAITED = [taken(5, 100.0, "c0"), *ran(5, 101.0)[:6], taken(6, 102.0, "c1"), *base(9, 200.0)]


def test_who_looks_after_a_loss_leaves_a_job_to_those_who_have_seen_it(kept):
    info = replace(job(), spec=JobSpec(Elastic(nnodes=2)).to_json(), retry_owner="")
    keeps = kept(info)
    keeps.note({**keeps.record, "round": 6})
    dispatch, late = (
        SentTurn(info, TakenTurn(LAB, 6, SendMoment(None, None)), lambda *args: AFTER, keeps),
        of_pool(WAITED),
    )

    async def look():
        with dispatch.followed():
            states = [late.snapshot(info.address)]
            assert states[0].phase is Phase.PENDING
            follows = asyncio.ensure_future(follow())
            await waits.wait()
            states.append(TurnBackend(late.inner).snapshot(info.address))
        await follows
        return [*states, reduce(apply, events, JobState(info))]

    waits, events = asyncio.Event(), []

    async def follow():
        async for event in late.follow(info.address):
            events.append(event)
            if isinstance(event, ev.Waiting) and event.text == "it is being sent to its pool again":
                waits.set()

    # Once the process that saw the loss is gone, the job counts as begun.
    phases = [state.phase for state in asyncio.run(asyncio.wait_for(look(), LIMIT))]
    assert phases == [Phase.PENDING, Phase.PENDING, Phase.FAILED]


def test_those_who_have_seen_a_loss_and_do_nothing_are_waited_for_no_longer(kept, monkeypatch):
    monkeypatch.setattr(resending, "_PATIENCE_S", 0.0)
    info = replace(job(), spec=JobSpec(Elastic(nnodes=2)).to_json(), retry_owner="")
    keeps = kept(info)
    keeps.note({**keeps.record, "round": 6})
    stopped, late = (
        SentTurn(info, TakenTurn(LAB, 6, SendMoment(None, None)), lambda *args: AFTER, keeps),
        of_pool(WAITED),
    )

    async def follow():
        return [event async for event in late.follow(info.address)]

    with stopped.followed():
        events = asyncio.run(asyncio.wait_for(follow(), LIMIT))
    assert reduce(apply, events, JobState(info)).phase is Phase.FAILED


def test_those_who_have_seen_another_loss_have_their_time_again(kept, monkeypatch):
    monkeypatch.setattr(resending, "_PATIENCE_S", 0.0)
    info = job()
    keeps = kept(info)
    stopped = SentTurn(info, BEFORE, lambda *args: AFTER, keeps)
    late = SentTurn(info, BEFORE._replace(unseen=True), lambda *args: AFTER, keeps)
    lost = [ev.Verdict(150.0, succeeded=False, reason=turns.ANEW, text="lost")]

    with stopped.followed():
        first = late.plan(lost)
        assert first is not None
        asyncio.run(late.go_on(late.acceptance, first, lost, lambda: LAB))
        alone = late.plan(lost)
        keeps.note({**keeps.record, "times": 2, "round": 6})  # as the stopped one does once it goes on
        late.renew(lambda: LAB)
        second = late.plan(lost)
    assert [plan and plan.others_decide for plan in (first, alone, second)] == [True, False, True]


FOLLOWS = """
import os, sys
from pathlib import Path
from nbtorchjob.backends.resending import ResendFolder
ResendFolder(Path(sys.argv[1])).followed(seen=True)
if os.fork():
    os._exit(0)
print("forked", flush=True)
sys.stdin.read()
"""


def test_a_fork_that_outlives_its_kernel_follows_no_job(kept, tmp_path):
    kept_job = kept(POOL)
    folder = tmp_path / "pools" / POOL.run / "c1"
    command = [sys.executable, "-c", FOLLOWS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == b"forked\n"
        assert kernel.wait(LIMIT) == 0
        assert not kept_job.seen(())


@pytest.mark.parametrize(("pool", "id_"), [("pool", "../other/c1"), ("../pools/other", "c1"), ("other", ".")])
@pytest.mark.usefixtures("kept")
def test_a_fact_that_names_another_folder_finds_nothing_there(pool, id_):
    ResendFolder.create(job(), "other", "c1", memoryview(b"whole"), RECORD)
    ResendFolder.create(job(), "pool", "c2", memoryview(b"whole"), RECORD)

    assert ResendFolder.of("other", "c1", "lab/c1") is not None
    assert ResendFolder.of(pool, id_, "lab/c1") is None


@pytest.mark.usefixtures("kept")
def test_jobs_whose_cluster_cant_be_asked_stop_no_tender(monkeypatch):
    ResendFolder.create(job(), "other", "c1", memoryview(b"whole"), RECORD)
    names = []

    def refuse(name):
        names.append(name)
        raise NBTorchJobError("the cluster is gone")

    monkeypatch.setattr(pools, "backend", refuse)
    sender = pools.Sender()
    sender.look()
    sender.look()
    assert len(names) == 1


@pytest.mark.parametrize("record", [b"", b"\0" * 64, b"[]", b'{"round": 5}', b'{"question": '], ids=repr)
def test_a_record_that_a_power_cut_damaged_hides_no_other_job(kept, tmp_path, record):
    lost, whole = job(), job("2")
    keeps = kept(lost)
    ResendFolder.create(whole, POOL.run, "c2", memoryview(b"whole"), RECORD)
    (path,) = tmp_path.glob("pools/*/c1/sent.json")
    path.write_bytes(record)

    assert [info.id for info in resending.unfinished()] == [whole.id]
    assert not resending.is_behind(POOL.run, 3, 5)
    sent = SentTurn(lost, TakenTurn(LAB, 5, SendMoment(None, None)), kept=keeps)
    sent.take_up(lambda *sending: AFTER)
    assert sent.attempt == 1
    sent.over()


def test_a_job_of_a_pool_that_is_gone_is_not_taken_for_one_of_a_pool_of_that_name(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *args: inner)
    backend = of_pool([taken(5, 100.0, "c1"), *ran(5, 150.0)])
    old = job("1")
    backend.sent(old, BEFORE, lambda times, attempt: AFTER)
    assert backend.info(old.address) is old

    anew = replace(POOL, created=200.0)
    monkeypatch.setattr(backend.inner, "info", lambda name: anew)
    monkeypatch.setattr(
        backend.inner,
        "brief_state",
        lambda name: known(*BEGUN, taken(5, 300.0, "d1"), *ran(5, 310.0), info=anew),
    )
    assert backend.info(old.address).created == 300.0


def test_what_jobs_there_are_is_told_by_their_numbers():
    facts = [replace(taken(round_, 100.0, f"c{round_}"), number=round_) for round_ in (5, 6, 8)]

    with pytest.raises(JobNotFoundError, match="has no job 1: it has jobs 5-6,8"):
        of_pool(facts).turn("pool#1")
