"""The background loop, which all threads share, and the work that runs on it."""

import asyncio
import concurrent.futures
import itertools
import os
import signal
import subprocess
import threading

import pytest

from nbtorchjob.machine import folders, loop
from tests.interrupting import Interrupting
from tests.patience import LIMIT
from tests.programs import program


def test_threads_that_come_first_together_share_one_loop():
    done = subprocess.run(program("together"), capture_output=True, text=True, timeout=LIMIT, check=True)

    assert done.stdout.split() == ["16", "1"]


def test_an_interrupt_of_the_first_use_is_an_interrupt_and_leaves_the_loop_usable():
    argv = program("interrupted", python=("-W", "ignore"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT)

    # An object that was interrupted while it was made may complain as it is deleted, which is harmless.
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_a_fork_has_a_loop_of_its_own(tmp_path):
    env, argv = {**os.environ, folders.STATE: str(tmp_path)}, program("forked", python=("-W", "ignore"))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=2 * LIMIT, check=False)

    assert (done.stdout, done.stderr) == ("fork True True\nparent True\n", "")


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


def test_who_is_cancelled_as_what_it_waits_for_comes_is_cancelled():
    async def take(queue):
        while True:
            async with loop.timeout(LIMIT):
                await queue.get()

    async def work():
        queue = asyncio.Queue[str]()
        taking = asyncio.ensure_future(take(queue))
        await asyncio.sleep(0)
        queue.put_nowait("what it waits for")
        taking.cancel()
        await asyncio.wait([taking], timeout=1.0)
        return taking.cancelled()

    assert loop.run(work())


def test_an_interrupt_leaves_the_loop_to_others_whenever_it_comes():
    async def work():
        return 1

    for moment in itertools.count():
        begins = work()
        with Interrupting(moment) as context:
            loop.run(begins)
        got = list[int]()
        if moment == 0:  # interrupted before anything else
            begins.close()
        other = threading.Thread(target=lambda got=got: got.append(loop.run(work())), daemon=True)
        other.start()
        other.join(LIMIT)

        assert got == [1], moment
        if not context.interrupted:
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
