"""A job's stores (``--storage``, ``--checkpoints``), seen from the host: URLs that fsspec knows, or paths."""

from __future__ import annotations

import glob
import hashlib
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from nbtorchjob import errors
from nbtorchjob.errors import NBTorchJobError, SubmitError
from nbtorchjob.machine.activity import activity
from nbtorchjob.runtime import store
from nbtorchjob.runtime.api.checkpoints import BESIDE, is_partial
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts.events import ArtifactsReady, Sent
from nbtorchjob.text import words

_FOLDER = r"[a-z0-9][-a-z0-9.]*"  # of a job
_READ_ONLY = ("http", "https")  # no rank can have written there; requests from here could lead anywhere
_SAID = 300  # characters of a library's error
PIECE = 4 << 20  # bytes in memory at a time
_DIGITS = 12  # of a digest, in a file's name


def folder(storage: str, info: JobInfo) -> str:
    """Return the URL of a job's own folder in the store; nodes write there, too.

    No later job of its name has it: what is left of a deleted job may be removed at any time.
    """
    return inside(storage, f"{info.name}.{info.run}")


def inside(storage: str, name: str) -> str:
    """Return the URL of something in the store."""
    return f"{storage.rstrip('/')}/{name}"


def holds(storage: str | None, sent: Sent) -> bool:
    """Whether a value's or artifacts' reported place is where a job with this ``--storage`` writes them."""
    if isinstance(sent, ArtifactsReady):
        file = f"attempt-{sent.attempt}-node-{sent.node}.zip"
    else:
        file = f"round-{sent.round}-rank-{sent.rank}.value"
    return _is_of_a_job(storage, sent.ref.rpartition("#")[0], file)


def payload(storage: str, info: JobInfo, sha256: str) -> str:
    """Return the URL of a job's payload in its store."""
    return f"{folder(storage, info)}/{_payload_file(sha256)}"


def holds_payload(storage: str | None, url: str, sha256: str) -> bool:
    """Whether a payload's recorded place is where a job with this ``--storage`` has it, not just any file."""
    return _is_of_a_job(storage, url, _payload_file(sha256))


def _is_of_a_job(storage: str | None, url: str, file: str) -> bool:
    if not storage or "::" in storage or urlsplit(storage).scheme in _READ_ONLY:
        return False
    job = url.removeprefix(storage.rstrip("/") + "/").partition("/")[0]
    return re.fullmatch(_FOLDER, job) is not None and url == inside(storage, f"{job}/{file}")


def _payload_file(sha256: str) -> str:
    return f"job-{sha256[:_DIGITS]}.pyz"


def checkpoints(spec: JobSpec, info: JobInfo) -> str:
    """Return where the job's checkpoints are, a URL or a path in its pods; "" where it keeps none.

    All its attempts share it, but no later job of its name, except one that resumes it.
    """
    store = spec.cluster.checkpoints
    own = info.checkpoints if re.fullmatch(_FOLDER, info.checkpoints) else f"{info.name}-{info.run}"
    return inside(store, own) if store else ""


def resumed(
    spec: JobSpec, old: JobInfo, new: JobInfo, stopped: Callable[[], bool] = lambda: False
) -> JobInfo:
    """Return the record of a job that goes on from an old one's checkpoints.

    In a store it gets a copy, up to the file at which copying is ``stopped``. It shares a folder that only
    pods see: that is never removed. Raises ``SubmitError``.
    """
    saved = checkpoints(spec, old)
    if not saved:
        raise SubmitError(f"{old.name} has no --checkpoints that outlive its pods: nothing to resume from")
    if "://" not in saved:
        return replace(new, checkpoints=saved.rpartition("/")[2])
    new = replace(new, checkpoints=f"{new.name}-{new.run}")
    target = checkpoints(spec, new)
    with submit_errors(saved):
        files, path = reached(saved)
        _, to = reached(target)
        stored = files.find(path, detail=True) if files.exists(path) else {}
        # What a node keeps beside them belongs to the old job, and a partial file to a node that was killed.
        sizes = {
            name: int(details.get("size") or 0)
            for name, details in stored.items()
            if f"/{BESIDE}" not in name[len(path) :] and not is_partial(name)
        }
        if not sizes:
            raise SubmitError(f"{old.name} left no checkpoint at {saved} to resume from")
        with activity("copying the checkpoints", sum(sizes.values())) as copying:
            for name, size in sizes.items():
                if stopped():
                    break
                make_folder(files, to + name[len(path) :])
                files.cp_file(name, to + name[len(path) :])
                copying.done += size
    return new


