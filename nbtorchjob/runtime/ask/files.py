"""Lists and reads what a node's ranks have written below ``artifacts_dir()`` and ``checkpoint_dir()``.

A question with ``list`` is answered at once. One without begins a session, in which the asker goes on:

    asker  {"list": PATH}                  files below a path, {"files": [[path, size, seconds], ...]}...
    node   {"listed": COUNT, "shared": ..} after the last of them
    asker  {"read": PATH, "offset": N, "span": S, "sha256": HEX}
    node   {"size": ..., "from": ...}      it begins at N if the S bytes before N have that digest, else at 0
    node   bytes...                        up to the size that the file had when it was opened
    node   {"sha256": HEX, "changed": ..}  of those S bytes and all that followed

A request that can't be met is answered by {"refused": WHY}, and the session goes on.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple, Union

from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.ask.answering import Question
from nbtorchjob.runtime.facts.injected import FOLDER
from nbtorchjob.runtime.objects import wire

ARTIFACTS, CHECKPOINTS = "artifacts", "checkpoints"  # what a path begins with
MOST_FILES = 10_000  # listed at once
PART_BYTES = 1 << 18  # of a file in a message
_NAMES = 1 << 16  # characters of names in a record
_QUIET_S = 120.0  # that an asker may be silent
_LISTEN_S = 5.0  # between two checks that the asker is still there
_PROGRESS_BYTES = 1 << 28  # that are hashed between two signs of life

Answer = Union[Dict[str, Any], bytes]


def answer(question: Question) -> Iterator[Answer]:
    """Answer one listing, or hold a session."""
    if "list" in question:
        yield from _list(str(question["list"]))
        return
    question.goes_on = True
    while True:
        request = question.hear(_QUIET_S)
        if request is None:
            return
        if isinstance(request, bytes):
            continue  # a sign of life
        try:
            if "read" in request:
                yield from _read(question, request)
            else:
                yield from _list(str(request.get("list", "")))
        except RefusedPath as exc:
            yield {"refused": str(exc)}


class RefusedPath(Exception):
    """A path leads to nothing that may be read; the message says why."""


def _roots() -> Dict[str, str]:
    """Return the folders that exist, by the word that a path begins with."""
    home = os.environ.get(FOLDER) or tempfile.gettempdir()
    names = [name for name in os.listdir(home) if re.fullmatch(r"artifacts-\d{1,9}", name)]
    attempts = sorted(int(name.rpartition("-")[2]) for name in names)
    roots = {ARTIFACTS: os.path.join(home, "artifacts-%d" % attempts[-1])} if attempts else {}
    saved = checkpoints.folder()
    if saved:
        roots[CHECKPOINTS] = saved
    # A home folder may well be a link to another disk.
    return {word: os.path.realpath(root) for word, root in roots.items() if os.path.isdir(root)}


def _list(below: str) -> Iterator[Answer]:
    count = characters = 0
    rows: List[Tuple[str, int, float]] = []
    for word, root in sorted(_roots().items()):
        for name, status in plain_files(word, root, below.strip("/")):
            if count == MOST_FILES:
                yield {"files": rows}
                yield {"listed": count, "more": True, "shared": checkpoints.shared()}
                return
            rows.append((name, status.st_size, status.st_mtime))
            count, characters = count + 1, characters + len(name)
            if characters > _NAMES:
                yield {"files": rows}
                rows, characters = [], 0
    if rows:
        yield {"files": rows}
    yield {"listed": count, "more": False, "shared": checkpoints.shared()}


def plain_files(word: str, root: str, below: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield the plain files of a root that are at or below a path, sorted by name.

    Their names begin with the path as it was given, even if it leads through a link, so that the asker
    recognises them. ``word`` is what all names begin with, ``root`` contains no link, and ``below`` is "" or
    begins with a word.
    """
    first, _, rest = below.partition("/")
    if first not in ("", word):
        return
    try:
        start = _within(root, rest)
    except RefusedPath:
        return
    single = os.path.isfile(start)
    tree = [(os.path.dirname(start), [], [os.path.basename(start)])] if single else os.walk(start)
    for folder, folders, files in tree:
        folders.sort()
        for file in sorted(files):
            path = os.path.join(folder, file)
            try:
                status = os.lstat(path)
            except OSError:  # removed meanwhile
                continue
            name = below if single else "%s/%s" % (below or word, os.path.relpath(path, start))
            if stat.S_ISREG(status.st_mode) and name.isprintable() and not checkpoints.is_partial(file):
                yield name, status


def _within(root: str, rest: str) -> str:
    path = os.path.realpath(os.path.join(root, rest))
    named = not rest or not {"", ".", ".."}.intersection(rest.split("/"))
    if not named or not (path + os.sep).startswith(root + os.sep):
        raise RefusedPath("%s leads out of its folder" % ascii(rest)[1:-1])
    return path


def _read(question: Question, request: Dict[str, Any]) -> Iterator[Answer]:
    path = str(request["read"])
    word, _, rest = path.partition("/")
    root = _roots().get(word)
    if root is None:
        raise RefusedPath("no rank of this node has written below %s/" % ascii(word)[1:-1])
    file = opened(root, rest)
    with file:
        before = os.fstat(file.fileno())
        digest, begin = hashlib.sha256(), 0
        offset, span = int(request.get("offset", 0)), int(request.get("span", 0))
        if 0 < span <= offset <= before.st_size:
            file.seek(offset - span)
            for piece in _pieces(file, span):
                digest.update(piece)
                if file.tell() % _PROGRESS_BYTES < len(piece):
                    yield {"checked": file.tell()}
            begin = offset if digest.hexdigest() == request.get("sha256") else 0
        if not begin:
            digest = hashlib.sha256()
            file.seek(0)
        yield {"size": before.st_size, "from": begin}
        looked = time.monotonic()
        for piece in _pieces(file, before.st_size - begin):
            digest.update(piece)
            yield piece
            if time.monotonic() - looked > _LISTEN_S:
                question.hear(0)  # takes the asker's signs of life off the connection
                looked = time.monotonic()
        after = os.fstat(file.fileno())
        changed = (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size)
        yield {"sha256": digest.hexdigest(), "changed": changed or not os.path.exists(file.name)}


def opened(root: str, rest: str) -> BinaryIO:
    """Open a plain file below ``root``, a path without links in it; raises ``RefusedPath``."""
    target = _within(root, rest)
    try:
        return open(target, "rb", opener=wire.plain)
    except OSError as exc:
        raise RefusedPath("%s can't be read: %s" % (ascii(rest)[1:-1], exc.strerror or exc)) from exc


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next ``size`` bytes, or fewer if the file has become shorter."""
    while size > 0:
        piece = file.read(min(size, PART_BYTES))
        if not piece:
            return
        size -= len(piece)
        yield piece
