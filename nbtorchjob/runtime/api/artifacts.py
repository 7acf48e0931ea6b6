"""A rank's folders: ``artifacts_dir()``, whose content comes home with the job, and ``data_dir()``.

Artifacts come home as an archive from each node. An archive is sent like a rank's value, through the log or
the job's store; it is a zip file without compression. A node sends one for each attempt that wrote artifacts,
once its ranks have ended, however they ended.

A node also reports once that its ranks have saved a checkpoint, and once that they write for TensorBoard: so
a page can offer to resume an ended job, or to show its curves, without asking its nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import threading
import time
import zipfile
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from nbtorchjob.runtime import store
from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.api.checkpoints import attempt, unstopped
from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.facts.injected import FOLDER, STREAM, node_index, run
from nbtorchjob.runtime.objects import wire

MOST_FILES = 10_000  # of a node in an attempt
MOST_BYTES = 1 << 30
NUMBER = "NBTORCHJOB_ARTIFACTS"  # for a job in a pool: the number that replaces its attempt's
_ENTRY = 256  # bytes that an archive needs besides a file and its name, which it has twice
_NAMED = 4  # how many files that were left out a notice names


def of_round(round_: int) -> int:
    """Return the number for artifacts of a job in a pool, in place of an attempt's, which is smaller.

    Rounds count hundredths of seconds there, so numbers repeat after four months.
    """
    return round_ % (10**9 - 1) + 1


def artifacts_dir() -> Path:
    """Return a folder on this node for files to come home with the job: event files, pictures, anything.

    Each attempt has its own folder. ``%torchjob artifacts`` lists the files that came, and copies them.

    Raises ``RuntimeError`` in a notebook.
    """
    if ROUND not in os.environ:
        raise RuntimeError("artifacts_dir() works on a rank only: call it in the code that the job runs")
    own = Path(folder())
    own.mkdir(parents=True, exist_ok=True)
    return own


def folder() -> str:
    """Return the path of the folder of :func:`artifacts_dir` on this node."""
    number = int(os.environ.get(NUMBER) or attempt())
    return os.path.join(os.environ.get(FOLDER) or tempfile.gettempdir(), "artifacts-%d" % number)


@contextmanager
def sending(key: Optional[bytes]) -> Iterator[None]:
    """Send this node's artifacts once its ranks have ended; without a ``key``, there is no receiver."""
    try:
        yield
    finally:
        home = os.environ.get(FOLDER)
        if home and key:
            with unstopped():
                send(home, key)


def send(home: str, key: bytes) -> None:
    """Send the artifacts in a node's folder, once no rank writes there any more."""
    for name in sorted(os.listdir(home)):
        folder, number = os.path.join(home, name), name[len("artifacts-") :]
        # An archive that exists already was sent by an earlier attempt, on this same machine.
        if name == "artifacts-" + number and number.isdigit() and not os.path.exists(folder + ".zip"):
            try:
                _send_one(folder, int(number), key)
            except Exception as exc:  # such as a full disk; it doesn't change how the job has ended
                why = str(exc) if isinstance(exc, store.Unsent) else "%s: %s" % (type(exc).__name__, exc)
                emit("Notice", text="the artifacts of node %d can't be sent: %s" % (node_index(), why))


def _send_one(folder: str, number: int, key: bytes) -> None:
    node, packed, by_log = node_index(), folder + ".zip", STREAM in os.environ
    over: List[str] = []
    limit = MOST_BYTES if os.environ.get(store.STORAGE) or not by_log else store.BY_LOG
    sizes, left = _listed(folder)
    members = _pack(sizes, folder, packed, limit, over, left)
    if left or over:
        names = [*over, *sorted(left)]
        text = ", ".join(names[:_NAMED]) + (" and %d more" % len(names[_NAMED:]) if names[_NAMED:] else "")
        if over:
            text += "; at most %d files and %d MiB are sent back" % (MOST_FILES, limit >> 20)
            text += ": set --storage for more" if limit == store.BY_LOG else ""
        emit("Notice", text="left out of node %d's artifacts: %s" % (node, text))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if members:
        ref, size = packed, os.path.getsize(packed)
        if by_log:
            own = artifacts_key(key, run(), number, node)
            ref, size = store.send(packed, "attempt-%d-node-%d.zip" % (number, node), own)
        total = sum(members.values())
        emit("ArtifactsReady", node=node, attempt=number, ref=ref, size=size, files=len(members), total=total)


def _listed(folder: str) -> Tuple[Dict[str, int], List[str]]:
    """Return the sizes of a folder's files that can be sent, by name, and the others, with the reasons."""
    sizes: Dict[str, int] = {}
    left: List[str] = []

    def refused(exc: OSError) -> None:
        left.append("%s (%s)" % (os.path.relpath(exc.filename, folder), exc.strerror))

    for at, folders, files in os.walk(folder, onerror=refused):
        for path in (os.path.join(at, name) for name in (*folders, *files)):
            try:
                status, name = os.lstat(path), os.path.relpath(path, folder)
            except OSError as exc:
                refused(exc)
                continue
            if stat.S_ISREG(status.st_mode) and name.isprintable() and os.access(path, os.R_OK):
                sizes[name] = status.st_size
            elif stat.S_ISLNK(status.st_mode):
                if not os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
                    left.append("%s (a link that leads outside)" % ascii(name)[1:-1])
            elif not stat.S_ISDIR(status.st_mode):
                left.append("%s (not a regular file, or not readable)" % ascii(name)[1:-1])
    return sizes, left


