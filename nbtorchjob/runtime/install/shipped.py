"""Puts a job's shipped files, read-only, where its ranks work: once per node, at their relative paths.

The payload has a table of them, and the concatenated contents of the small ones; the big ones are in the
job's store, by their digests. No path leads out of the working folder, whatever links there are, and no
existing file is replaced. If that keeps files out of the working folder, the ranks work in a folder of the
node's own, which has the files, and links to everything else that the working folder has.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional

from nbtorchjob.runtime import store
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.facts.injected import node_index
from nbtorchjob.runtime.store.payload import CONTENT, SHIPPED, Payload, PayloadError

_PIECE = 1 << 20


class _File(NamedTuple):
    """A row of the table; ``at`` is where the file's content begins in the payload, or its URL.

    For a job on the notebook's machine, ``mtime`` is the time of the file that was shipped, in nanoseconds,
    and ``at`` is None for a big one.
    """

    path: str
    executable: bool
    size: int
    sha256: str
    mtime: Optional[int]
    at: Any


def lay(payload: Payload, folder: str) -> str:
    """Put a payload's files into the working folder, or one below ``folder``; return that folder.

    Raises ``PayloadError`` if that can't be done.
    """
    files = [_File(*row) for row in json.loads(payload.read(SHIPPED).decode())]
    # The files as a tree of folders; raise for one that would lie elsewhere
    tree: Dict[str, Any] = {}
    for file in files:
        *folders, name = file.path.split("/")
        inner: Optional[Dict[str, Any]] = tree
        for part in folders:
            inner = None if inner is None else inner.setdefault(part, {})
        wrong = any(part in ("", ".", "..") or "\0" in part for part in (*folders, name))
        if wrong or inner is None or name in inner:
            raise PayloadError("the payload is damaged: %r isn't a usable path" % file.path)
        inner[name] = None
    content, cwd = memoryview(payload.read(CONTENT)), os.getcwd()
    try:
        why = _lay_here(files, content, cwd)
    except OSError as exc:  # whatever reason its file system has
        why = "the shipped files can't be written to %s (%s)" % (cwd, exc.strerror)
    if not why:
        return cwd
    into = os.path.join(folder, "work")
    try:
        shutil.rmtree(into, ignore_errors=True)  # an earlier attempt's
        _mirror(cwd, into, tree)
        for file in files:
            _write(file, content, cwd, into)
    except OSError as exc:
        raise PayloadError("the shipped files can't be written to %s: %s" % (into, exc)) from exc
    if node_index() == 0:  # the others find the same
        emit("Notice", text="ranks work in %s: %s" % (into, why))
    return into


def _lay_here(files: List[_File], content: memoryview, cwd: str) -> str:
    """Write the files that are missing, or write none and return why."""
    left: List[_File] = []
    closed: Dict[str, str] = {}
    for file in files:
        path = os.path.join(cwd, file.path)
        if file.mtime is not None:
            why = _changed(file, path)
        elif os.path.lexists(path):
            why = "" if _same(file, path) else "%s has a different %s" % (cwd, file.path)
        else:
            above = os.path.dirname(path)
            if above not in closed:
                folder = above
                while not os.path.lexists(folder):
                    folder = os.path.dirname(folder)
                if os.path.realpath(folder) != folder:
                    closed[above] = "%s is a link" % folder
                elif not os.path.isdir(folder):
                    closed[above] = "%s is a file" % folder
                else:
                    closed[above] = (
                        "" if os.access(folder, os.W_OK | os.X_OK) else "%s can't be written to" % folder
                    )
            why = closed[above]
            left.append(file)
        if why:
            return why
    for file in left:
        _write(file, content, cwd, cwd)
    return ""


def _changed(file: _File, path: str) -> str:
    """Return how a file of this machine differs from what was shipped; "" if it doesn't."""
    try:
        status = os.stat(path)
        if (status.st_size, status.st_mtime_ns) == (file.size, file.mtime):
            return ""
        why = "has changed"
    except OSError:
        why = "is gone"
    if file.at is None:
        raise PayloadError(
            "%s %s since the job was sent, and it was too big to keep a copy" % (file.path, why)
        )
    return "%s %s since the job was sent" % (file.path, why)


def _same(file: _File, path: str) -> bool:
    try:
        status = os.stat(path)
        executable = not file.executable or status.st_mode & stat.S_IXUSR
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size or not executable:
            return False
        digest = hashlib.sha256()
        with open(path, "rb") as opened:
            for piece in iter(lambda: opened.read(_PIECE), b""):
                digest.update(piece)
    except OSError:
        return False
    return digest.hexdigest() == file.sha256


def _mirror(folder: str, into: str, tree: Dict[str, Any]) -> None:
    """Make a folder with links to everything in another one, except where shipped files go."""
    os.makedirs(into)
    try:
        names = os.listdir(folder)
    except OSError:  # it isn't there, or a file
        names = []
    for name in names:
        if name not in tree:
            os.symlink(os.path.join(folder, name), os.path.join(into, name))
    for name, inner in tree.items():
        if inner is not None:
            _mirror(os.path.join(folder, name), os.path.join(into, name), inner)


def _write(file: _File, content: memoryview, origin: str, into: str) -> None:
    """Write a file atomically: other nodes may write it at the same time on a shared volume."""
    target = os.path.join(into, file.path)
    if file.at is None:  # it still lies there unchanged
        os.symlink(os.path.join(origin, file.path), target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    opened, partial = tempfile.mkstemp(prefix=".", dir=os.path.dirname(target))
    try:
        with open(opened, "wb") as output:
            if isinstance(file.at, int):
                output.write(content[file.at : file.at + file.size])
            else:
                try:
                    sha256 = store.digest(file.at, output, file.size)
                except Exception as exc:  # whatever a store's library raises
                    why = "%s: %s" % (type(exc).__name__, exc)
                    raise PayloadError(
                        "%s can't be fetched from %s (%s)" % (file.path, file.at, why)
                    ) from exc
                if sha256 != file.sha256:
                    raise PayloadError(
                        "%s at %s isn't what was shipped: remove it there" % (file.path, file.at)
                    )
        os.chmod(partial, 0o555 if file.executable else 0o444)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
