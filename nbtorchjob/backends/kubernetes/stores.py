"""The store of a job (``--storage``), seen from the host: any URL that fsspec knows, or a path."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbtorchjob.errors import SubmitError


def inside(storage: str, name: str) -> str:
    """Give the URL of a job's own folder in the store; what a node writes is there, too."""
    return f"{storage.rstrip('/')}/{name}"


def put(data: memoryview, url: str) -> None:
    """Write ``data`` to ``url``. Raises ``SubmitError``."""
    with _told(url):
        files, path = _fsspec().core.url_to_fs(url)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with files.open(path, "wb") as file:
            file.write(data)


def remove(url: str) -> None:
    """Remove a job's folder, if it is there. Raises ``SubmitError``."""
    with _told(url):
        files, path = _fsspec().core.url_to_fs(url)
        if files.exists(path):
            files.rm(path, recursive=True)


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # whatever a store's library raises
        said = " ".join(str(exc).split())
        raise SubmitError(f"--storage: {url} can't be used from here ({type(exc).__name__}: {said})") from exc


def _fsspec() -> Any:
    try:
        return importlib.import_module("fsspec")
    except ImportError:
        raise SubmitError("--storage needs fsspec here: pip install 'nbtorchjob[kubernetes]'") from None
