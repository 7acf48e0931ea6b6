"""A job's stores (``--storage``, ``--checkpoints``), seen from the host: URLs that fsspec knows, or paths."""

from __future__ import annotations

import hashlib
import importlib
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.errors import NBTorchJobError, SubmitError
from nbtorchjob.machine.transfers import transfer
from nbtorchjob.payload import archive
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.events import ArtifactsReady, Sent

if TYPE_CHECKING:
    from nbtorchjob.capture.shipped import ShippedFile

_NAME = r"[a-z0-9][-a-z0-9]*"  # of a job
_READ_ONLY = ("http", "https")  # no rank can have written there; followed from here, they lead anywhere
_PIECE = 4 << 20  # bytes in memory at a time


def inside(storage: str, name: str) -> str:
    """Return the URL of a job's own folder in the store; what a node writes is there, too."""
    return f"{storage.rstrip('/')}/{name}"


def holds(storage: str | None, sent: Sent) -> bool:
    """Whether a value, or artifacts, are said to be where a job with this ``--storage`` writes them."""
    if not storage or "::" in storage or urlsplit(storage).scheme in _READ_ONLY:
        return False
    url = sent.ref.rpartition("#")[0]
    job, _, file = url.removeprefix(storage.rstrip("/") + "/").partition("/")
    return (
        re.fullmatch(_NAME, job) is not None
        and url == inside(storage, f"{job}/{file}")
        and file == _file(sent)
    )


def _file(sent: Sent) -> str:
    if isinstance(sent, ArtifactsReady):
        return f"attempt-{sent.attempt}-node-{sent.node}.zip"
    return f"round-{sent.round}-rank-{sent.rank}.value"


def checkpoints(spec: JobSpec, info: JobInfo) -> str:
    """Return where the job's checkpoints are, a URL or a path in its pods; "" where it keeps none.

    All its attempts share it, but no later job of its name.
    """
    store = spec.cluster.checkpoints
    return inside(store, f"{info.name}-{labelling.labels(info)[labelling.RUN]}") if store else ""


def put(data: memoryview, url: str) -> None:
    """Write ``data`` to ``url``. Raises ``SubmitError``."""
    with _told(url), _new(url) as file, transfer("the payload", len(data)) as sent:
        for begin in range(0, len(data), _PIECE):
            sent.done += file.write(data[begin : begin + _PIECE])


def put_files(storage: str, shipped: Iterable[ShippedFile]) -> None:
    """Write those of a job's files that its payload doesn't hold, unless an earlier job has.

    Raises ``SubmitError``, and ``CaptureError`` for one that has changed meanwhile.
    """
    for file in shipped:
        if file.data is None:
            url = archive.stored(storage, file.sha256)
            with _told(url):
                _put_file(file, url)


def _put_file(file: ShippedFile, url: str) -> None:
    from nbtorchjob.capture.shipped import changed  # late: most that is done with stores captures nothing

    files, path = _fsspec().core.url_to_fs(url)
    if files.exists(path) and files.size(path) == file.size:
        return
    # A store of objects shows one once it is whole; a folder shows what there is of it.
    partial = f"{path}.{secrets.token_hex(4)}.partial" if "file" in files.protocol else path
    digest = hashlib.sha256()
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    try:
        with (
            open(file.source, "rb") as source,
            files.open(partial, "wb") as target,
            transfer(file.path, file.size) as sent,
        ):
            for piece in iter(lambda: source.read(_PIECE), b""):
                digest.update(piece)
                target.write(piece)
                sent.done += len(piece)
        if digest.hexdigest() != file.sha256:
            raise changed(file.path)
        if partial != path:
            files.mv(partial, path)
    except BaseException:
        if files.exists(partial):
            files.rm(partial)
        raise


def copy(url: str, to: str) -> None:
    """Copy the file at ``url``, a piece at a time. Raises ``SubmitError``."""
    with _told(url):
        files, path = _fsspec().core.url_to_fs(url)
        there = files.exists(path)
    if not there:
        raise SubmitError(f"the payload at {url} is gone: run the job's cell again")
    with _told(to), files.open(path, "rb") as source, _new(to) as file:
        shutil.copyfileobj(source, file, _PIECE)


def clear(info: JobInfo) -> None:
    """Remove all that an ended job has in stores, except a folder of checkpoints that only pods see.

    Raises ``SubmitError``.
    """
    spec = info.asked
    storage, folder = spec.cluster.storage, checkpoints(spec, info)
    if storage:
        remove(inside(storage, info.name))
    if "://" in folder:
        remove(folder)


def remove(url: str) -> None:
    """Remove a job's folder, if it is there. Raises ``SubmitError``."""
    with _told(url):
        files, path = _fsspec().core.url_to_fs(url)
        if files.exists(path):
            files.rm(path, recursive=True)


def _new(url: str) -> BinaryIO:
    files, path = _fsspec().core.url_to_fs(url)
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    file: BinaryIO = files.open(path, "wb")
    return file


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except NBTorchJobError:
        raise
    except Exception as exc:  # whatever a store's library raises
        said = " ".join(str(exc).split())
        raise SubmitError(f"{url} can't be used from here ({type(exc).__name__}: {said})") from exc


def _fsspec() -> Any:
    try:
        return importlib.import_module("fsspec")
    except ImportError:
        raise SubmitError("a store needs fsspec here: pip install 'nbtorchjob[kubernetes]'") from None
