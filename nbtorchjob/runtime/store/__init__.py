"""How a rank's value leaves a node on a cluster: through the log, or through a store if it is too big.

The modules beside it: the payload, a rank's streams, and frames in a pod's log.

An event names the value by a *ref*, ``log#DIGEST`` or ``URL#DIGEST``; the digest is the HMAC-SHA256 of
the whole file with the job's key, in hex. A URL is an absolute path, ``file://`` or one for fsspec.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
from typing import Any, BinaryIO, Optional, Tuple
from urllib.parse import unquote, urlsplit

from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.store.payload import PayloadError

_PIECE = 1 << 20


def digest(url: str, target: BinaryIO, size: int) -> str:
    """Write the file at ``url`` to ``target``, and return its SHA-256, in hex.

    If the file is longer than ``size``, only one byte more is read: enough for another digest. Raises the
    store's own errors.
    """
    sha256, left = hashlib.sha256(), size + 1
    with opened(url) as source:
        while left > 0:
            piece = source.read(min(_PIECE, left))
            if not piece:
                break
            sha256.update(piece)
            target.write(piece)
            left -= len(piece)
    return sha256.hexdigest()


STORAGE = "NBTORCHJOB_STORAGE"
BY_LOG = 4 << 20  # bytes; a kubelet keeps some 50 MiB of a container's log
LOG = "log"
_CHUNK = 4 << 20


def check() -> None:
    """Raise ``PayloadError`` if this node can't write to the job's store: before hours of work."""
    url = os.environ.get(STORAGE)
    if not url:
        return
    try:
        folder = path_of(url)
        if folder:
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError("not writable for user %d" % os.getuid())
        else:
            _fsspec().get_filesystem_class(urlsplit(url).scheme)
    except (OSError, ImportError, ValueError) as exc:
        raise PayloadError(
            "values can't be written to --storage %s from this image: %s" % (url, exc)
        ) from exc


class Unsent(Exception):
    """A file is too big for the log, and no store takes it."""


def put(path: str, name: str, key: bytes) -> Tuple[str, int]:
    """Send the value's file at ``path`` as ``send`` does; if it can't be sent, send the reason."""
    try:
        return send(path, name, key)
    except Unsent as exc:
        wire.write_withheld(path, wire.Withheld(os.path.getsize(path), str(exc)), key)
        return send(path, name, key)


def send(path: str, name: str, key: bytes) -> Tuple[str, int]:
    """Send the file at ``path`` as ``name``; return its ref and its size in bytes. Raises ``Unsent``.

    A small file is left for init to send (``stream.py``).
    """
    size, url = os.path.getsize(path), os.environ.get(STORAGE)
    if size <= BY_LOG:
        with open(path, "rb") as file:
            return LOG + "#" + wire.sign(file.read(), key).hex(), size
    if not url:
        raise Unsent("at most %d MiB can be sent through the log: set --storage" % (BY_LOG >> 20))
    target = url.rstrip("/") + "/" + name
    try:
        return target + "#" + copy(path, target, key), size
    except Exception as exc:  # whatever a store's library raises
        raise Unsent("--storage %s refused it (%s: %s)" % (url, type(exc).__name__, exc)) from exc


def copy(path: str, url: str, key: bytes) -> str:
    """Write the file at ``path`` to ``url``; return its digest. Raises the store's own errors."""
    target = path_of(url)
    with open(path, "rb") as source:
        if not target:
            with _fsspec().open(url, "wb") as file:
                return _pour(source, file, key)
        partial = target + ".partial"
        with open(partial, "wb") as file:
            digest = _pour(source, file, key)
        os.replace(partial, target)
        return digest


def fetch(ref: str, path: str, key: bytes, size: int) -> None:
    """Copy the file that ``ref`` names from its store to ``path``, ``size`` bytes at most.

    Raises ``WireError`` if it isn't what this job's rank stored, and the store's own errors.
    """
    url, _, digest = ref.rpartition("#")
    with opened(url) as file, open(path, "wb") as target:
        poured = _pour(file, target, key, size)
    if not hmac.compare_digest(poured, digest):
        raise wire.WireError("the file at %s isn't what this job's rank stored there" % url)


def opened(url: str) -> Any:
    """Open the file at a URL for reading; raises the store's own errors."""
    source = path_of(url)
    return open(source, "rb", opener=wire.plain) if source else _fsspec().open(url, "rb")


def _pour(source: Any, target: BinaryIO, key: bytes, most: Optional[int] = None) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    done = 0
    while True:
        chunk = source.read(_CHUNK)
        if not chunk:
            return digest.hexdigest()
        done += len(chunk)
        if most is not None and done > most:
            raise wire.WireError("it is bigger than the %d bytes that its rank announced" % most)
        digest.update(chunk)
        target.write(chunk)


def path_of(url: str) -> str:
    """Return the path in a URL of this machine's files; "" for other URLs."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return unquote(parts.path)
    return "" if "://" in url else url


def _fsspec() -> Any:
    return importlib.import_module("fsspec")
