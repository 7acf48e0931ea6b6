"""Doing something again and again while somebody wants it."""

import asyncio

from nbtorchjob.frontends.server.updates.poller import Rounds

FOREVER = 3600.0


class Work:
    """Something that is done in rounds, each as long as the test wants."""

    def __init__(self, every=FOREVER):
        self.begun = asyncio.Queue[str]()
        self.wanted = True
        self.go = asyncio.Event()
        self.go.set()
        self.rounds = Rounds(self.round, every, lambda: self.wanted)

    async def round(self):
        self.begun.put_nowait("a round")
        await self.go.wait()


async def test_it_is_done_at_once_and_then_waits():
    work = Work()
    work.rounds.begin()
    await work.rounds.caught_up()
    work.rounds.begin()
    await work.rounds.caught_up()

    assert work.begun.qsize() == 1
    await work.rounds.stop()


async def test_it_is_done_again_after_a_while():
    work = Work(every=0.001)
    work.rounds.begin()
    for _ in range(3):
        await work.begun.get()

    await work.rounds.stop()


async def test_it_is_done_again_at_once_when_there_is_a_reason():
    work = Work()
    work.rounds.begin()
    await work.rounds.caught_up()
    work.rounds.again()
    assert not work.rounds.fresh
    await work.rounds.caught_up()

    assert work.begun.qsize() == 2
    await work.rounds.stop()


async def test_a_round_that_began_before_the_reason_does_not_count():
    work = Work()
    work.go.clear()
    work.rounds.begin()
    await work.begun.get()
    work.rounds.again()
    work.go.set()
    await work.rounds.caught_up()

    assert work.begun.qsize() == 1
    await work.rounds.stop()


async def test_nobody_wants_it_and_it_ends_until_somebody_does():
    work = Work(every=0.001)
    work.rounds.begin()
    await work.rounds.caught_up()
    work.wanted = False
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert not work.rounds.fresh

    work.wanted = True
    work.rounds.begin()
    await work.rounds.caught_up()
    assert work.rounds.fresh
    await work.rounds.stop()


async def test_it_is_stopped_in_the_middle_of_a_round_and_nobody_waits_for_it_any_more():
    work = Work()
    work.go.clear()
    work.rounds.begin()
    await work.begun.get()
    waiting = asyncio.create_task(work.rounds.caught_up())
    await asyncio.sleep(0)
    await work.rounds.stop()
    await work.rounds.stop()
    await waiting

    assert not work.rounds.fresh