def put(data: memoryview, url: str, stopped: Callable[[], bool] = lambda: False) -> None:
    """Write ``data`` to ``url``, up to the piece at which writing is ``stopped``. Raises ``SubmitError``."""
    with submit_errors(url), _new(url) as file, activity("storing the payload", len(data)) as storing:
        for begin in range(0, len(data), PIECE):
            if stopped():
                break
            storing.done += file.write(data[begin : begin + PIECE])


def copy(url: str, to: str, sha256: str, stopped: Callable[[], bool] = lambda: False) -> None:
    """Copy the payload at ``url``, up to the piece at which copying is ``stopped``.

    Raises ``SubmitError``, also if the payload has changed.
    """
    with submit_errors(url):
        files, path = reached(url)
        exists = files.exists(path)
        left = files.size(path) if exists else 0
    if not exists:
        raise SubmitError(f"the payload at {url} is gone: run the job's cell again")
    digest = hashlib.sha256()
    with submit_errors(to), store.opened(url) as source, _new(to) as file:
        # No more than its size so far: somebody may write to it without end.
        while left > 0 and not stopped() and (piece := source.read(min(PIECE, left))):
            digest.update(piece)
            file.write(piece)
            left -= len(piece)
    if digest.hexdigest() != sha256 and not stopped():
        with submit_errors(to):
            files, path = reached(to)
            files.rm_file(path)
        raise SubmitError(f"the payload at {url} isn't what was stored there: run the job's cell again")


def clear(info: JobInfo) -> None:
    """Remove all that an ended job has in stores, except a folder of checkpoints that only pods see.

    Raises ``SubmitError``.
    """
    storage = info.jobspec.cluster.storage
    if storage:
        remove(folder(storage, info))
    clear_checkpoints(info)


def clear_checkpoints(info: JobInfo) -> None:
    """Remove a job's own checkpoints, unless only pods see them. Raises ``SubmitError``."""
    saved = checkpoints(info.jobspec, info)
    # The record names the folder, and others may have written the record.
    if "://" in saved and saved.endswith(f"-{info.run}"):
        remove(saved)


def remove(url: str) -> None:
    """Remove a job's folder, if it is there. Raises ``SubmitError``."""
    with submit_errors(url):
        files, path = reached(url)
        if files.exists(path):
            # fsspec takes every path for a pattern, except a local one (2026.9).
            files.rm(path if "file" in files.protocol else glob.escape(path), recursive=True)


def reached(url: str) -> tuple[Any, str]:
    """Return the file system that a URL leads to, and the path there. Raises the store's own errors."""
    store_and_path: tuple[Any, str] = _fsspec().core.url_to_fs(url)
    return store_and_path


def make_folder(files: Any, path: str) -> None:
    """Make the folder of a file, in stores that have folders.

    Paths in object stores begin with a bucket's name, without a slash: s3fs would create a bucket for a
    misspelt name, and need permissions that nothing else needs (2026.9).
    """
    if path.startswith("/"):
        files.makedirs(path.rpartition("/")[0], exist_ok=True)


def _new(url: str) -> BinaryIO:
    files, path = reached(url)
    make_folder(files, path)
    file: BinaryIO = files.open(path, "wb")
    return file


@contextmanager
def submit_errors(url: str) -> Iterator[None]:
    """Turn what a store's library raises into a ``SubmitError``."""
    try:
        yield
    except NBTorchJobError:
        raise
    except Exception as exc:  # whatever a store's library raises
        # What a library's error means, and what to do about it if that is known
        scheme = urlsplit(url).scheme
        if isinstance(exc, ImportError):
            extra = _EXTRAS.get(scheme)
            how = f": pip install 'nbtorchjob[{extra}]'" if extra else ""
            reason = f"the driver for {scheme}:// isn't installed{how}"
        elif scheme and scheme not in _fsspec().available_protocols():
            reason = f"{scheme}:// isn't a kind of store that fsspec knows"
        elif isinstance(exc, OSError) and exc.strerror:
            reason = exc.strerror
        else:
            reason = f"the store says {words.line(str(exc), _SAID)!r}" if str(exc) else type(exc).__name__
        raise SubmitError(f"{url} can't be used from here: {reason}") from exc


# The extra that brings the driver of a scheme.
_DRIVERS = {"s3": ("s3", "s3a"), "gcs": ("gs", "gcs"), "azure": ("az", "abfs", "abfss")}
_EXTRAS = {scheme: extra for extra, schemes in _DRIVERS.items() for scheme in schemes}


def _fsspec() -> Any:
    with errors.needs_extra("kubernetes", "a store"):
        return importlib.import_module("fsspec")
