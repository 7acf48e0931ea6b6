"""Blocking work beside the server's event loop, which serves everybody's kernels and files.

Each lane runs a limited number at once, so that a cluster that hangs delays neither this machine nor
another cluster, and doesn't start endless threads. Requests that wait for room hold no thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar
from weakref import WeakValueDictionary

from nbtorchjob.errors import NoAnswerError

T = TypeVar("T")


class Lanes:
    """Runs work for at most ``patience`` seconds a call, ``width`` at a time in each lane."""

    def __init__(self, patience: float, width: int) -> None:
        self._patience = patience
        self._width = width
        # A lane exists only while it is used: a URL may name any.
        self._room: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, lane: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises; ``NoAnswerError`` if it takes too long.

        Work that gets no room in time is never begun; once begun, it keeps its room until it ends.
        """
        room = self._room.setdefault(lane, asyncio.Semaphore(self._width))
        try:
            return await asyncio.wait_for(self._run(room, work), self._patience)
        except asyncio.TimeoutError:  # the builtin one only from Python 3.11 on
            raise NoAnswerError(
                f"{lane} hasn't answered within {self._patience:g} s; the request may still take effect: "
                "look again in a while"
            ) from None

    async def _run(self, room: asyncio.Semaphore, work: Callable[[], T]) -> T:
        await room.acquire()
        loop, done = asyncio.get_running_loop(), _start(work)

        def leave(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the server has stopped, and its loop is closed
                loop.call_soon_threadsafe(room.release)

        done.add_done_callback(leave)
        return await asyncio.wrap_future(done)


def _start(work: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()
    # Else a request that gives up would cancel it, and release the room that its thread still takes.
    done.set_running_or_notify_cancel()
    # No ThreadPoolExecutor: Python waits for its threads at exit, and so for a cluster that hangs.
    threading.Thread(target=_finish, args=(done, work), name="nbtorchjob-server", daemon=True).start()
    return done


def _finish(done: Future[T], work: Callable[[], T]) -> None:
    try:
        found = work()
    except BaseException as exc:
        done.set_exception(exc)
    else:
        done.set_result(found)
