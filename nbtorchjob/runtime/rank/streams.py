"""A rank's stdout and stderr, in one file and in one order.

Both go through one buffer that a thread flushes 50 times a second: writing each line through costs
a system call a line, which makes a chatty rank several times slower; writing 8 KiB blocks, Python's
way with files, would keep a quiet rank's lines from the notebook for minutes.

The same thread writes down beside the log how long it was by when, so that the log itself stays what was
printed: a line "OFFSET SECONDS" in `<log>.times` says that all before that byte was written by then. What
has no such line yet was written when the log's file was last changed.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import stat
import sys
import threading
import time
from typing import Any, Optional, Tuple, cast

FLUSH_S = 0.02
TIMES = ".times"  # what the name of a log's file has behind it where its times are
BUFFER = 1 << 16
_FILE = cast("type", io.IOBase.__base__)  # in C: one look at its ABC takes ten times as long


class _Stderr(io.TextIOWrapper):
    """Keeps its place among the lines of stdout, which holds text back to write it in blocks."""

    def write(self, text: str) -> int:
        sys.stdout.flush()
        return super().write(text)


def redirect(path: str, *, at_once: bool = False, timed: bool = True) -> "Flusher":
    """Send this process's stdout and stderr to the end of the file at ``path``; return what flushes them.

    stdin is opened anew: multiprocessing has closed it. ``at_once`` is as Python's -u. Times are written
    down where it is ``timed``.
    """
    point(path)
    file = io.FileIO(1, "w", closefd=False)
    raw: Any = file if at_once else io.BufferedWriter(file, BUFFER)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = out = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=at_once)
    # Python's own way: what is said on stderr is out at the end of each line, whatever comes then.
    sys.stderr = _Stderr(raw, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, "__%s__" % name, getattr(sys, name))
    flusher = Flusher(out, Clock(path + TIMES) if timed else None)
    flusher.start()
    return flusher


def point(path: str) -> None:
    """Have all that is written to stdout and stderr go to the end of the file at ``path``."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target in (1, 2):
        os.dup2(fd, target)
        os.set_inheritable(target, True)
    if fd > 2:  # else one of them was closed, and this is it
        os.close(fd)


def read_time(line: bytes) -> Optional[Tuple[int, float]]:
    """Return what a line says that stands beside a log: all before that offset was written by then."""
    offset, _, at = line.partition(b" ")
    try:
        return int(offset), float(at)
    except ValueError:  # half a line from when the disk was full
        return None


class Clock:
    """Writes down beside a log how long it is by now."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1  # opened once there is something to write down
        self._size = 0

    def turn_to(self, path: str) -> "Clock":
        """Return one for another log in this one's place; the user's code may have closed its file."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
                os.close(self._fd)
        return Clock(path + TIMES)

    def tick(self) -> None:
        """Write down how long it is, if that has changed."""
        # The file is asked: what libraries and child processes write goes past Python's buffer.
        size = os.fstat(1).st_size
        if size > self._size:
            self._size = size
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
            os.write(self._fd, b"%d %.3f\n" % (size, time.time()))


class Flusher:
    """Flushes in the background, also in the processes that a rank forks (DataLoader's workers).

    A fork while a flush holds the buffer's lock would leave the child with a lock nobody opens.
    """

    def __init__(self, out: io.TextIOWrapper, clock: Optional[Clock]) -> None:
        self._out = out
        self.clock = clock
        self.lock = threading.Lock()
        self._pause = threading.Event()
        self._every = self._waits = FLUSH_S
        os.register_at_fork(
            before=self._before, after_in_parent=self.lock.release, after_in_child=self._in_child
        )

    def start(self) -> None:
        """Begin in this process."""
        threading.Thread(target=self._run, daemon=True, name="flush").start()

    def pace(self, every: float) -> None:
        """Flush so often, in seconds, from now on, or from the next time on where that is less often."""
        self._every = every
        if every < self._waits:
            self._pause.set()

    def _before(self) -> None:
        self.lock.acquire()
        self._flush()  # else the child would write the same text again

    def _in_child(self) -> None:
        self.lock.release()
        self.clock = None  # one is enough: it sees what all of them write
        self._pause, self._every = threading.Event(), FLUSH_S
        self.start()

    def _run(self) -> None:
        # The user's code may block signals and wait for them: none may come here instead.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            self._waits = self._every  # said before it is read once more: who sets it meanwhile asks for this
            if self._pause.wait(self._every):
                self._pause.clear()
            with self.lock:
                if not self._flush():
                    return

    def _flush(self) -> bool:
        try:
            self._out.flush()
            if self.clock is not None:
                self.clock.tick()
        except ValueError:  # closed at exit
            return False
        except OSError:  # the disk is full: who writes next meets that too, and may find room again
            pass
        return True


def flush() -> None:
    """Write out what is buffered."""
    for stream in (sys.stdout, sys.stderr):
        try:
            cast("io.TextIOWrapper", stream).flush()
        except (ValueError, OSError):
            pass


def flush_files() -> None:
    """Write out what the program's open files hold back, as Python does as it ends.

    Only plain files: to write to anything else may wait for who reads there.
    """
    for each in gc.get_objects():
        if issubclass(type(each), _FILE):  # a proxy's __class__ may be anything
            try:
                if stat.S_ISREG(os.fstat(each.fileno()).st_mode):
                    each.flush()
            except Exception:  # closed, without a file, on a full disk; or a class of the user's
                pass
