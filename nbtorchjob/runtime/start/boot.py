"""Stands in for a payload too big for one Secret: a host mounts this text as ``job.pyz``.

Beside it lie the payload's parts (``part-000``, …), or ``payload.url``: a line that says where a store
has it, and one with its SHA-256 in hex. It runs by itself, on any image with Python.
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
    """Put the payload of ``folder`` together and become it."""
    for number in _STOP:
        signal.signal(number, lambda *_: os._exit(_CANCELLED))
    try:
        target = os.path.join(tempfile.mkdtemp(prefix="nbtorchjob-"), "job.pyz")
        with open(target, "wb") as file:
            _write(folder, file)
    except Exception as exc:  # whatever a store's library raises
        sys.stderr.write("nbtorchjob: the payload can't be had: %s: %s\n" % (type(exc).__name__, exc))
        sys.exit(_CONFIG_ERROR)
    # Between two programs nobody would handle a signal: the payload finds it waiting.
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
