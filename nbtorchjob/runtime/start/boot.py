"""Stands in for a payload too big for one Secret: a host mounts this text as ``job.pyz``.

Beside it are the payload's parts (``part-000``, …), or ``payload.url`` with two lines: the payload's URL in
a store, and its SHA-256 in hex. It is self-contained, and runs on any image with Python.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
from typing import BinaryIO
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

_CANCELLED, _CONFIG_ERROR = 202, 2  # as in ``exits.py``, which travels in the payload
_STOP = (signal.SIGTERM, signal.SIGINT)


def main(folder: str) -> None:
    """Assemble the payload from ``folder``, and replace this process with it."""
    for number in _STOP:
        signal.signal(number, lambda *_: os._exit(_CANCELLED))
    try:
        target = os.path.join(tempfile.mkdtemp(prefix="nbtorchjob-"), "job.pyz")
        with open(target, "wb") as file:
            _write(folder, file)
    except Exception as exc:  # whatever a store's library raises
        sys.stderr.write("nbtorchjob: the payload can't be fetched: %s: %s\n" % (type(exc).__name__, exc))
        sys.exit(_CONFIG_ERROR)
    # During the exec no handler is installed: a signal stays pending until the payload handles it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    os.execv(sys.executable, [sys.executable, target, *sys.argv[1:]])


def _write(folder: str, target: BinaryIO) -> None:
    parts = sorted(name for name in os.listdir(folder) if name.startswith("part-"))
    for name in parts:
        with open(os.path.join(folder, name), "rb") as part:
            shutil.copyfileobj(part, target)
    if not parts:
        with open(os.path.join(folder, "payload.url"), encoding="utf-8") as text:
            url, _, digest = text.read().strip().partition("\n")
        sha256 = hashlib.sha256()
        scheme = urlsplit(url).scheme
        if scheme in ("http", "https"):
            opened = urlopen(url)
        elif scheme in ("", "file"):
            opened = open(unquote(urlsplit(url).path) if scheme else url, "rb")  # noqa: SIM115
        else:
            opened = importlib.import_module("fsspec").open(url, "rb").open()
        with opened as source:
            for chunk in iter(lambda: source.read(1 << 20), b""):
                sha256.update(chunk)
                target.write(chunk)
        if sha256.hexdigest() != digest:
            raise ValueError("the file at %s isn't what was stored there" % url)


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)))
