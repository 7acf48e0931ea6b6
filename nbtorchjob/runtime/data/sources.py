"""Where data comes from: what all sources have in common, which one a URL needs, and those in stores.

A source first says what there is (``look``): each file with its size, and a version that changes with the
content. Then it fetches one file at a time, and is patient: a network or a server that refuses now may not do
so later. Everything works with the standard library alone, except stores, which need fsspec and its driver;
huggingface_hub is used if it is installed. Data that was sent with the job is in its store, too.
"""

from __future__ import annotations

import abc
import errno
import fnmatch
import hashlib
import importlib
import json
import os
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar
from urllib.parse import parse_qs, urlsplit, urlunsplit

from nbtorchjob.runtime import store
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.store.payload import PayloadError

PART = ".nbtorchjob-part"  # suffix of a file that is being fetched
_LONGEST_NAME = 255  # bytes of a file's name, on all usual file systems
FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST = 1000  # characters of an error
_TRIES = 5  # in a row without any progress
_AGAIN_S = 2.0  # until the second one; twice as long each time

_T = TypeVar("_T")


class DataError(PayloadError):
    """Data can't be fetched; ``code`` is its node's exit code: another try may help, or not.

    ``again_s`` is after how many seconds another try may help here; None if it won't. ``hidden`` says that
    a server shows nothing there, or not to this user.
    """

    hidden = False

    def __init__(self, text: str, code: int = exits.CONFIG_ERROR, again_s: Optional[float] = None) -> None:
        super().__init__(" ".join(text.split())[:_LONGEST])  # whatever a library or a server says
        self.code = code
        self.again_s = again_s

    @classmethod
    def later(cls, text: str, again_s: float = 0.0) -> "DataError":
        """Return an error for data that may be available a little later."""
        return cls(text, exits.RECOVERABLE_ERROR, again_s)


def left(where: str) -> DataError:
    """Return the error for a transfer that is stopped, so that its part goes on later."""
    return DataError.later("%s was left, as other data can't be fetched" % where)


class File(NamedTuple):
    """A file of a source by its relative path; ``size`` is None if it is unknown."""

    name: str
    size: Optional[int]


class Look(NamedTuple):
    """What a source has. Without a ``version`` it is unknown whether a copy is still current."""

    version: str
    files: List[File]

    @property
    def size(self) -> Optional[int]:
        """The number of bytes of all files, if it is known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class Source(abc.ABC):
    """One place that data comes from. Setting ``stopped`` asks it to end its transfers.

    ``notes`` is a folder beside the fetched files that isn't data.
    """

    notes = ""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stopped = threading.Event()

    @abc.abstractmethod
    def look(self) -> Look:
        """Say what there is; raises ``DataError``."""

    @abc.abstractmethod
    def fetch(self, file: File, folder: str) -> None:
        """Fetch a file to a place below a folder, whole or not at all.

        Raises ``DataError``, and ``OSError`` if the folder can't be written to.
        """

    def is_still(self, look: Look) -> bool:
        """Return whether files that came since ``look`` are sure to be of its version."""
        return True

    def patiently(self, attempt: Callable[[], _T], done: Callable[[], int] = lambda: 0) -> _T:
        """Return what ``attempt`` returns, repeated if that may help: up to five times without progress."""
        failures = 0
        while True:
            before = done()
            try:
                return attempt()
            except DataError as exc:
                failures = failures + 1 if done() <= before else 0
                if exc.again_s is None or self.stopped.is_set():
                    raise
                if failures == _TRIES:
                    raise DataError("%s (tried %d times)" % (exc, _TRIES), exc.code) from None
                wait_s = max(exc.again_s, _AGAIN_S * 2 ** (failures - 1) if failures else 0.0)
            self.stopped.wait(wait_s)


def of(entry: Dict[str, Any]) -> Source:
    """Return the source for an entry of the payload's header: by ``where``, or the ``list`` of sent files."""
    from nbtorchjob.runtime.data import web  # late: it imports this module

    where = str(entry["where"])
    if "list" in entry:
        return SentFolder(where, entry["list"])
    scheme = urlsplit(where).scheme
    if scheme in ("http", "https"):
        return web.Web(where)
    return web.hub(where) if scheme == "hf" else Store(where)


