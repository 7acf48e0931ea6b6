"""Provides a job's data on this node before its ranks start.

Fetched data lies in a cache (``cache.py``): other nodes on the host, and other jobs, wait for the node that
fetches, and use the same data. Interrupted transfers resume where they stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from typing import IO, Any, Dict, Iterator, List, Optional

from nbtorchjob.runtime.api.artifacts import DATA
from nbtorchjob.runtime.data import cache, sources
from nbtorchjob.runtime.data.sources import DataError, File, Look, Source
from nbtorchjob.runtime.facts import emit, exits
from nbtorchjob.runtime.facts.injected import STREAM, run

_AT_ONCE = 8  # files
_LOOK_S = 0.2
_TELL_S, _LONGER = 2.0, 50.0  # between two reports of progress; rarer as it takes longer
_MIB = 1 << 20
_STOP_S = 40.0  # for threads to end once one has failed: longer than they wait for a server

# How long other nodes may need to fetch, as far as this one can tell.
_SLOW = 5 * _MIB  # bytes a second
_UNKNOWN_S, _MOST_S = 3600.0, 86400.0

_used: List[IO[str]] = []  # what keeps this node's data in the cache, for as long as the node lives


def provide(header: Dict[str, Any], folder: str, node: int) -> float:
    """Fetch missing data, and tell ranks where data is; return for how many seconds other nodes may fetch.

    Raises ``DataError``, before any rank starts.
    """
    kept_in = header["cache"] or os.path.join(folder, "data")
    places: Dict[str, str] = {}
    others_s = 0.0
    for entry in header["entries"]:
        name = str(entry["name"])
        if "path" in entry:
            path = str(entry["path"])
            if not os.path.exists(path):
                raise DataError("--data %s: there is no %s on this node" % (name, path))
            if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
                raise DataError("--data %s: user %d may not read %s" % (name, os.getuid(), path))
            if os.path.isdir(path):
                places[name] = path
            else:
                alone = os.path.join(folder, "data-of-" + name)
                shutil.rmtree(alone, ignore_errors=True)  # an earlier attempt's
                os.makedirs(alone)
                os.symlink(path, os.path.join(alone, os.path.basename(path)))
                places[name] = alone
        else:
            fetch = _Fetch(entry, kept_in, str(header["place"]), node)
            places[name] = fetch.run()
            others_s += _UNKNOWN_S if fetch.size is None else fetch.size / _SLOW
    os.environ[DATA] = json.dumps(places)
    return min(others_s, _MOST_S)


def is_complete(own: str, look: Look) -> bool:
    """Whether all files of some data are in its folder: some may have been removed since."""
    sizes = _sizes(own)
    return all(file.name in sizes and file.size in (None, sizes[file.name]) for file in look.files)


class _Fetch:
    """One piece of data on its way to this node; ``size`` is its number of bytes, if known."""

    def __init__(self, entry: Dict[str, Any], cache: str, place: str, node: int) -> None:
        self._name, self._where = str(entry["name"]), str(entry["where"])
        self._cache, self._place, self._node = cache, place, node
        self._source: Source = sources.of(entry)
        self._began = time.time()
        self._had = 0  # bytes that were there then
        self.size: Optional[int] = None

    def run(self) -> str:
        """Return where the complete data is; it stays there for as long as this process lives."""
        try:
            look = self._source.look()
            self.size = look.size
            # Data of unknown version is fetched once per job.
            own = cache.place(self._cache, self._where, look.version or "of run %s" % run())
            kept = self._hold(look, own)
        except DataError as exc:
            raise DataError("--data %s: %s" % (self._name, exc), exc.code) from None
        except OSError as exc:
            location = "%s (%s)" % (self._cache, self._place)
            if exc.errno in sources.FULL:
                text = (
                    "--data %s: the disk of %s is full; what was fetched so far is kept for the next attempt"
                )
                raise DataError(text % (self._name, location), _no_room()) from None
            text = "--data %s: it can't be written to %s: %s"
            raise DataError(text % (self._name, location, exc.strerror or exc)) from None
        emit(
            "Fetched",
            node=self._node,
            name=self._name,
            size=sum(_sizes(own).values()),
            files=len(look.files),
            place=self._place,
            kept=kept,
            seconds=time.time() - self._began,
        )
        return own

    def _hold(self, look: Any, own: str) -> bool:
        """Keep the data at ``own`` in the cache, fetching it if it isn't complete; return whether it was."""
        kept = True
        while True:
            used = cache.use(own)
            if used is not None:
                if is_complete(own, look):
                    _used.append(used)
                    return kept
                used.close()
            os.makedirs(self._cache, exist_ok=True)
            with self._alone(own) as lock:
                if not is_complete(own, look):  # else fetched by another node meanwhile
                    self._fetch(look, own, lock)
                    kept = False
                    if not is_complete(own, look):
                        raise DataError("what was fetched isn't what %s lists" % self._where)

    def _fetch(self, look: Look, own: str, lock: IO[str]) -> None:
        # Data that has lost some of its files may be in use: they are restored in place.
        partial = own if os.path.isdir(own) else cache.partial(own)
        sizes = _sizes(partial)
        self._began, self._had = time.time(), sum(sizes.values())
        left = [file for file in look.files if file.size is None or sizes.get(file.name) != file.size]
        # Remove other data from the cache, as far as this needs room; raise if that isn't enough. A full disk
        # takes no file's contents, and no folder, before that.
        removed_entries = cache.trim(self._cache, (look.size or 0) - self._had, time.time())
        if removed_entries:
            text = "%d MiB that no job uses were removed from %s (%s) to make room for data %s"
            size = sum(entry.size for entry in removed_entries) // _MIB
            emit("Notice", text=text % (size, self._cache, self._place, self._name))
        free = shutil.disk_usage(self._cache).free
        if look.size is not None and look.size - self._had > free:
            text = "it needs %d MiB in %s (%s), where %d MiB are free"
            needs = (look.size - self._had + _MIB - 1) // _MIB
            raise DataError(text % (needs, self._cache, self._place, free // _MIB), _no_room())
        cache.describe(lock, self._where, 0)
        os.makedirs(partial, exist_ok=True)
        with self._telling(look.size, partial):
            _fetch_all(self._source, left, partial)
            if not self._source.is_still(look):
                for name, _ in left:
                    os.unlink(os.path.join(partial, name))
                raise DataError("%s changed while it was fetched" % self._where, exits.RECOVERABLE_ERROR)
        if self._source.notes and not any(file.name.startswith(self._source.notes) for file in look.files):
            notes = os.path.join(partial, self._source.notes)
            shutil.rmtree(notes, ignore_errors=True)
            with suppress(OSError):  # some of the data is beside them
                os.rmdir(os.path.dirname(notes))
        cache.describe(lock, self._where, cache.folder_size(partial))
        for at, _, files in os.walk(partial):
            for file in files:
                os.chmod(os.path.join(at, file), 0o444)  # the owner of the cache can still remove them
        if partial != own:
            os.rename(partial, own)

    @contextmanager
    def _alone(self, own: str) -> Iterator[IO[str]]:
        try:
            with cache.alone(own, lambda: self._tell(0, None, waits=True)) as lock:
                yield lock
        except OSError as exc:
            if exc.errno in cache.NO_LOCKS:
                raise DataError(
                    "the file system of %s has no locks: choose another --data-cache" % self._cache
                ) from None
            raise

    @contextmanager
    def _telling(self, size: Optional[int], partial: str) -> Iterator[None]:
        """Report meanwhile how much has been fetched."""
        done = threading.Event()

        def tell() -> None:
            before = time.time()
            while not done.wait(max(_TELL_S, (time.time() - before) / _LONGER)):
                with suppress(OSError):
                    self._tell(sum(_sizes(partial).values()), size)

        self._tell(sum(_sizes(partial).values()), size)
        thread = threading.Thread(target=tell, daemon=True, name="data")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _tell(self, done: int, size: Optional[int], *, waits: bool = False) -> None:
        emit(
            "Fetching",
            node=self._node,
            name=self._name,
            done=done,
            size=size or 0,
            began=self._began,
            had=self._had,
            waits=waits,
        )


def _no_room() -> int:
    """Return the exit code of a node without room for data: on a cluster, another node may have some."""
    return exits.INFRASTRUCTURE_ERROR if STREAM in os.environ else exits.CONFIG_ERROR


def _fetch_all(source: Source, files: List[File], folder: str) -> None:
    """Fetch files, several at once; after the first error no more are begun."""
    left = list(reversed(files))
    errors: List[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                file = left.pop()
            except IndexError:
                return
            try:
                source.fetch(file, folder)
            except BaseException as exc:  # raised by the thread that waits for these
                errors.append(exc)
                source.stopped.set()

    # Unlike an executor's threads, these don't delay a node that is told to end.
    threads = [
        threading.Thread(target=work, daemon=True, name="data") for _ in range(min(_AT_ONCE, len(files)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not source.stopped.is_set():
            thread.join(_LOOK_S)
    until = time.monotonic() + _STOP_S  # huggingface_hub can't be stopped, but has locks of its own
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if errors:
        raise errors[0]


def _sizes(folder: str) -> Dict[str, int]:
    sizes = {}
    for at, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                path = os.path.join(at, file)
                sizes[os.path.relpath(path, folder)] = os.lstat(path).st_size
    return sizes
