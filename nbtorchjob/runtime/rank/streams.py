"""A rank's stdout and stderr, in one file and in one order.

Both go through buffers that a thread flushes 50 times a second: writing each line through costs
a system call a line, which makes a chatty rank several times slower; writing 8 KiB blocks, Python's
way with files, would keep a quiet rank's lines from the notebook for minutes.

When and to which of them each byte was written stands in an index beside the log (``store/stream.py``).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import signal
import stat
import sys
import threading
import time
from typing import Any, Optional, Tuple

from nbtorchjob.runtime.store.stream import TIMES, Mark, mark_line

FLUSH_S = 0.02
BUFFER = 1 << 16
_FILE: Any = io.IOBase.__base__  # in C: one look at its ABC takes ten times as long


class _Stderr(io.TextIOWrapper):
    """Keeps its place among the lines of stdout, which holds text back to write it in blocks."""

    def write(self, text: str) -> int:
        _flush(sys.stdout)
        return super().write(text)


class _Raw(io.FileIO):
    """One of the two streams; after each write the index learns of it.

    ``earlier`` has what was written before it: half a line that the other stream holds back.
    """

    def __init__(self, fd: int, index: "LogIndex", earlier: Any = None) -> None:
        super().__init__(fd, "w", closefd=False)
        self._index = index
        self._earlier = earlier

    def write(self, data: Any) -> Any:
        if self._earlier is not None and not self._earlier.closed:
            self._earlier.flush()
        count = super().write(data)
        self._index.look()
        return count


def redirect(path: str, *, at_once: bool = False) -> "Flusher":
    """Send this process's stdout and stderr to the end of the file at ``path``; return what flushes them.

    stdin is opened anew: multiprocessing has closed it. ``at_once`` is as Python's -u.
    """
    global _flusher
    index = LogIndex(path)
    err: Any = _Raw(2, index)
    out: Any = _Raw(1, index)
    if not at_once:
        err = io.BufferedWriter(err, BUFFER)
        out = io.BufferedWriter(_Raw(1, index, err), BUFFER)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(out, "utf-8", "backslashreplace", write_through=at_once)
    # Python's own way: what is said on stderr is out at the end of each line, whatever comes then.
    sys.stderr = _Stderr(err, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, "__%s__" % name, getattr(sys, name))
    _flusher = Flusher(sys.stdout, err, index)
    _flusher.start()
    return _flusher


class LogIndex:
    """Has both streams go to the end of a log, and writes its index.

    Each stream has an open file of its own there, whose position is where its last write ended (O_APPEND),
    whoever wrote: Python, a C library, a child process. So what is new since the last look went to the
    stream whose position moved. Where both moved, the one that is behind wrote first: that is exact for all
    that Python writes, and may swap what a library and a child write within ``FLUSH_S``.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._files: Tuple[int, ...] = ()
        self._index = -1  # opened once there is something to write down
        self._stopped = False
        self._open(path)

    def _open(self, path: str) -> None:
        self._path = path
        # Kept besides 1 and 2, which the user's code may point elsewhere for a while.
        self._files = (_opened(path), _opened(path))
        for target, file in enumerate(self._files, 1):
            os.dup2(file, target)
            os.set_inheritable(target, True)
        self._end = os.fstat(1).st_size
        self._marked = self._end  # up to here it is written down
        self._stderr = False  # whether what isn't went there

    def turn_to(self, path: str) -> None:
        """Have all that is written from now on go to another log."""
        self.tick()
        with self._lock:
            for file, name in zip((*self._files, self._index), (self._path, self._path, self._path + TIMES)):
                with contextlib.suppress(OSError):  # the user's code may have closed it, and opened another
                    if os.path.samestat(os.fstat(file), os.stat(name)):
                        os.close(file)
            self._index = -1
            self._open(path)

    def stop(self) -> None:
        """Leave it to the process that this one was forked from, which sees what both write."""
        self._stopped = True

    def look(self) -> None:
        """See to which streams anything was written."""
        if self._stopped or not self._lock.acquire(False):  # a signal's handler, or another thread, looks
            return
        try:
            self._look()
        except OSError:  # the user's code closed them; or the disk is full
            pass
        finally:
            self._lock.release()

    def tick(self) -> None:
        """Look, and write down what was seen."""
        if self._stopped or not self._lock.acquire(False):
            return
        try:
            # First: a process that opened /dev/stdout by itself moves neither position.
            size = os.fstat(self._files[0]).st_size
            self._look()
            self._note(size, False)
            self._write()
        finally:
            self._lock.release()

    def _look(self) -> None:
        ends = [os.lseek(file, 0, os.SEEK_CUR) for file in self._files]
        for end in sorted(ends):
            self._note(end, end == ends[1])

    def _note(self, end: int, stderr: bool) -> None:
        if end > self._end:
            if stderr is not self._stderr:
                self._write()
            self._end, self._stderr = end, stderr

    def _write(self) -> None:
        if self._end > self._marked:
            if self._index < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._index = os.open(self._path + TIMES, flags, 0o600)
            os.write(self._index, mark_line(Mark(self._end, time.time(), self._stderr)))
            self._marked = self._end


def _opened(path: str) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)  # one of them was closed, and this is it
    os.close(fd)
    return moved


class Flusher:
    """Flushes in the background, also in the processes that a rank forks (DataLoader's workers).

    A fork while a flush holds the buffer's lock would leave the child with a lock nobody opens.
    """

    def __init__(self, out: Any, err: Any, index: LogIndex) -> None:
        self._out, self._err = out, err
        self.index = index
        self.lock = threading.Lock()
        self._pause = threading.Event()
        self._every = self._waits = FLUSH_S

        def before() -> None:
            self.lock.acquire()
            self._flush()  # else the child would write the same text again

        def in_child() -> None:
            self.lock.release()
            self.index.stop()
            self._pause, self._every = threading.Event(), FLUSH_S
            self.start()

        os.register_at_fork(before=before, after_in_parent=self.lock.release, after_in_child=in_child)

    def start(self) -> None:
        """Begin in this process."""
        threading.Thread(target=self._run, daemon=True, name="flush").start()

    def pace(self, every: float) -> None:
        """Flush so often, in seconds, from now on, or from the next time on where that is less often."""
        self._every = every
        if every < self._waits:
            self._pause.set()

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
            if not self._err.closed:
                self._err.flush()
            self.index.tick()
        except ValueError:  # closed at exit
            return False
        except OSError:  # the disk is full: who writes next meets that too, and may find room again
            pass
        return True


_flusher: Optional["Flusher"] = None  # this process's


def _flush(stream: Any) -> None:
    # The program may have closed it, or have put None there, or a class of its own.
    with contextlib.suppress(Exception):
        stream.flush()


def flush() -> None:
    """Write out what is buffered, and the index."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    if _flusher is not None:
        with contextlib.suppress(OSError):
            _flusher.index.tick()


def say(text: str) -> None:
    """Write to stderr, or to the log where the program has put something there that doesn't take it."""
    try:
        sys.stderr.write(text)
    except Exception:
        os.write(2, text.encode(errors="backslashreplace"))


def flush_files() -> None:
    """Write out what the program's open files hold back, as Python does as it ends.

    Only plain files: to write to anything else may wait for who reads there.
    """
    for obj in gc.get_objects():
        if issubclass(type(obj), _FILE):  # a proxy's __class__ may be anything
            try:
                if stat.S_ISREG(os.fstat(obj.fileno()).st_mode):
                    obj.flush()
            except Exception:  # closed, without a file, on a full disk; or a class of the user's
                pass
