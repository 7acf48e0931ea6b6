"""Data in stores: objects that fsspec knows, and what was sent with the job."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from typing import Any, Dict, Optional, Tuple
from urllib.parse import urlsplit

from nbtorchjob.runtime.data.sources import FULL, PART, DataError, File, Filtered, Look, Source, target
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.store import store

# A driver fetches some ranges of an object at once, each by a request of its own.
_RANGE, _RANGES = 8 << 20, 4


class Store(Source):
    """An object, or all below a prefix, in a store that fsspec knows."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._filtered = Filtered.parse(where)
        self._root = ""
        self._fs: Any = None
        self._single = False

    def look(self) -> Look:
        """See the base class."""
        return self.patiently(self._look)

    def _look(self) -> Look:
        url = self._filtered.url
        with _store_errors(url):
            core: Any = importlib.import_module("fsspec.core")
            self._fs, root = core.url_to_fs(url)
            self._root = root.rstrip("/")
            self._single = not url.endswith("/") and self._fs.isfile(self._root)
            if self._single:
                infos = {self._root.rpartition("/")[2]: self._fs.info(self._root)}
            else:
                self._fs.ls(self._root, detail=False)  # ``find`` takes what can't be had for empty (2026.9)
                objects = self._fs.find(self._root, detail=True)
                infos = {path[len(self._root) :].lstrip("/"): info for path, info in objects.items()}
        files = [File(name, info.get("size")) for name, info in infos.items() if name]
        kept = self._filtered.kept(files, url)
        marks = [[name, _mark(infos[name])] for name, _ in kept]
        return Look(hashlib.sha256(json.dumps(marks).encode()).hexdigest(), kept)

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        path = target(file, folder)
        with open(path + PART, "ab") as out:
            self.patiently(lambda: self._read_on(out, file), out.tell)
        os.replace(path + PART, path)

    def _read_on(self, out: Any, file: File) -> None:
        """Append what is missing, by ranges: drivers don't go on with a file that was cut off."""
        path = self._root if self._single else "%s/%s" % (self._root, file.name)
        url = self._filtered.url if self._single else "%s/%s" % (self._filtered.url, file.name)
        if file.size is None:
            with _store_errors(url):
                self._fs.get_file(path, out.name)
            return
        while out.tell() < file.size and not self.stopped.is_set():
            begins = range(out.tell(), file.size, _RANGE)[:_RANGES]
            ends = [min(begin + _RANGE, file.size) for begin in begins]
            with _store_errors(url):
                pieces = self._fs.cat_ranges([path] * len(ends), [*begins], ends)
            for piece in pieces:
                if isinstance(piece, Exception):  # returned in its place (fsspec 2026.9)
                    with _store_errors(url):
                        raise piece
                out.write(piece)
            if out.tell() < ends[-1]:
                raise DataError("%s changed while it was fetched" % url, exits.RECOVERABLE_ERROR)


def _mark(info: Dict[str, Any]) -> str:
    """Return what changes with an object's content, as its store says it."""
    known = (
        "ETag",
        "etag",
        "md5Hash",
        "content_settings",
        "LastModified",
        "updated",
        "last_modified",
        "mtime",
    )
    return "%s %s" % (info.get("size"), next((info[key] for key in known if info.get(key)), ""))


class _store_errors:
    """Turns what a store's library raises into one line."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return

    def __exit__(self, type_: Any, exc: Optional[BaseException], trace: Any) -> None:
        if exc is None or not isinstance(exc, Exception) or isinstance(exc, DataError):
            return
        name, url = type(exc).__name__, self._url
        if isinstance(exc, ImportError):
            scheme = urlsplit(url).scheme
            driver = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}.get(
                scheme, ""
            )
            need = " ".join(filter(None, ("fsspec", driver)))
            raise DataError(
                "%s needs %s, which this node lacks (%s): install it with --package %s"
                % (url, need, exc, driver or "fsspec")
            ) from None
        if isinstance(exc, FileNotFoundError) or "NoSuchBucket" in str(exc):
            raise DataError("nothing lies at %s: check the name" % url) from None
        if isinstance(exc, PermissionError) or "Credentials" in name or "Forbidden" in name:
            how = "pass them with --secret-env or --env-from"
            raise DataError(
                "%s: credentials are missing or wrong (%s: %s): %s" % (url, name, exc, how)
            ) from None
        if isinstance(exc, OSError) and exc.errno in FULL:  # a full disk of this node
            return
        text = "%s can't be had: %s: %s" % (url, name, exc)
        raise (DataError(text) if isinstance(exc, ValueError) else DataError.later(text)) from None


class Sent(Source):
    """A folder of the notebook, whose files lie in the job's store by their digests."""

    def __init__(self, where: str, listed: Dict[str, Any]) -> None:
        super().__init__(where)
        self._listed = listed
        self._rows: Dict[str, Tuple[int, str, str]] = {}

    def look(self) -> Look:
        """See the base class; the list of files was signed with the payload, by its digest."""
        url, sha256, size = self._listed["url"], self._listed["sha256"], self._listed["size"]

        def read() -> Any:
            with _store_errors(url), store.opened(url) as file:
                return file.read(size + 1)

        text = self.patiently(read)
        if hashlib.sha256(text).hexdigest() != sha256:
            raise DataError("%s at %s isn't what was sent: remove it there" % (self.where, url))
        for name, count, digest in json.loads(text.decode()):
            self._rows[name] = (count, digest, "%s/%s" % (url.rpartition("/")[0], digest))
        return Look(sha256, [File(name, row[0]) for name, row in self._rows.items()])

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        size, digest, url = self._rows[file.name]
        path = target(file, folder)

        def copy() -> str:
            with open(path + PART, "wb") as out, _store_errors(url):
                return store.digest(url, out, size)

        if self.patiently(copy) != digest:
            raise DataError("%s at %s isn't what was sent: remove it there" % (file.name, url))
        os.replace(path + PART, path)
