"""The files of a pool's node: notes their state before the first job, and restores it after each job.

A job may write anywhere in its container. A fresh pod would show none of that, so files that a job has
created are removed when its processes are gone. Files of the image that it has changed or removed can't be
put back: the node reports that and ends, and a fresh pod takes its place. The same goes for files that can't
be removed, and for a file system that the job has mounted.

Only the container's own file systems are examined: its root, those in memory, and the pod's empty volumes.
Other mounts, such as a claim or a host's folder, outlive pods and are left alone. Nothing behind a mount
point is examined, and paths are removed one by one, so nothing there is removed either.

Where other processes write to the same places, their files can't be told from the job's. A node that isn't
alone in its container, as when the pod's containers share their processes, examines only where jobs write
most: the temporary folder, the home and the working folder. Shared memory that isn't the container's own is
left alone.

Python itself replaces outdated bytecode of the image. That is removed: Python makes it again.

A program can't set the time of change (``st_ctime``), so it tells whether a file is still the image's. A
folder's changes with each file in it, so for folders the owner and the mode are compared.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import stat
import tempfile
from contextlib import suppress
from typing import Any, Container, Dict, Iterator, List, Sequence, Set, Tuple

_MOUNTS = "/proc/self/mountinfo"
_PROGRAM = b"job.pyz"
_SHARED_MEMORY = ("/dev/shm", "/dev/mqueue")
_IN_MEMORY = (*_SHARED_MEMORY, "/tmp", "/var/tmp", "/run")
_KINDS_IN_MEMORY = ("tmpfs", "mqueue")
_EMPTY = "/volumes/kubernetes.io~empty-dir/"  # in an empty volume's path on its host (kubelet 1.36)
_BYTECODE = "__pycache__"
# Below the node's own folder: what ranks write to, and what jobs read.
_OWN = (
    "artifacts-*[0-9]",
    "checkpoints",
    "checkpoints.json",
    "compiled",
    "data",
    "data-of-*",
    "files",
    "mp",
    "packages",
    "round-*/work",
    "tmp",
    "work",
)
# Shared memory, semaphores and queues of System V: the function that removes one, and its other arguments.
_OF_SYSTEM_V = {"shm": ("shmctl", (0, None)), "sem": ("semctl", (0, 0)), "msg": ("msgctl", (0, None))}
_State = Tuple[Any, ...]  # of a file or a folder; its mode comes first


class Ground:
    """The files of a node, except most of those below ``own``, the node's own folder.

    Nothing below ``mounted``, the mounts of the job's user, is examined. ``empty`` are the container's own
    empty volumes. ``shared`` says that the container shares its memory with others. ``unseen`` says that
    others may have added mounts, whose files are left alone, too.
    """

    def __init__(
        self,
        own: str,
        mounted: Sequence[str] = (),
        empty: Sequence[str] = (),
        *,
        shared: bool = False,
        unseen: bool = False,
    ) -> None:
        self._own = os.path.realpath(own)
        self._mounted = frozenset(map(os.path.realpath, mounted))
        self._empty = frozenset(map(os.path.realpath, empty))
        self._shared = shared or unseen
        self._unseen = unseen
        self._alone = _alone()
        self._mounts = _mounts()
        roots = dict.fromkeys(map(os.path.realpath, [*self._places(), *empty]))
        self._roots = [root for root in roots if self._goes_with_the_pod(root)]
        self._of_system_v = self._look_at_system_v()
        self._states: Dict[str, _State] = {}
        self._states.update(self._look(self._mounts))

    def restore(self) -> List[str]:
        """Remove what was created since; return what changed, is gone or remains, and can't be put back."""
        mounts = _mounts()
        # Mount points that are new, gone or changed, in the file systems that are examined
        mounted = [
            path
            for path in sorted({*self._mounts, *mounts})
            if mounts.get(path) != self._mounts.get(path)
            and any(_is_below(path, root) for root in self._roots)
            and self._goes_with_the_pod(os.path.dirname(path))
        ]
        now = dict(self._look(mounts, opens=True))
        changed = {
            path
            for path, state in self._states.items()
            if now.get(path) != state and not any(_is_below(path, mount) for mount in mounted)
        }
        compiled = {path for path in changed if os.path.basename(os.path.dirname(path)) == _BYTECODE}
        for path in compiled:
            del self._states[path]
        additions = [path for path in now if path not in self._states]
        for path in reversed(additions):  # a folder's contents come after it
            with suppress(OSError):
                if stat.S_ISDIR(now[path][0]):
                    os.rmdir(path)
                else:
                    os.unlink(path)
        left = filter(os.path.lexists, additions)
        return sorted({*mounted, *(changed - compiled), *left, *self._remove_from_system_v()})

    def _places(self) -> Iterator[str]:
        if self._alone:
            yield "/"
            yield from _IN_MEMORY
        yield tempfile.gettempdir()
        yield os.path.expanduser("~")
        yield os.getcwd()

    def _goes_with_the_pod(self, path: str) -> bool:
        place = _place(path, {*self._mounts, *self._mounted})
        kind, source = self._mounts.get(place, ("", ""))[:2]
        if place in self._mounted or (self._shared and place in _SHARED_MEMORY and place not in self._empty):
            return False
        if place in self._empty or place == "/":
            return True
        if self._unseen:
            return False
        return kind in _KINDS_IN_MEMORY or _EMPTY in source

    def _look(self, mounts: Dict[str, _State], *, opens: bool = False) -> Iterator[Tuple[str, _State]]:
        """Yield all paths with their states, a folder's before those of its contents.

        With ``opens``, the modes of new folders are changed so that they can be read and emptied.
        """
        seen: Set[str] = set()
        closed = {self._own, *self._mounted, *self._mounts, *mounts}
        own = [path for name in _OWN for path in glob.glob(os.path.join(glob.escape(self._own), name))]
        for root in [*self._roots, *sorted(own)]:
            # Not behind a link or a mount that is new.
            place, before = (_place(root, places) for places in (mounts, self._mounts))
            if os.path.realpath(root) == root and mounts.get(place) == self._mounts.get(before):
                with suppress(OSError):
                    status = os.lstat(root)
                    yield root, _state(status)
                    if stat.S_ISDIR(status.st_mode):
                        self._open(root, status, opens)
                        yield from self._below(root, seen, closed, opens)

    def _below(
        self, root: str, seen: Set[str], closed: Container[str], opens: bool
    ) -> Iterator[Tuple[str, _State]]:
        folders = [root]
        while folders:
            folder = folders.pop()
            if folder in seen:
                continue
            seen.add(folder)
            try:
                entries = list(os.scandir(folder))
            except OSError:  # closed to this user, who can't write there either; or just gone
                continue
            for entry in entries:
                if entry.path in closed:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                yield entry.path, _state(status)
                if stat.S_ISDIR(status.st_mode):
                    self._open(entry.path, status, opens)
                    folders.append(entry.path)

    def _open(self, folder: str, status: os.stat_result, opens: bool) -> None:
        if opens and folder not in self._states and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(OSError):
                os.chmod(folder, stat.S_IRWXU)

    def _look_at_system_v(self) -> Set[Tuple[str, int]]:
        if self._shared or not self._alone:
            return set()
        objects: Set[Tuple[str, int]] = set()
        for table in _OF_SYSTEM_V:
            with suppress(OSError), open("/proc/sysvipc/%s" % table) as file:
                # The number is in the second column.
                objects.update((table, int(line.split()[1])) for line in file.readlines()[1:])
        return objects

    def _remove_from_system_v(self) -> Iterator[str]:
        """Remove System V objects that were created since; yield those that remain."""
        libc = ctypes.CDLL(None)
        for table, number in sorted(self._look_at_system_v() - self._of_system_v):
            remove, more = _OF_SYSTEM_V[table]
            if getattr(libc, remove)(number, *more) != 0:
                yield "System V %s %d" % (table, number)


def _state(status: os.stat_result) -> _State:
    owner = status.st_mode, status.st_uid, status.st_gid
    return owner if stat.S_ISDIR(status.st_mode) else (*owner, status.st_ino, status.st_ctime_ns)


def _alone() -> bool:
    """Whether the node is alone in its container, whose process 1 is then the node's first process."""
    with suppress(OSError), open("/proc/1/cmdline", "rb") as file:
        return _PROGRAM in file.read()
    return False


def _mounts() -> Dict[str, _State]:
    """Return mounts by path: the kind of file system, the mounted folder in it, its device and its number."""
    mounts: Dict[str, _State] = {}
    with suppress(OSError), open(_MOUNTS, errors="surrogateescape") as file:
        for line in file:
            mount, _, system = line.partition(" - ")
            number, _, device, source, where = mount.split()[:5]
            where = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), where)
            mounts[where] = (system.split()[0], source, device, number)
    return mounts


def _place(path: str, places: Container[str]) -> str:
    """Return which of these places a path is in, or the root."""
    while path not in places and path != "/":
        path = os.path.dirname(path)
    return path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
