"""A rank's stdout and stderr, in one file and in one order.

Both go through buffers that a thread flushes 50 times a second: writing each line through costs
a system call a line, which makes a chatty rank several times slower; writing 8 KiB blocks, Python's
way with files, would keep a quiet rank's lines from the notebook for minutes.

An index beside the log tells when, and to which of the two, each byte was written (``store/stream.py``).
"""

from __future__ import annotations

import contextlib
import errno
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
_FILE: Any = io.IOBase.__base__  # the class in C: a check of its ABC takes ten times as long


class _Stderr(io.TextIOWrapper):
    """Flushes stdout, which is written in blocks, before each write, so that lines keep their order."""

    def write(self, text: str) -> int:
        _flush(sys.stdout)
        return super().write(text)


class _Raw(io.FileIO):
    """One of the two streams; updates the index after each write.

    ``earlier`` is the other stream, flushed before each write: it may hold back half a line.
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
    """Send this process's stdout and stderr to the end of the file at ``path``; return their flusher.

    stdin is opened anew: multiprocessing has closed it. ``at_once`` is like Python's -u.
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
    # As in Python itself, stderr is written out at the end of each line, whatever happens next.
    sys.stderr = _Stderr(err, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, "__%s__" % name, getattr(sys, name))
    _flusher = Flusher(sys.stdout, err, index)
    _flusher.start()
    return _flusher


class LogIndex:
    """Directs both streams to the end of a log, and writes the log's index.

    Each stream has its own open file of the log, whose position is where its last write ended (O_APPEND),
    whether Python, a C library or a child process wrote. So new bytes since the last check went to the stream
    whose position moved. If both moved, the one at the lower position wrote first: that is exact for all
    that Python writes, and may swap what a library and a child write within ``FLUSH_S``.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._files: Tuple[int, ...] = ()
        self._index = -1  # opened once there is something to write
        self._stopped = False
        self._open(path)

    def _open(self, path: str) -> None:
        self._path = path
        # Kept besides the descriptors 1 and 2, which the user's code may redirect for a while.
        self._files = (_opened(path), _opened(path))
        for target, file in enumerate(self._files, 1):
            os.dup2(file, target)
            os.set_inheritable(target, True)
        self._end = os.fstat(1).st_size
        self._marked = self._end  # the index covers the log up to here
        self._stderr = False  # whether the bytes after that went to stderr

    def turn_to(self, path: str) -> None:
        """Direct all further output to another log."""
        try:
            self.tick()
        except OSError as exc:  # the user's code may have closed its files
            if exc.errno != errno.EBADF:
                raise
        with self._lock:
            for file, name in zip((*self._files, self._index), (self._path, self._path, self._path + TIMES)):
                with contextlib.suppress(OSError):  # the user's code may have closed it, and opened another
                    if os.path.samestat(os.fstat(file), os.stat(name)):
                        os.close(file)
            self._index = -1
            self._open(path)

    def stop(self) -> None:
        """Leave the index to the process that this one was forked from, which sees what both write."""
        self._stopped = True

    def look(self) -> None:
        """Check which streams were written to."""
        if self._stopped or not self._lock.acquire(False):  # in a signal handler, or another thread
            return
        try:
            self._look()
        except OSError:  # the user's code closed them; or the disk is full
            pass
        finally:
            self._lock.release()

    def tick(self) -> None:
        """Check the streams, and write the index."""
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
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)  # a standard stream was closed, and this got its number
    os.close(fd)
    return moved


class Flusher:
    """Flushes in the background, also in the processes that a rank forks (DataLoader's workers).

    A fork while a flush holds the buffer's lock would leave the child with a lock that is never released.
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
        """Flush at that interval in seconds: from now on, or after the next flush if that is less often."""
        self._every = every
        if every < self._waits:
            self._pause.set()

    def _run(self) -> None:
        # The user's code may block signals and wait for them: this thread must not receive them instead.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            self._waits = self._every  # set before `_every` is read again: `pace` compares with it
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
        except OSError:  # the disk is full: the next write fails too, or finds room again
            pass
        return True


_flusher: Optional["Flusher"] = None  # this process's


def _flush(stream: Any) -> None:
    # The program may have closed it, or replaced it by None or by a class of its own.
    with contextlib.suppress(Exception):
        stream.flush()


def flush() -> None:
    """Write out buffered output, and the index."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    if _flusher is not None:
        with contextlib.suppress(OSError):
            _flusher.index.tick()


def say(text: str) -> None:
    """Write to stderr, or to the log if the program has replaced stderr by something that fails."""
    try:
        sys.stderr.write(text)
    except Exception:
        os.write(2, text.encode(errors="backslashreplace"))


def flush_files() -> None:
    """Flush the program's open files, as Python does when it exits.

    Only plain files: writing to anything else may wait for a reader.
    """
    for obj in gc.get_objects():
        if issubclass(type(obj), _FILE):  # a proxy's __class__ may be anything
            try:
                if stat.S_ISREG(os.fstat(obj.fileno()).st_mode):
                    obj.flush()
            except Exception:  # closed, without a file, on a full disk; or a class of the user's
                pass
