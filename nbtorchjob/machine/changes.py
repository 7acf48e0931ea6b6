"""Word from the system that a file was written to, for who else would have to look again and again."""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import os
from contextlib import suppress
from pathlib import Path

_MODIFIED = 2  # of Linux's inotify


class Changes:
    """Tells of writes to a file, by Linux's inotify; to be made and closed in a running event loop.

    Where there is no such thing, or no more of it, or another machine writes, nobody is told: who waits sets
    a limit, and looks.
    """

    def __init__(self, path: Path) -> None:
        self._written = asyncio.Event()
        self._fd = _watch(path)
        if self._fd >= 0:
            try:
                asyncio.get_running_loop().add_reader(self._fd, self._read)
            except NotImplementedError:  # an event loop without files
                self.close()

    @property
    def notified(self) -> bool:
        """Whether the kernel notifies it of writes, as far as this machine's processes make them."""
        return self._fd >= 0

    async def wait(self, seconds: float) -> None:
        """Wait until the file was written to since the last wait began, ``seconds`` at most."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._written.wait(), seconds)
        self._written.clear()

    def close(self) -> None:
        """Watch no longer."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            loop = asyncio.get_running_loop()
            with suppress(NotImplementedError):
                loop.remove_reader(fd)
            with suppress(RuntimeError):  # where this process ends, that closes it
                # The kernel takes 10 ms and more (6.18). The loop's executor can't begin as a process ends;
                # to start a Thread would be to wait, with the loop, until it runs.
                _thread.start_new_thread(os.close, (fd,))

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._fd, 1 << 16)
        self._written.set()


def _watch(path: Path) -> int:
    """Return a file that can be read once ``path`` was written to; -1 where there can be none."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        return -1
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return -1
    return descriptor
