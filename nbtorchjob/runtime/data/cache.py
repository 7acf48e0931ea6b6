"""The cache of fetched data on a host or a volume: what is in use, and what makes room for new data.

Data lies in a folder whose name follows from its source and its version (``place``); it gets that name once
it is complete. Beside it are

    NAME.partial    what has been fetched so far
    NAME.lock       held by the process that fetches it; says what it is
    NAME.used       a lock that its users share while their nodes live; its time is when the last use began

Data is removed only under both locks. So data that a job uses stays, and data that a killed node used is
free. On a file system without locks nothing is removed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Callable, Iterator, List, NamedTuple, Optional

UNUSED_S = 30 * 24 * 3600.0  # after which data is removed
SHARE = 0.5  # of its disk that a cache takes at most
_LOOK_S = 0.2
_LOCK, _USED, _PARTIAL = ".lock", ".used", ".partial"
# A cache may be named where other files are, and some tools have folders with locks beside them, too.
_IS_LOCK = re.compile(r"([0-9a-f]{32})\.lock").fullmatch
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


class Entry(NamedTuple):
    """Data in the cache; ``used`` is when a job last began to use it, in seconds since the epoch."""

    path: str
    where: str
    size: int
    used: float


def place(cache: str, where: str, version: str) -> str:
    """Return the path of a version of some data in a cache, once it is complete."""
    key = "\n".join((where, version))
    return os.path.join(cache, hashlib.sha256(key.encode()).hexdigest()[:32])


def partial(path: str) -> str:
    """Return where data lies until it is complete."""
    return path + _PARTIAL


def use(path: str) -> Optional[IO[str]]:
    """Return a file that keeps data from being removed until it is closed; None if there is no such data."""
    if not os.path.isdir(path):
        return None
    try:
        file = _open_locked(path + _USED, fcntl.LOCK_SH)
    except OSError:  # a cache that can't be written to, or without locks: nothing is removed there
        return open(os.devnull) if os.path.isdir(path) else None
    if not os.path.isdir(path):
        file.close()
        return None
    with suppress(OSError):
        os.utime(file.fileno())
    return file


@contextmanager
def alone(path: str, waits: Callable[[], None]) -> Iterator[IO[str]]:
    """Be the only process on this host, or volume, that fetches some data; raises ``OSError`` without locks.

    ``waits`` is called once if another process is fetching it.
    """
    with _open_locked(path + _LOCK, fcntl.LOCK_EX, waits) as file:
        yield file


def _open_locked(path: str, how: int, waits: Callable[[], None] = lambda: None) -> IO[str]:
    """Open and lock a file that the previous holder of the lock may have removed."""
    announced = False
    while True:
        try:
            file = open(path, "a+")  # noqa: SIM115 - whoever asked closes it
        except PermissionError:  # another user's: reading it is enough for a shared lock
            if how != fcntl.LOCK_SH:
                raise
            file = open(path)  # noqa: SIM115 - as above
        try:
            while not _lock(file, how):
                if not announced:
                    announced = True
                    waits()
                time.sleep(_LOOK_S)
            if _is_at(file, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[str], path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def describe(file: IO[str], where: str, size: int) -> None:
    """Write into an exclusive lock which data it is for."""
    file.seek(0)
    file.truncate()
    json.dump({"where": where, "size": size}, file)
    file.flush()


def entries(cache: str) -> List[Entry]:
    """Return the data in a cache, even if only partly fetched, longest unused first."""
    try:
        names = os.listdir(cache)
    except FileNotFoundError:
        return []
    entries = []
    for path in (os.path.join(cache, match.group(1)) for match in map(_IS_LOCK, names) if match):
        with suppress(OSError):  # it may be removed meanwhile
            with open(path + _LOCK) as file:
                used = os.fstat(file.fileno()).st_mtime
                text = file.read()
                try:
                    record = json.loads(text)
                    where, size = str(record["where"]), int(record["size"])
                except (ValueError, KeyError, TypeError):  # truncated, or not one of ours
                    where, size = "", 0
            if os.path.isdir(partial(path)):
                size = folder_size(partial(path))
            with suppress(FileNotFoundError):
                used = max(used, os.stat(path + _USED).st_mtime)
            entries.append(Entry(path, where, size, used))
    return sorted(entries, key=lambda entry: entry.used)


def is_idle(entry: Entry) -> bool:
    """Return whether nothing uses or fetches some data."""
    used = entry.path + _USED
    return _alone_with([used] if os.path.exists(used) else [], entry, lambda: None)


def remove(entry: Entry) -> bool:
    """Remove data unless something uses or fetches it; return whether it is gone."""

    def do() -> None:
        for folder in (entry.path, partial(entry.path)):
            # Remove a folder whose contents are read-only
            if os.path.isdir(folder):
                # From here on it is incomplete.
                doomed = folder if folder.endswith(_PARTIAL) else partial(folder)
                if doomed != folder:
                    os.chmod(folder, 0o755)
                    os.rename(folder, doomed)
                for at, _, _ in os.walk(doomed):
                    with suppress(OSError):
                        os.chmod(at, 0o755)
                shutil.rmtree(doomed)
        for end in (_USED, _LOCK):
            os.unlink(entry.path + end)

    return _alone_with([entry.path + _USED], entry, do)


def _alone_with(used: List[str], entry: Entry, do: Callable[[], None]) -> bool:
    """Call ``do`` while nothing uses or fetches some data; return whether that was possible."""
    try:
        with ExitStack() as files:
            for path in (*used, entry.path + _LOCK):
                file = files.enter_context(open(path, "a"))
                if not _lock(file, fcntl.LOCK_EX) or not _is_at(file, path):
                    return False
            do()
    except OSError:
        return False
    return True


def trim(cache: str, needs: int, now: float) -> List[Entry]:
    """Remove long-unused data, and the longest unused of the rest until there is room for ``needs`` bytes.

    There is room if the disk has it, and the cache stays within its share. Returns what was removed for room:
    nothing if even removing all of it wouldn't be enough.
    """
    left, removed_entries = [], []
    for entry in entries(cache):
        if now - entry.used <= UNUSED_S or not remove(entry):
            left.append(entry)
    total = sum(entry.size for entry in left)
    if needs > shutil.disk_usage(cache).free + total:
        return []
    for entry in left:
        disk = shutil.disk_usage(cache)
        if needs <= disk.free and total + needs <= SHARE * disk.total:
            break
        if remove(entry):
            total -= entry.size
            removed_entries.append(entry)
    return removed_entries


def folder_size(folder: str) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for at, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(at, file)).st_size
    return total
