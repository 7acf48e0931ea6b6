"""The only bridge between blocking code and the event loop, and changes of files that the loop awaits.

A notebook's own loop runs on the kernel's main thread and stands still while a cell blocks, so jobs
are followed on a loop of our own, in a thread that lives as long as the process. On it, inotify reports
writes to files, so that they needn't be polled.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import concurrent.futures
import ctypes
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from nbtorchjob.machine.interrupts import Once

# Not ``asyncio.wait_for``: before Python 3.12, a task that is cancelled just as its wait succeeds goes on.
if sys.version_info >= (3, 11):
    from asyncio import timeout as timeout
else:
    from async_timeout import timeout as timeout

T = TypeVar("T")
_END_S = 3.0  # for work still on the loop when the process ends


def start(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run ``work`` on the background loop; the future can be waited for and cancelled anywhere."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def run(work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run ``work`` on the background loop and wait for it; an interrupt cancels it, whenever it comes.

    It is also cancelled after ``timeout`` seconds, with ``TimeoutError``.
    """
    task: asyncio.Task[T] | None = None

    def begin() -> None:
        nonlocal task
        task = asyncio.ensure_future(work)
        task.add_done_callback(note)

    def note(done: asyncio.Task[T]) -> None:
        if done.cancelled():  # reported as a future does: asyncio's own error is no Exception
            over.fail(concurrent.futures.CancelledError())
        elif (error := done.exception()) is not None:
            over.fail(error)
        else:
            over.bring(done.result())

    def stop() -> None:
        if task is None:  # and it won't begin any more: the loop runs callbacks in order
            work.close()
        else:
            task.cancel()

    try:
        over = Once[T]()
        _loop().call_soon_threadsafe(begin)
        if not over.wait(timeout):
            raise TimeoutError(f"not done after {timeout} s")
    except (KeyboardInterrupt, TimeoutError):
        _loop().call_soon_threadsafe(stop)
        raise
    return over.result()


async def all_or_nothing(
    making: Coroutine[Any, Any, T],
    undo: Callable[[], Awaitable[None]],
    stop: Callable[[], None] = lambda: None,
) -> T:
    """Return what ``making`` returns; if it fails, or this is cancelled, ``undo`` what it has made."""
    # Never cancelled: a thread only ends by itself, and it is unknown what a cancelled request has made.
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except BaseException:
        stop()

        async def undone() -> None:
            await asyncio.gather(task, return_exceptions=True)
            await undo()

        await asyncio.shield(undone())
        raise


def call_soon(callback: Callable[[], object]) -> None:
    """Call ``callback`` on the background loop's thread; it must not block."""
    _loop().call_soon_threadsafe(callback)


def at_end(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Await ``close`` on the background loop when the process ends, once all work was cancelled."""
    _closing.append(close)


_closing: list[Callable[[], Coroutine[Any, Any, None]]] = []


_making = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _making:  # the cache alone would give two threads that are first together a loop each
        return _cached_loop()


@lru_cache(maxsize=1)
def _cached_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def serve() -> None:
        threading.current_thread().name = "nbtorchjob"
        loop.run_forever()

    # ``Thread.start`` waits with a lock that is taken in Python code: see ``interrupts``.
    _thread.start_new_thread(serve, ())
    atexit.register(_end, loop)
    return loop


def _end(loop: asyncio.AbstractEventLoop) -> None:
    async def wind_up() -> None:
        work = asyncio.all_tasks() - {asyncio.current_task()}
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for close in _closing:
            await close()

    # Else asyncio complains on the user's terminal about every job that is still followed.
    with suppress(concurrent.futures.TimeoutError):
        asyncio.run_coroutine_threadsafe(wind_up(), loop).result(_END_S)


_of_parents: list[object] = []


def _begin_anew() -> None:
    """Let a fork make a loop of its own: the thread that serves this one exists only in the parent."""
    global _making
    atexit.unregister(_end)
    if _cached_loop.cache_info().currsize:
        # Kept: asyncio complains on the user's terminal about objects that are deleted unclosed.
        _of_parents.extend((_cached_loop(), *_closing))
    _cached_loop.cache_clear()
    _closing.clear()
    _making = threading.Lock()  # a thread that the fork doesn't have may hold it


os.register_at_fork(after_in_child=_begin_anew)


_MODIFIED = 2  # of Linux's inotify


class Changes:
    """Reports writes to a file, by Linux's inotify; to be made and closed in a running event loop.

    Without inotify, beyond its limits, or if another machine writes, nothing is reported: callers wait for a
    limited time, and look.
    """

    def __init__(self, path: Path) -> None:
        self._change = asyncio.Event()
        # A descriptor that is readable once ``path`` was written to; -1 if there can be none
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "inotify_init1"):
            self._fd = -1
        else:
            descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
                os.close(descriptor)
                self._fd = -1
            else:
                self._fd = descriptor
        if self._fd >= 0:
            try:
                asyncio.get_running_loop().add_reader(self._fd, self._read)
            except NotImplementedError:  # an event loop that can't watch files
                self.close()

    @property
    def notified(self) -> bool:
        """Whether the kernel notifies it of writes that this machine's processes make."""
        return self._fd >= 0

    async def wait(self, seconds: float) -> None:
        """Wait until the file has been written to since the last wait, ``seconds`` at most."""
        with suppress(asyncio.TimeoutError):
            async with timeout(seconds):
                await self._change.wait()
        self._change.clear()

    def close(self) -> None:
        """Stop watching."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            loop = asyncio.get_running_loop()
            with suppress(NotImplementedError):
                loop.remove_reader(fd)
            with suppress(RuntimeError):  # if this process is ending, that closes it
                # Closing takes the kernel 10 ms and more (6.18). The loop's executor can't start as a process
                # ends; starting a Thread would block the loop until it runs.
                _thread.start_new_thread(os.close, (fd,))

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 1 << 16)
        self._change.set()
