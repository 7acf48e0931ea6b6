"""A folder of this node whose files go to a store, and come from there: one ``Mirror`` a node and URL.

Each file arrives whole or not at all, and none takes its place before all that are new were sent: who is
killed meanwhile leaves what was there. Of two nodes that write the same one the last to send it wins. A
file is whole once no process has it open for writing and it stays as it is while it is sent: the first
thing a writer does is to empty the file, and it may pause at any point before the end.

What was sent and fetched is written down beside the folder, which also is the lock by which a node's
processes take turns.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from nbtorchjob.runtime.api.checkpoints import PARTIAL

# The clock of files stands still for up to 10 ms (Linux before 6.13 knows no finer one): what is written
# twice within that has one time.
_TICK_S = 0.05
QUIET_S = 2.0

# Of a file here, in ns: when it was written and changed; its size and inode.
_Stamp = List[int]
_Known = Dict[str, Dict[str, Any]]  # by name: how it was when it was last the same here and there


class Mirror:
    """``folder``, which needn't be there yet, and the store at ``url`` (one for fsspec).

    Raises what fsspec raises for a URL it can't use: ``ImportError``, ``ValueError``. A file without a change
    for ``quiet_s`` seconds counts as whole where nobody can say whether it is open.
    """

    def __init__(self, url: str, folder: str, quiet_s: float = QUIET_S) -> None:
        # Loaded late: it is needed by jobs with a store only, and not every image has it.
        core: Any = importlib.import_module("fsspec.core")
        self._fs, self._root = core.url_to_fs(url)
        self._folder = folder
        self._quiet_s = quiet_s

    def fill(self, below: str = "") -> None:
        """Fetch what this node doesn't have: files of an earlier attempt, and other nodes'.

        With ``below`` those alone that lie in the folder of that name. A file that was written here and not
        sent yet stays. Raises what the store raises.
        """
        os.makedirs(self._folder, exist_ok=True)
        with self._turn() as known:
            fetched = False
            for name, path in self._stored(below).items():
                was, key = known.get(name), self._fs.ukey(path)
                here = _stamp(self._here(name))
                unchanged = here is None or (was is not None and was["here"] == here)
                if (was is None or was["there"] != key) and unchanged:
                    target = self._here(name)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    self._fs.get_file(path, target + PARTIAL)
                    os.replace(target + PARTIAL, target)
                    known[name] = {"here": _stamp(self._here(name)), "there": key}
                    fetched = True
            if fetched:
                time.sleep(_TICK_S)  # what a rank writes over one of them now has another time

    def send(
        self,
        *,
        ended: bool = False,
        held: Callable[[], bool] = lambda: False,
        may_place: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send what was written since the last time, oldest first, and remove what was removed.

        A file that isn't whole yet is left for the next time; none takes its place before all are there.
        ``ended`` says that whoever wrote has ended; until they have, nothing is sent while it is ``held``.
        ``may_place`` is asked once all is there, and beside its place. Raises what the store raises.
        """
        if not os.path.isdir(self._folder):
            return  # nobody asked for it yet
        with self._turn() as known:
            stamps = self._stamps()
            if held() and not ended:
                return  # looked at after: what was found may be half of what belongs together
            new = [name for name in stamps if name not in known or known[name]["here"] != stamps[name]]
            # What is written last, such as a list of the files before it, comes last.
            new.sort(key=lambda name: stamps[name])
            sent = [name for name in new if self._put(name, stamps[name], ended=ended)]
            if not may_place():
                return
            for name in sent:
                self._fs.mv(self._there(name) + PARTIAL, self._there(name))
                known[name] = {"here": stamps[name], "there": self._fs.ukey(self._there(name))}
            for name in known.keys() - stamps.keys():
                self._remove(name, known)

    @contextmanager
    def _turn(self) -> Iterator[_Known]:
        with open(self._folder + ".json", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = _parsed(file.read())
            try:
                yield known
            finally:
                file.seek(0)
                file.truncate()
                file.write(json.dumps(known))
                file.flush()

    def _stored(self, below: str) -> Dict[str, str]:
        """Return the store's paths by name."""
        top = self._there(below) if below else self._root
        self._fs.invalidate_cache()
        try:
            # fsspec's `find` takes a store that can't be reached for an empty one (2026.9).
            self._fs.ls(top, detail=False)
        except FileNotFoundError:
            return {}
        paths = [path for path in self._fs.find(top) if not path.endswith(PARTIAL)]
        stored = {path[len(self._root) :].lstrip("/"): path for path in paths}
        for name in stored:
            # A store of objects takes any name, from anybody who may write there.
            if not {".", ".."}.isdisjoint(name.split("/")):
                raise ValueError("a file in %s leads out of it: remove %r there" % (self._root, name[:200]))
        return stored

    def _stamps(self) -> Dict[str, _Stamp]:
        """Return the stamps of the files that are here by name."""
        stamps = {}
        for folder, _, files in os.walk(self._folder, onerror=_raise):
            for file in files:
                path = os.path.join(folder, file)
                stamp = _stamp(path)
                if stamp is not None and not file.endswith(PARTIAL):
                    stamps[os.path.relpath(path, self._folder).replace(os.sep, "/")] = stamp
        return stamps

    def _put(self, name: str, stamp: _Stamp, *, ended: bool) -> bool:
        """Put a file beside its place in the store, if it is whole; return whether that is so."""
        source, target = self._here(name), self._there(name)
        try:
            if not _is_whole(source, stamp, 0.0 if ended else self._quiet_s):
                return False
            if target.startswith(
                "/"
            ):  # else it is a bucket's name: s3fs would make one that is misspelt (2026.9)
                self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(source, target + PARTIAL)
        except FileNotFoundError:
            if os.path.exists(source):
                raise
            return False  # removed meanwhile
        if _stamp(source) != stamp:  # written to meanwhile
            self._fs.rm_file(target + PARTIAL)
            return False
        return True

    def _remove(self, name: str, known: _Known) -> None:
        target = self._there(name)
        try:
            if self._fs.ukey(target) == known[name]["there"]:  # else it is another node's by now
                self._fs.rm_file(target)
        except FileNotFoundError:
            pass
        del known[name]

    def _here(self, name: str) -> str:
        return os.path.join(self._folder, *name.split("/"))

    def _there(self, name: str) -> str:
        return "%s/%s" % (self._root.rstrip("/"), name)


def _stamp(path: str) -> Optional[_Stamp]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def _is_whole(path: str, stamp: _Stamp, quiet_s: float) -> bool:
    """Whether the file has no writer, and any that comes shows in its stamp. Raises ``FileNotFoundError``."""
    time.sleep(max(0.0, _TICK_S - _age(stamp)))
    written = _is_written(path)
    return _age(stamp) >= quiet_s if written is None else not written


def _age(stamp: _Stamp) -> float:
    # A clock that was set back mustn't keep a file from being sent.
    return abs(time.time() - stamp[1] / 1e9)


def _is_written(path: str) -> Optional[bool]:
    """Whether a process has the file open for writing; None where the file system doesn't say.

    Linux leases a file to a reader only if there is no writer (fcntl(2)). The lease is given back at once:
    a writer that comes between waits for that, and the signal that tells of it is one that is ignored.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:  # another user's file, a network's file system
        return None
    finally:
        os.close(file)
    return False


def _parsed(text: str) -> _Known:
    try:
        known: _Known = json.loads(text)
    except ValueError:  # a new one, or whoever wrote it was killed: what is here counts as new
        return {}
    return known


def _raise(exc: OSError) -> None:
    # A folder that can't be read isn't an empty one, whose files were all removed.
    raise exc
