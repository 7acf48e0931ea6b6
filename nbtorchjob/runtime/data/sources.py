"""Where data comes from: what all sources have in common, and which one a place needs.

A source first says what there is (``look``): each file with its size, and a version that changes with the
content. Then it fetches one file at a time, and is patient: what a network or a server refuses now it may
give later. All of it works with the standard library alone, apart from stores, which need fsspec and its
driver; huggingface_hub is used where it is installed.
"""

from __future__ import annotations

import abc
import errno
import fnmatch
import os
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar
from urllib.parse import parse_qs, urlsplit, urlunsplit

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.store.payload import PayloadError

PART = ".nbtorchjob-part"  # of a file on its way
FULL = (errno.ENOSPC, errno.EDQUOT)
_TRIES = 5  # in a row that bring nothing
_AGAIN_S = 2.0  # until the second one; twice as long each time

_T = TypeVar("_T")


class DataError(PayloadError):
    """Data can't be had; ``code`` is what its node ends with: another try may help, or not.

    ``again_s`` is after how many seconds another try may help here; None where it doesn't. ``hidden`` is
    whether a server shows nothing there, or not to this user.
    """

    hidden = False

    def __init__(self, text: str, code: int = exits.CONFIG_ERROR, again_s: Optional[float] = None) -> None:
        super().__init__(text)
        self.code = code
        self.again_s = again_s

    @classmethod
    def later(cls, text: str, again_s: float = 0.0) -> "DataError":
        """Return the error of what may be had a little later."""
        return cls(text, exits.RECOVERABLE_ERROR, again_s)


class File(NamedTuple):
    """A file of a source by its relative path; ``size`` is None where nobody says it."""

    name: str
    size: Optional[int]


class Look(NamedTuple):
    """What a source has. Without a ``version`` nobody can tell whether a copy is still current."""

    version: str
    files: List[File]

    @property
    def size(self) -> Optional[int]:
        """All bytes, if they are known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class Source(abc.ABC):
    """One place that data comes from. Whoever sets ``stopped`` wants nothing more of it.

    ``notes`` is a folder beside the files that were fetched that isn't data.
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
        """Bring a file below a folder, whole or not at all.

        Raises ``DataError``, and ``OSError`` where the folder can't be written to.
        """

    def patiently(self, attempt: Callable[[], _T], done: Callable[[], int] = lambda: 0) -> _T:
        """Return what an attempt returns; make another where that may help, and five that bring nothing."""
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
    """Return the source of an entry of the payload's header: ``where``, or the ``list`` of what was sent."""
    from nbtorchjob.runtime.data import hub, stores, web  # late: they build on what is here

    where = str(entry["where"])
    if "list" in entry:
        return stores.Sent(where, entry["list"])
    scheme = urlsplit(where).scheme
    if scheme in ("http", "https"):
        return web.Web(where)
    return hub.hub(where) if scheme == "hf" else stores.Store(where)


def target(file: File, folder: str) -> str:
    """Return the path of a file below a folder, in a folder that is there."""
    path = os.path.join(folder, *file.name.split("/"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


class Filtered(NamedTuple):
    """A URL, and which of its files are wanted: ``?include=*.json,*.safetensors&exclude=*.bin``."""

    url: str
    include: Tuple[str, ...]
    exclude: Tuple[str, ...]

    @classmethod
    def parse(cls, where: str) -> "Filtered":
        """Take the patterns off a URL."""
        parts = urlsplit(where)
        query = parse_qs(parts.query)
        wanted, unwanted = (
            tuple(pattern for text in query.get(key, ()) for pattern in text.split(",") if pattern)
            for key in ("include", "exclude")
        )
        return cls(urlunsplit(parts._replace(query="")), wanted, unwanted)

    def has(self, name: str) -> bool:
        """Return whether a file is wanted."""
        wanted = not self.include or any(fnmatch.fnmatch(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in self.exclude)

    def kept(self, files: List[File], where: str) -> List[File]:
        """Return the wanted files; raises ``DataError`` where there are none, or one that leads elsewhere."""
        kept = sorted(file for file in files if self.has(file.name))
        if not kept:
            why = "no file matches" if files else "no file lies there"
            raise DataError("%s: %s" % (where, why))
        for file in kept:
            if {"", ".", ".."} & set(file.name.split("/")):
                raise DataError("%s has a file that leads out of it: %r" % (where, file.name[:200]))
        return kept
