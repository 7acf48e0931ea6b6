"""A job's places (``--storage``, ``--checkpoints``), seen from the host: URLs that fsspec knows, or paths."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbtorchjob.backends.kubernetes import objects
from nbtorchjob.errors import SubmitError
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo


def inside(storage: str, name: str) -> str:
    """Give the URL of a job's own folder in the store; what a node writes is there, too."""
    return f"{storage.rstrip('/')}/{name}"


def checkpoints(spec: JobSpec, info: JobInfo) -> str:
    """Give where the job's checkpoints are, a URL or a path in its pods; "" where it asks for no place.

    All its attempts have it, and no later job of its name.
    """
    place = spec.cluster.checkpoints
    return inside(place, f"{info.name}-{objects.labels(info)[objects.RUN]}") if place else ""


def put(data: memoryview, url: str) -> None:
    """Write ``data`` to ``url``. Raises ``SubmitError``."""
    with _told(url):
        files, path = _fsspec().core.url_to_fs(url)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with files.open(path, "wb") as file:
            file.write(data)


def clear(info: JobInfo) -> None:
    """Remove all that an ended job has in stores; a folder of checkpoints that only pods see stays.

    Raises ``SubmitError``.
    """
    spec = info.asked
    storage, kept = spec.cluster.storage, checkpoints(spec, info)
    if storage:
        remove(inside(storage, info.name))
    if "://" in kept:
        remove(kept)


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
        raise SubmitError(f"{url} can't be used from here ({type(exc).__name__}: {said})") from exc


def _fsspec() -> Any:
    try:
        return importlib.import_module("fsspec")
    except ImportError:
        raise SubmitError("a store needs fsspec here: pip install 'nbtorchjob[kubernetes]'") from None
