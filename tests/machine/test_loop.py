"""The one background loop, whoever comes to it first, and work on it that somebody waits for."""

import asyncio
import concurrent.futures
import itertools
import signal
import subprocess
import threading

import pytest

from nbtorchjob.machine import loop
from nbtorchjob.machine.loop import Once
from tests.interrupting import Interrupting
from tests.patience import LIMIT
from tests.programs import program


def test_threads_that_come_first_together_share_one_loop():
    done = subprocess.run(program("together"), capture_output=True, text=True, timeout=LIMIT, check=True)

    assert done.stdout.split() == ["16", "1"]


def test_an_interrupt_of_the_first_use_is_an_interrupt_and_leaves_the_loop_usable():
    argv = program("interrupted", python=("-W", "ignore"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT)

    # What was interrupted as it was made may complain as it is deleted, which ends nothing.
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_an_interrupt_cancels_the_work_also_before_anybody_waits_for_it():
    main, ended = threading.get_ident(), threading.Event()

    async def work():
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.sleep(LIMIT)
        finally:
            ended.set()

    for _ in range(50):
        with pytest.raises(KeyboardInterrupt):
            loop.run(work())
        assert ended.wait(LIMIT)
        ended.clear()


def test_an_interrupt_leaves_the_loop_to_others_whenever_it_comes():
    async def work():
        return 1

    for moment in itertools.count():
        begins = work()
        with Interrupting(moment) as there:
            loop.run(begins)
        got = list[int]()
        if moment == 0:  # before anything else
            begins.close()
        other = threading.Thread(target=lambda got=got: got.append(loop.run(work())), daemon=True)
        other.start()
        other.join(LIMIT)

        assert got == [1], moment
        if not there.interrupted:
            break
    assert moment > 20


def test_work_that_is_cancelled_says_so_as_a_future_does():
    async def work():
        raise asyncio.CancelledError

    with pytest.raises(concurrent.futures.CancelledError):
        loop.run(work())


def test_work_that_takes_too_long_is_cancelled():
    ended = threading.Event()

    async def work():
        try:
            await asyncio.sleep(LIMIT)
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match=r"not done after 0\.01 s"):
        loop.run(work(), 0.01)
    assert ended.wait(LIMIT)


def test_it_is_waited_for_until_it_comes():
    once, got = Once[int](), list[bool]()
    waiters = [threading.Thread(target=lambda: got.append(once.wait(LIMIT))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    assert not once.wait(0)
    assert not once.come
    once.bring(7)
    for waiter in waiters:
        waiter.join()

    assert got == [True] * 4
    assert once.come
    assert once.wait()
    assert once.result() == 7


def test_an_error_that_comes_is_raised():
    once = Once[int]()
    once.fail(ValueError("no"))

    assert once.wait(0)
    with pytest.raises(ValueError, match="no"):
        once.result()


def test_each_callback_is_called_once():
    once, called = Once[int](), list[str]()
    once.then(lambda: called.append("before"))
    once.bring(1)
    once.then(lambda: called.append("after"))

    assert called == ["before", "after"]


def test_who_stops_waiting_leaves_nothing_behind():
    once = Once[int]()
    for _ in range(10):
        assert not once.wait(0)

    assert not once._callbacks


def test_an_interrupt_keeps_nobody_from_bringing_it_whenever_it_comes():
    for moment in itertools.count():
        once = Once[int]()
        with Interrupting(moment) as there:
            once.wait(0)
        bringer = threading.Thread(target=once.bring, args=(moment,), daemon=True)
        bringer.start()
        bringer.join(LIMIT)

        assert not bringer.is_alive(), moment
        assert once.wait(LIMIT)
        assert once.result() == moment
        if not there.interrupted:
            break
    assert moment > 10
