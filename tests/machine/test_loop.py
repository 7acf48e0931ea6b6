"""The one background loop, whoever comes to it first, and work on it that somebody waits for."""

import asyncio
import signal
import subprocess
import threading

import pytest

from nbtorchjob.machine import loop
from tests.patience import LIMIT
from tests.programs import program


def test_threads_that_come_first_together_share_one_loop():
    done = subprocess.run(program("together"), capture_output=True, text=True, timeout=LIMIT, check=True)

    assert done.stdout.split() == ["16", "1"]


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