def target(file: File, folder: str) -> str:
    """Return the path of a file below a folder, and make the folder that it goes into."""
    path = os.path.join(folder, *file.name.split("/"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def part_of(path: str) -> str:
    """Return where a file is written until it is whole: beside it, though its name may be as long as any."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name + PART)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, name + PART)


class FilteredUrl(NamedTuple):
    """A URL, and which of its files are wanted: ``?include=*.json,*.safetensors&exclude=*.bin``."""

    url: str
    include: Tuple[str, ...]
    exclude: Tuple[str, ...]

    @classmethod
    def parse(cls, where: str) -> "FilteredUrl":
        """Split the patterns off a URL."""
        parts = urlsplit(where)
        query = parse_qs(parts.query.replace("+", "%2B"))  # names have a plus; in forms it is a space
        include, exclude = (
            tuple(pattern for text in query.get(key, ()) for pattern in text.split(",") if pattern)
            for key in ("include", "exclude")
        )
        return cls(urlunsplit(parts._replace(query="")), include, exclude)

    def has(self, name: str) -> bool:
        """Return whether a file is wanted."""
        is_included = not self.include or any(fnmatch.fnmatch(name, pattern) for pattern in self.include)
        return is_included and not any(fnmatch.fnmatch(name, pattern) for pattern in self.exclude)

    def kept(self, files: List[File], where: str) -> List[File]:
        """Return the wanted files; raises ``DataError`` if there are none, or one leads elsewhere."""
        kept = sorted(file for file in files if self.has(file.name))
        if not kept:
            why = "no file matches" if files else "no file exists there"
            raise DataError("%s: %s" % (where, why))
        for file in kept:
            if {"", ".", ".."} & set(file.name.split("/")):
                raise DataError("%s has a file that leads out of it: %r" % (where, file.name[:200]))
        return kept


# A driver fetches several ranges of an object at once, each with a request of its own.
_RANGE, _RANGES = 8 << 20, 4


# The fields of a store's listing that change with an object's content
_MARKS = ("ETag", "etag", "md5Hash", "content_settings", "LastModified", "updated", "last_modified", "mtime")


class Store(Source):
    """An object, or all objects below a prefix, in a store that fsspec knows."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._filtered = FilteredUrl.parse(where)
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
            self._fs.invalidate_cache()  # it is shared by all of this process, and keeps listings
            self._root = root.rstrip("/")
            self._single = not url.endswith("/") and self._fs.isfile(self._root)
            if self._single:
                infos = {self._root.rpartition("/")[2]: self._fs.info(self._root)}
            else:
                self._fs.ls(self._root, detail=False)  # after an error, ``find`` finds nothing (2026.9)
                objects = self._fs.find(self._root, detail=True)
                infos = {path[len(self._root) :].lstrip("/"): info for path, info in objects.items()}
        # Some tools, such as S3's console, make a folder by an empty object whose name ends with a slash.
        files = [
            File(name, info.get("size")) for name, info in infos.items() if name and not name.endswith("/")
        ]
        kept = self._filtered.kept(files, url)
        marks = []
        for name, _ in kept:
            info = infos[name]
            mark = next((info[key] for key in _MARKS if info.get(key)), "")
            marks.append([name, "%s %s" % (info.get("size"), mark)])
        return Look(hashlib.sha256(json.dumps(marks).encode()).hexdigest(), kept)

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        path = target(file, folder)
        with open(part_of(path), "ab") as out:
            self.patiently(lambda: self._read_on(out, file), out.tell)
        os.replace(out.name, path)

    def _read_on(self, out: Any, file: File) -> None:
        """Append what is missing, by ranges: drivers don't resume a transfer that was cut off."""
        path = self._root if self._single else "%s/%s" % (self._root, file.name)
        url = self._filtered.url if self._single else "%s/%s" % (self._filtered.url, file.name)
        if file.size is None:
            with _store_errors(url):
                self._fs.get_file(path, out.name)
            return
        while out.tell() < file.size:
            if self.stopped.is_set():
                raise left(url)
            begins = range(out.tell(), file.size, _RANGE)[:_RANGES]
            ends = [min(begin + _RANGE, file.size) for begin in begins]
            with _store_errors(url):
                pieces = self._fs.cat_ranges([path] * len(ends), [*begins], ends)
            for piece in pieces:
                if isinstance(piece, Exception):  # returned in place of the bytes (fsspec 2026.9)
                    with _store_errors(url):
                        raise piece
                out.write(piece)
            if out.tell() < ends[-1]:
                raise DataError("%s changed while it was fetched" % url, exits.RECOVERABLE_ERROR)

    def is_still(self, look: Look) -> bool:
        """See the base class: the ranges of an object that changes meanwhile are of two versions."""
        return self.look().version == look.version


class _store_errors:
    """Turns errors of a store's library into one line."""

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
            raise DataError("nothing exists at %s: check the name" % url) from None
        if isinstance(exc, PermissionError) or "Credentials" in name or "Forbidden" in name:
            how = "pass them with --secret-env or --env-from"
            raise DataError(
                "%s: credentials are missing or wrong (%s: %s): %s" % (url, name, exc, how)
            ) from None
        if isinstance(exc, OSError) and exc.errno in FULL:  # this node's disk is full
            return
        text = "%s can't be fetched: %s: %s" % (url, name, exc)
        raise (DataError(text) if isinstance(exc, ValueError) else DataError.later(text)) from None


class SentFolder(Source):
    """A folder of the notebook's machine, whose files are in the job's store by their digests."""

    def __init__(self, where: str, listed: Dict[str, Any]) -> None:
        super().__init__(where)
        self._listed = listed
        self._rows: Dict[str, Tuple[int, str, str]] = {}

    def look(self) -> Look:
        """See the base class; the payload's signature covers the list of files, by its digest."""
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
            with open(part_of(path), "wb") as out, _store_errors(url):
                return store.digest(url, out, size)

        if self.patiently(copy) != digest:
            raise DataError("%s at %s isn't what was sent: remove it there" % (file.name, url))
        os.replace(part_of(path), path)
