"""Sends a folder of this node to a store, and fetches it from there: one ``Mirror`` per node and URL.

Each file arrives whole or not at all, and none takes its place before all new files were sent: if the process
is killed meanwhile, the old files stay. If two nodes write the same file, the last to send it wins. A file is
whole once no process has it open for writing and it doesn't change while it is sent: the first thing a writer
does is to empty the file, and it may pause at any point before the end.

Programs remove an old checkpoint once a newer one is complete, and may write several while one is sent. So
new files are held open until they are sent, which keeps their bytes if they are removed here meanwhile; and
files removed here are removed there only after all files that may have taken their place were sent.

A file beside the folder records what was sent and fetched; it is also the lock by which a node's processes
take turns.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import os
import signal
import stat
import time
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Set, Tuple

from nbtorchjob.runtime.api.checkpoints import PARTIAL

# File times have steps of up to 10 ms (Linux before 6.13 has no finer ones): two writes within one step have
# the same time.
_TICK_S = 0.05
QUIET_S = 2.0
_MOST_HELD = 256  # files open at once

# A local file's times of modification and change in ns, its size and its inode.
_Stamp = List[int]
_Known = Dict[str, Dict[str, Any]]  # by name: a file's state when it was last the same here and there


class Mirror:
    """``folder``, which needn't exist yet, and the store at ``url`` (one for fsspec).

    Raises what fsspec raises for a URL it can't use: ``ImportError``, ``ValueError``. If the file system
    can't tell whether a file is open, it counts as whole after ``quiet_s`` seconds without a change.
    """

    def __init__(self, url: str, folder: str, quiet_s: float = QUIET_S) -> None:
        # Imported late: only jobs with a store need it, and not every image has it.
        core: Any = importlib.import_module("fsspec.core")
        spec: Any = importlib.import_module("fsspec.spec")
        self._fs, self._root = core.url_to_fs(url)
        # An object store copies; gcsfs has its own `mv`, which takes patterns as well (2026.10).
        own_mv = type(self._fs).mv is not spec.AbstractFileSystem.mv
        self._renames = own_mv and not self._fs.async_impl
        self._folder = folder
        self._quiet_s = quiet_s
        self.links: Set[str] = set()  # links to folders, which the last ``send`` left out
        self._removed: Set[str] = set()  # files that the last ``send`` found removed here

    def fill(self, below: str = "") -> None:
        """Fetch the files that this node lacks: those of an earlier attempt, and of other nodes.

        With ``below``, only those in the folder of that name. A file that was written here and not sent yet
        stays. Raises whatever the store raises.
        """
        os.makedirs(self._folder, exist_ok=True)
        with self._turn() as records:
            fetched = False
            for name, path in self._stored(below).items():
                was, key = records.get(name), self._fs.ukey(path)
                stamp = _stamp(self._local_path(name))
                unchanged = stamp is None or (was is not None and was["here"] == stamp)
                if (was is None or was["there"] != key) and unchanged:
                    target = self._local_path(name)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    self._fs.get_file(path, target + PARTIAL)
                    os.replace(target + PARTIAL, target)
                    records[name] = {"here": _stamp(self._local_path(name)), "there": key}
                    fetched = True
            if fetched:
                time.sleep(_TICK_S)  # a rank's write to one of them then gets another time

    def send(
        self,
        *,
        ended: bool = False,
        is_held: Callable[[], bool] = lambda: False,
        may_place: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send the files written since the last call, oldest first, and remove those that were removed.

        A file that isn't whole yet is left for the next call; none takes its place before all are there.
        ``ended`` means that all writers have ended; before that, nothing is sent while ``is_held`` returns
        true. ``may_place`` is called once all are there, beside their places.
        Raises whatever the store raises.
        """
        if not os.path.isdir(self._folder):
            return  # no rank has requested it yet
        with self._turn() as records:
            stamps = self._stamps()
            if is_held() and not ended:
                return  # checked after listing: the list may have half of what belongs together
            new = [name for name in stamps if name not in records or records[name]["here"] != stamps[name]]
            # Files that are written last, such as a list of the files before them, come last.
            new.sort(key=lambda name: stamps[name])
            sent, complete = self._put_all(new, stamps, ended=ended)
            if not may_place():
                return
            for name in sent:
                self._place(name, records)
                records[name] = {"here": stamps[name], "there": self._fs.ukey(self._store_path(name))}
            removed = records.keys() - stamps.keys()
            # The file that took its place may be too new to be sent now, but not at the next call.
            due = removed if ended else removed & self._removed
            if complete:
                for name in due:
                    self._remove(name, records)
                self._removed = removed - due

    def _put_all(self, new: List[str], stamps: Dict[str, Any], *, ended: bool) -> Tuple[List[str], bool]:
        """Put files beside their places; return those that are whole, and whether all still existed."""
        sent = []
        with ExitStack() as files:
            held_open = {name: self._open(name, files) for name in new[:_MOST_HELD]}
            # Otherwise, files were removed while the list was made, and it has only some of them.
            complete = stamps.keys() <= self._stamps().keys()
            for name in new:
                with ExitStack() as own:
                    file = held_open[name] if name in held_open else self._open(name, own)
                    if file is None:
                        complete = False
                    elif self._put(name, file, stamps[name], ended=ended):
                        sent.append(name)
        return sent, complete

    @contextmanager
    def _turn(self) -> Iterator[_Known]:
        with open(self._folder + ".json", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            records = _parsed(file.read())
            try:
                yield records
            finally:
                file.seek(0)
                file.truncate()
                file.write(json.dumps(records))
                file.flush()
                fcntl.flock(file, fcntl.LOCK_UN)  # a fork, such as a DataLoader's worker, has it open as well

    def _stored(self, below: str) -> Dict[str, str]:
        """Return the store's paths by name."""
        top = self._store_path(below) if below else self._root
        self._fs.invalidate_cache()
        try:
            # fsspec's `find` treats a store that can't be reached as an empty one (2026.9).
            self._fs.ls(top, detail=False)
        except FileNotFoundError:
            return {}
        paths = [path for path in self._fs.find(top) if not path.endswith((PARTIAL, "/"))]
        stored = {path[len(self._root) :].lstrip("/"): path for path in paths}
        for name in stored:
            # An object store accepts any name, from anybody who may write there.
            if not {".", ".."}.isdisjoint(name.split("/")):
                raise ValueError("a file in %s leads out of it: remove %r there" % (self._root, name[:200]))
        return stored

    def _stamps(self) -> Dict[str, _Stamp]:
        """Return the stamps of the local files, by name."""

        def refuse(exc: OSError) -> None:
            # A folder that can't be read must not pass for an empty one, whose files were all removed.
            raise exc

        stamps = {}
        self.links = set()
        for folder, inner, files in os.walk(self._folder, onerror=refuse):
            paths = [os.path.join(folder, name) for name in inner]
            self.links.update(os.path.relpath(path, self._folder) for path in paths if os.path.islink(path))
            for file in files:
                path = os.path.join(folder, file)
                stamp = _stamp(path)
                if stamp is not None and not file.endswith(PARTIAL):
                    stamps[os.path.relpath(path, self._folder).replace(os.sep, "/")] = stamp
        return stamps

    def _open(self, name: str, files: ExitStack) -> Optional[BinaryIO]:
        try:
            return files.enter_context(open(self._local_path(name), "rb", buffering=0))
        except FileNotFoundError:  # removed meanwhile
            return None

    def _put(self, name: str, file: BinaryIO, stamp: _Stamp, *, ended: bool) -> bool:
        """Put a file beside its place in the store, if it is whole; return whether it is."""
        target = self._store_path(name)
        quiet_s = 0.0 if ended else self._quiet_s
        time.sleep(max(0.0, _TICK_S - _age(stamp)))
        is_written = _is_written(file)
        quiet = _age(stamp) >= quiet_s if is_written is None else not is_written
        if not (quiet and _is_as_before(file, stamp)):
            return False
        if target.startswith("/"):  # else a bucket comes first: s3fs creates a misspelt one (2026.9)
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        # A file that was removed can still be read by this path (Linux).
        self._fs.put_file("/proc/self/fd/%d" % file.fileno(), target + PARTIAL)
        if not _is_as_before(file, stamp):  # written to meanwhile
            self._fs.rm_file(target + PARTIAL)
            return False
        return True

    def _place(self, name: str, records: _Known) -> None:
        """Move a file that was put beside its place into its place."""
        target = self._store_path(name)
        if not self._renames:
            # As fsspec's own `mv` does (2026.9), which also treats names as patterns, and puts a file into a
            # folder of its name.
            self._fs.cp_file(target + PARTIAL, target)
            self._fs.rm_file(target + PARTIAL)
            return
        if self._fs.isdir(target):  # a store with folders keeps that of files which are gone
            for inner in [other for other in records if other.startswith(name + "/")]:
                self._remove(inner, records)
            for folder in sorted({target, *self._fs.find(target, withdirs=True)}, reverse=True):
                self._fs.rmdir(folder)
        self._fs.mv(target + PARTIAL, target)

    def _remove(self, name: str, records: _Known) -> None:
        target = self._store_path(name)
        try:
            if self._fs.ukey(target) == records[name]["there"]:  # else another node has sent it since
                self._fs.rm_file(target)
        except FileNotFoundError:
            pass
        del records[name]

    def _local_path(self, name: str) -> str:
        return os.path.join(self._folder, *name.split("/"))

    def _store_path(self, name: str) -> str:
        return "%s/%s" % (self._root.rstrip("/"), name)


def unsent(folder: str, below: str) -> Set[str]:
    """Return the relative paths of the files below a path in a mirror's folder that weren't sent yet."""
    try:
        with open(folder + ".json", encoding="utf-8") as file:
            records = _parsed(file.read())
    except FileNotFoundError:
        records = {}
    paths = (os.path.join(at, file) for at, _, files in os.walk(below) for file in files)
    return {
        os.path.relpath(path, below)
        for path in paths
        if os.path.relpath(path, folder).replace(os.sep, "/") not in records and _stamp(path) is not None
    }


def _stamp(path: "str | int") -> Optional[_Stamp]:
    """Return a file's stamp; None if there is no file: a socket or a FIFO has no content to send."""
    try:
        status = os.stat(path)
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def _is_as_before(file: BinaryIO, stamp: _Stamp) -> bool:
    now, removed = _stamp(file.fileno()), os.fstat(file.fileno()).st_nlink == 0
    # A file's removal counts as a change, but not of its content.
    return now is not None and (now == stamp or (removed and (now[0], now[2:]) == (stamp[0], stamp[2:])))


def _age(stamp: _Stamp) -> float:
    # A clock that was set back mustn't keep a file from being sent.
    return abs(time.time() - stamp[1] / 1e9)


def _is_written(file: BinaryIO) -> Optional[bool]:
    """Whether a process has the file open for writing; None if the file system can't tell.

    Linux leases a file to a reader only if there is no writer (fcntl(2)). The lease is given back at once:
    a writer that opens the file in between waits for that, and the signal that announces it is ignored.
    """
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # another user's file, a network's file system
        return None
    return False


def _parsed(text: str) -> _Known:
    try:
        records: _Known = json.loads(text)
    except ValueError:  # a new one, or its writer was killed: all local files count as new
        return {}
    return records