def artifacts_key(key: bytes, run: str, attempt: int, node: int) -> bytes:
    """Return the key of a node's artifacts of one attempt."""
    return wire.derived(key, "artifacts", run, attempt, node)


def _pack(
    candidates: Dict[str, int], folder: str, packed: str, room: int, over: List[str], left: List[str]
) -> Dict[str, int]:
    """Write files below ``folder`` to an archive, the smallest first; return the sizes of those written."""
    sizes: Dict[str, int] = {}
    for name, size in sorted(candidates.items(), key=lambda item: (item[1], item[0])):
        room -= size + 2 * len(name.encode()) + _ENTRY
        if room < 0 or len(sizes) == MOST_FILES:
            over.append("%s (%.1f MB)" % (name, size / 1e6))
        else:
            sizes[name] = size
    if sizes:
        partial = packed + ".partial"
        try:
            with zipfile.ZipFile(partial, "w", strict_timestamps=False) as archive:
                for name, size in list(sizes.items()):
                    try:
                        _add(archive, os.path.join(folder, name), name, size)
                    except _UnreadableError as exc:
                        left.append("%s (%s)" % (name, exc))
                        del sizes[name]
            os.replace(partial, packed)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)  # the disk may be full
    return sizes


class _UnreadableError(Exception):
    """A file can't be read any more: processes that ranks started may outlive them and still work there."""


def _add(archive: zipfile.ZipFile, path: str, name: str, size: int) -> None:
    try:
        entry = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
        # In UTC, not in this node's zone, which its reader doesn't know
        moment = time.gmtime(os.lstat(path).st_mtime)[:6]
        entry.date_time = min(max(moment, (1980, 1, 1, 0, 0, 0)), (2107, 12, 31, 23, 59, 59))
        opened = wire.plain(path, os.O_RDONLY)
    except OSError as exc:
        raise _UnreadableError(exc.strerror) from exc
    with open(opened, "rb") as file, archive.open(entry, "w") as target:
        while size > 0:  # it may grow faster than it is read
            piece = file.read(min(size, 1 << 20))
            if not piece:
                break
            size -= len(piece)
            target.write(piece)


DATA = "NBTORCHJOB_DATA"  # JSON: paths by name, set by the node once all of them are complete


def data_dir(name: str) -> Path:
    """Return the folder, or the single file's folder, that ``--data NAME=WHERE`` stands for on this node.

    It is complete before the first rank starts, for reading only, and may be shared with other jobs.

    Raises ``RuntimeError`` in a notebook, and ``KeyError`` for a name that the job doesn't have.
    """
    if ROUND not in os.environ:
        raise RuntimeError("data_dir() works on a rank only: call it in the code that the job runs")
    places: Dict[str, str] = json.loads(os.environ.get(DATA) or "{}")
    if name not in places:
        choices = ", ".join(sorted(places)) or "none: add it with --data %s=WHERE" % name
        raise KeyError("this job has no data named %r; available: %s" % (name, choices))
    return Path(places[name])


CHECKPOINT, CURVES = "checkpoint", "tensorboard"
EVERY_S = 5.0
_QUIET_S = 2.0  # how long a file that ranks may still write must stay unchanged
_MOST_FOLDERS = 10_000  # that are searched
_LONGER = 50  # the pause after a check is at least this many times as long as the check
# torch's distributed checkpoint writes its metadata once all shards are written.
_SHARD, _METADATA = ".distcp", ".metadata"


@contextmanager
def telling_saved(every_s: float = EVERY_S) -> Iterator[None]:
    """Check for checkpoints and curves now and then, and once the ranks have ended; report them once."""
    left: Dict[str, Callable[[bool], bool]] = {
        CHECKPOINT: _has_saved,
        # A file of events, which TensorBoard reads as it grows
        CURVES: lambda ended: any("tfevents" in name for _, files in _folders(folder()) for name in files),
    }
    ended = threading.Event()

    def look() -> None:
        for kind, is_there in list(left.items()):
            with suppress(OSError):
                if is_there(ended.is_set()):
                    del left[kind]
                    emit("FilesSeen", node=node_index(), what=kind)

    def watch() -> None:
        took = 0.0
        while left and not ended.wait(max(every_s, _LONGER * took)):
            began = time.monotonic()
            look()
            took = time.monotonic() - began

    thread = threading.Thread(target=watch, daemon=True, name="written")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()


def _has_saved(ended: bool) -> bool:
    """Return whether a checkpoint is whole; for a folder that all nodes share, only the first node checks."""
    if checkpoints.shared() and node_index():
        return False
    before = time.time() - _QUIET_S
    for at, files in _folders(checkpoints.folder()):
        names = [name for name in files if not checkpoints.is_partial(name)]
        if any(name.endswith(_SHARD) for name in names):
            names = [name for name in names if name == _METADATA]
        if any(ended or os.lstat(os.path.join(at, name)).st_mtime <= before for name in names):
            return True
    return False


def _folders(folder: str) -> Iterator[Tuple[str, List[str]]]:
    """Yield the folders below one, with their files' names, except those that nbtorchjob keeps there."""
    if not folder:
        return
    for at, folders, files in islice(os.walk(folder), _MOST_FOLDERS):
        folders[:] = [name for name in folders if not name.startswith(checkpoints.BESIDE)]
        yield at, files
