"""One fact, one line: how a node and its ranks report events.

Each event is one ``write`` of one JSON line to a file opened with O_APPEND, so the lines of all
processes of a job stay whole (Linux appends a write to a local file atomically).
"""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any, Dict, Set, Tuple

EVENTS = "NBTORCHJOB_EVENTS"
LONGEST_FACT = 1 << 20  # bytes of an event's JSON: no event is longer

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

# The user's code may close any descriptor, and its number may then be that of a file of its own.
_files: Dict[str, Tuple[int, os.stat_result]] = {}
_torn: Set[str] = set()  # files in which a full disk may have left half a line


def emit(event: str, **fields: Any) -> None:
    """Append an event (a class name of ``state/facts/events.py``) to the job's event file, if any."""
    path = os.environ.get(EVENTS)
    if path:
        fields.setdefault("time", time.time())
        append(path, {"event": event, **fields})


def append(path: str, record: Dict[str, Any], *, once: bool = False) -> None:
    """Append one record to ``path``; on a full disk, free the job's ballast file for it.

    The file stays open for the next record, unless it is written ``once``: for a process that writes to the
    files of many jobs, a path may later belong to another job than the deleted one.
    """
    if once:
        fd = os.open(path, APPEND, 0o600)
        try:
            _write(fd, path, record)
        finally:
            os.close(fd)
        return
    if not _is_open(path):
        # A pipe that was put in its place mustn't block the writer.
        fd = os.open(path, APPEND, 0o600)
        _files[path] = fd, os.fstat(fd)
    _write(_files[path][0], path, record)


def _is_open(path: str) -> bool:
    try:
        fd, opened = _files[path]
        return os.path.samestat(os.fstat(fd), opened)
    except (KeyError, OSError):
        return False


def _write(fd: int, path: str, record: Dict[str, Any]) -> None:
    line = json.dumps(record).encode() + b"\n"
    if path in _torn:
        line = b"\n" + line
    try:
        if os.write(fd, line) == len(line):
            _torn.discard(path)
            return
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    _torn.add(path)
    # The last words of a job still fit on a full disk: a ballast file beside this one reserves room for them.
    try:
        os.unlink(os.path.join(os.path.dirname(path), "ballast"))
    except FileNotFoundError:
        pass
    # A write into the file's last page may have left half a line: start on a fresh one.
    line = b"\n" + line
    if os.write(fd, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    _torn.discard(path)


def tear() -> None:
    """Begin the next fact on a new line, as another process may have left half a line."""
    _torn.add(os.environ.get(EVENTS, ""))
