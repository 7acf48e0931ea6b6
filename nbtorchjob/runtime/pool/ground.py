"""The files of a pool's node as they are before the first job, and how they become so again after each.

A job may write anywhere in its container. A fresh pod would show none of that, so what a job has made is
removed when its processes are gone. What it has changed or removed of the image can't be put back: the node
says so and ends, and a fresh pod takes its place.

Only the container's own file systems are looked at: its root and those in memory. What is mounted there, such
as a claim or a host's folder, outlives pods and is left alone. A node that isn't alone in its container, as
where the pod's containers share their processes, looks only where jobs write most: at the temporary folder,
the home and the working folder.

Python itself replaces bytecode of the image that is out of date. That is removed: Python makes it again.

A time of change (``st_ctime``) can't be set by a program, so it tells whether a file is still the image's.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from typing import Container, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

_PROGRAM = b"job.pyz"
_IN_MEMORY = ("/dev/shm", "/tmp", "/var/tmp", "/run")
_BYTECODE = "__pycache__"
_OWN = ("compiled", "mp")  # folders of the node's own that ranks write to
_NAMED = 20  # changed files
_State = Tuple[int, int]  # of a file: its inode, and when it was changed; of a folder its inode alone


class Ground:
    """The files of a node, but for those below ``own``, the node's own folder.

    Nothing is looked at below ``mounted``, where the job's user has mounted something.
    """

    def __init__(self, own: str, mounted: Sequence[str] = ()) -> None:
        self._own = os.path.realpath(own)
        self._mounted = frozenset(map(os.path.realpath, mounted))
        roots = [*_roots(), *(os.path.join(self._own, name) for name in _OWN)]
        self._roots = list(dict.fromkeys(os.path.realpath(root) for root in roots))
        self._known = dict(self._look())

    def restore(self) -> List[str]:
        """Remove what was made since; return what was changed, or is gone, and can't be put back."""
        left, changed = dict(self._known), []
        for path, state in list(self._look()):
            known = left.pop(path, None)
            if known == state:
                continue
            compiled = os.path.basename(os.path.dirname(path)) == _BYTECODE
            if known is None or compiled or (known[1] == 0) != (state[1] == 0):
                _remove(path)
            if compiled:
                self._known.pop(path, None)
            elif known is not None:
                changed.append(path)
        gone = [path for path in left if os.path.basename(os.path.dirname(path)) != _BYTECODE]
        return sorted([*changed, *gone])[:_NAMED]

    def _look(self) -> Iterator[Tuple[str, _State]]:
        mounts = _mounts()
        skipped = {self._own, *self._mounted, *mounts}
        seen: Set[str] = set()
        for root in self._roots:
            if self._is_ours(root, mounts):
                yield from _below(root, skipped, seen)

    def _is_ours(self, path: str, mounts: Mapping[str, str]) -> bool:
        """Whether a folder goes with the container: it is on its root, or in memory."""
        while path not in mounts and path not in self._mounted and path != "/":
            path = os.path.dirname(path)
        return path not in self._mounted and (path == "/" or mounts.get(path) == "tmpfs")


def _below(root: str, skipped: Container[str], seen: Set[str]) -> Iterator[Tuple[str, _State]]:
    folders = [root]
    while folders:
        folder = folders.pop()
        if folder in seen:
            continue
        seen.add(folder)
        try:
            entries = list(os.scandir(folder))
        except OSError:  # not for this user, who so can't write there either; or just gone
            continue
        for entry in entries:
            if entry.path in skipped:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.path)
                yield entry.path, (status.st_ino, 0)
            else:
                yield entry.path, (status.st_ino, status.st_ctime_ns)


def _roots() -> Iterator[str]:
    if _alone():
        yield "/"
        yield from _IN_MEMORY
    yield tempfile.gettempdir()
    yield os.path.expanduser("~")
    yield os.getcwd()


def _alone() -> bool:
    """Whether the node is all that runs in its container: its first process has the node's number 1."""
    with suppress(OSError), open("/proc/1/cmdline", "rb") as file:
        return _PROGRAM in file.read()
    return False


def _mounts() -> Dict[str, str]:
    """Return where something is mounted, and what kind of file system it is."""
    try:
        with open("/proc/self/mounts") as file:
            fields = [line.split() for line in file]
    except OSError:
        return {}
    return {where.encode().decode("unicode_escape"): kind for _, where, kind, *_ in fields}


def _remove(path: str) -> None:
    with suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
