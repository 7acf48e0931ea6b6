"""Jobs of a pool that are sent again by who follows them."""

import asyncio
import time
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import pytest

from nbtorchjob import Elastic, JobSpec, Retry
from nbtorchjob.backends import turns as backends_turns
from nbtorchjob.backends.resending import Plan, Sent, Since, Taken
from nbtorchjob.backends.turns import TurnBackend
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.machine import loop
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import US, JobState, Phase, apply, turns
from nbtorchjob.state import events as ev
from tests.patience import LIMIT
from tests.state.test_turns import BEGUN, POOL, known, ran, taken

LAB = known(*BEGUN, info=POOL)
BEFORE, AFTER = Taken(LAB, 5, Since(None, None)), Taken(LAB, 7, Since(None, None))
AGAIN = Error("RecoverableError", "again", recoverable=True, time=150.1)
LOST = [
    taken(5, 100.0, "c1"),
    *(
        ev.RankFailed(150.1, 1, 1, 0, 5, AGAIN, stays=True) if isinstance(event, ev.RankFailed) else event
        for event in ran(5, 150.0, failed=(1,))
    ),
]


class Pool:
    """A backend of one pool, whose facts are of a job that is to be tried again, and of its next attempt."""

    login = ""

    def __init__(self, told=LOST):
        self.told = list(told)

    def known(self, name):
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


def job(key="c1", **given):
    spec = JobSpec(Elastic(nnodes=2), retry=Retry(retries=3, backoff=0)).to_json()
    return turns.of(POOL, key=key, created=100.0, spec=spec, retry_owner=US, **given)


def followed(backend, info):
    async def all_of_it():
        return [event async for event in backend.follow(info.address)]

    return asyncio.run(asyncio.wait_for(all_of_it(), LIMIT))


def test_what_is_known_of_a_pool_may_be_read_on_the_loop_that_waits_to_send_a_job_again():
    async def read():
        return LAB

    sent = Sent(job(), BEFORE, lambda times, attempt: AFTER)
    going = sent.go_on(BEFORE, Plan(2, time.time()), [], lambda: loop.run(read(), 1.0))

    assert loop.start(going).result(LIMIT)
    assert sent.taken is AFTER


def of_pool():
    return TurnBackend(cast("Any", Pool()))


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
    assert backend.info(first.address) is not first  # made of what the pool knows


def test_a_job_that_is_over_is_kept_no_longer_though_nobody_follows_it(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *asked: inner)
    backend, info = TurnBackend(cast("Any", Pool([taken(5, 100.0, "c1"), *ran(5, 150.0)]))), job()
    backend.sent(info, BEFORE, lambda times, attempt: AFTER)
    assert backend.snapshot(info.address).phase is Phase.SUCCEEDED

    for number in range(100):
        backend.sent(job(f"d{number}"), BEFORE)
    assert backend.info(info.address) is not info


@pytest.mark.parametrize("deadline", [None, 600, 30])
def test_a_deadline_counts_for_each_attempt_of_a_pools_job_and_ends_no_retries(deadline):
    sent = Sent(job(deadline_s=deadline), BEFORE, lambda times, attempt: AFTER)
    view = sent.view("c1")
    facts = [fact for event in LOST for fact in view.take(event)]

    plan = sent.plan([*facts, *view.last])
    assert plan is not None
    assert plan.attempt == 2
    assert plan.at == pytest.approx(150.4)


def test_a_job_that_is_cancelled_between_two_attempts_is_so_whoever_asks_and_whenever(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *asked: inner)
    backend, info = of_pool(), job()
    backend.sent(info, BEFORE, lambda times, attempt: AFTER)
    backend.cancel(info.address)

    asked = [backend.snapshot(info.address)]
    asked += [reduce(apply, followed(backend, info), JobState(info)) for _ in range(2)]
    assert [state.phase for state in [*asked, backend.snapshot(info.address)]] == [Phase.CANCELLED] * 4


def test_one_that_failed_for_good_before_it_was_cancelled_has_failed(monkeypatch):
    monkeypatch.setattr(backends_turns, "able", lambda inner, *asked: inner)
    backend, info = of_pool(), replace(job(), spec=JobSpec(Elastic(nnodes=2)).to_json(), retry_owner="")
    backend.sent(info, BEFORE, lambda times, attempt: AFTER)
    backend.cancel(info.address)

    assert backend.snapshot(info.address).phase is Phase.FAILED
    assert reduce(apply, followed(backend, info), JobState(info)).phase is Phase.FAILED


def test_who_follows_a_job_again_once_it_is_over_hears_of_all_its_attempts():
    backend, info = of_pool(), job()

    def again(times, attempt):
        second = [taken(7, 160.0, turns.again("c1", times)), *ran(7, 160.5)]
        lab = backend.inner.known(info.address)
        backend.inner.told += second
        return Taken(lab, 7, Since(None, None))

    backend.sent(info, BEFORE, again)
    first, second = (reduce(apply, followed(backend, info), JobState(info)) for _ in range(2))

    assert (first.phase, first.tries) == (second.phase, second.tries) == (Phase.SUCCEEDED, 2)
    assert [attempt.number for attempt in second.attempts] == [1, 2]
