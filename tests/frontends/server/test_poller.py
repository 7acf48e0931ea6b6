"""A poller repeats its work while somebody wants it."""

import asyncio

from nbtorchjob.frontends.server.watch import Poller

FOREVER = 3600.0


class Work:
    """Work that a poller repeats; each run lasts until the test lets it end."""

    def __init__(self, every=FOREVER):
        self.begun = asyncio.Queue[str]()
        self.wanted = True
        self.go = asyncio.Event()
        self.go.set()
        self.poller = Poller(self.once, every, lambda: self.wanted)

    async def once(self):
        self.begun.put_nowait("begun")
        await self.go.wait()


async def test_it_is_done_at_once_and_then_waits():
    work = Work()
    work.poller.begin()
    await work.poller.caught_up()
    work.poller.begin()
    await work.poller.caught_up()

    assert work.begun.qsize() == 1
    await work.poller.stop()


async def test_it_is_done_again_after_a_while():
    work = Work(every=0.001)
    work.poller.begin()
    for _ in range(3):
        await work.begun.get()

    await work.poller.stop()


async def test_it_is_done_again_at_once_when_there_is_a_reason():
    work = Work()
    work.poller.begin()
    await work.poller.caught_up()
    work.poller.again()
    assert not work.poller.fresh
    await work.poller.caught_up()

    assert work.begun.qsize() == 2
    await work.poller.stop()


async def test_work_that_began_before_the_reason_does_not_count():
    work = Work()
    work.go.clear()
    work.poller.begin()
    await work.begun.get()
    work.poller.again()
    work.go.set()
    await work.poller.caught_up()

    assert work.begun.qsize() == 1
    await work.poller.stop()


async def test_nobody_wants_it_and_it_ends_until_somebody_does():
    work = Work(every=0.001)
    work.poller.begin()
    await work.poller.caught_up()
    work.wanted = False
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert not work.poller.fresh

    work.wanted = True
    work.poller.begin()
    await work.poller.caught_up()
    assert work.poller.fresh
    await work.poller.stop()


async def test_it_is_stopped_in_the_middle_of_a_round_and_nobody_waits_for_it_any_more():
    work = Work()
    work.go.clear()
    work.poller.begin()
    await work.begun.get()
    waiting = asyncio.create_task(work.poller.caught_up())
    await asyncio.sleep(0)
    await work.poller.stop()
    await work.poller.stop()
    await waiting

    assert not work.poller.fresh
