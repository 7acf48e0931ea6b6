"""A rank's stdout and stderr, in one file and in one order.

Both go through one buffer that a thread flushes 50 times a second: writing each line through costs
a system call a line, which makes a chatty rank several times slower; writing 8 KiB blocks, Python's
way with files, would keep a quiet rank's lines from the notebook for minutes.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import cast

FLUSH_S = 0.02
BUFFER = 1 << 16


class _Stderr(io.TextIOWrapper):
    """Keeps its place among the lines of stdout, which holds text back to write it in blocks."""

    def write(self, text: str) -> int:
        sys.stdout.flush()
        return super().write(text)


def redirect(path: str) -> None:
    """Send this process's stdout and stderr to the end of the file at ``path``, for good."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    raw = io.BufferedWriter(io.FileIO(1, "w", closefd=False), BUFFER)
    sys.stdout = out = io.TextIOWrapper(raw, "utf-8", "backslashreplace")
    sys.stderr = _Stderr(raw, "utf-8", "backslashreplace", write_through=True)
    threading.Thread(target=_keep_flushing, args=(out,), daemon=True, name="flush").start()


def _keep_flushing(out: io.TextIOWrapper) -> None:
    pause = threading.Event()
    while not pause.wait(FLUSH_S):
        try:
            out.flush()
        except (ValueError, OSError):  # closed at exit, or the disk is full: the writer meets that too
            return


def flush() -> None:
    """Write out what is buffered."""
    for stream in (sys.stdout, sys.stderr):
        try:
            cast("io.TextIOWrapper", stream).flush()
        except (ValueError, OSError):
            pass
