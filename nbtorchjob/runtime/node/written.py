"""Tells once that a node's ranks have saved a checkpoint, and once that they write for TensorBoard.

By that a page offers to resume an ended job, or to show its curves, without asking its nodes.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Iterator, List, Tuple

from nbtorchjob.runtime.api import artifacts, checkpoints
from nbtorchjob.runtime.facts.emit import emit
from nbtorchjob.runtime.facts.injected import node_index

CHECKPOINT, CURVES = "checkpoint", "tensorboard"
EVERY_S = 5.0
_QUIET_S = 2.0  # for which a file that ranks may still write stays as it is
_MOST_FOLDERS = 10_000  # that are looked into
_LONGER = 50  # times as long as a look takes, the next one is waited for
# torch's distributed checkpoint writes its metadata once all shards are there.
_SHARD, _METADATA = ".distcp", ".metadata"


@contextmanager
def telling(every_s: float = EVERY_S) -> Iterator[None]:
    """Look now and then, and once the ranks have ended."""
    left = {CHECKPOINT: _saved, CURVES: _has_curves}
    ended = threading.Event()

    def look() -> None:
        for what, is_there in list(left.items()):
            with suppress(OSError):
                if is_there(ended=ended.is_set()):
                    del left[what]
                    emit("FilesSeen", node=node_index(), what=what)

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


def _saved(*, ended: bool) -> bool:
    """Return whether a checkpoint is whole; of a folder that all nodes share the first one tells."""
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


def _has_curves(*, ended: bool) -> bool:
    """Return whether there is a file of events, which TensorBoard reads as it grows."""
    return any("tfevents" in name for _, files in _folders(artifacts.folder()) for name in files)


def _folders(folder: str) -> Iterator[Tuple[str, List[str]]]:
    """Yield the folders below one, with their files' names; not those that we keep there ourselves."""
    if not folder:
        return
    for at, folders, files in islice(os.walk(folder), _MOST_FOLDERS):
        folders[:] = [name for name in folders if not name.startswith(checkpoints.BESIDE)]
        yield at, files
