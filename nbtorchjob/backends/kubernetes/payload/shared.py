"""What jobs share in a store: shipped files too big for payloads, uv, and what nodes have installed.

    _shipped/SHA256          what a file holds, or the program that installs
    _shipped/SHA256.going    it is about to be removed: written before checking who uses it
    _shipped/uses/RUN        which of them a job uses: written before checking what is there
    .packages/NAME.tgz       what was installed (``runtime/install/stock``); a node without it installs again

So if a job is sent during a cleanup, the later of the two sees the other one. A job's use ends when the job
is deleted. If its operator or somebody else deletes the job, that goes unnoticed: a use that was written on
this machine then ends when a cleanup finds its job gone.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends.kubernetes.payload.stores import PIECE, make_folder, reached, submit_errors
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.activity import activity
from nbtorchjob.machine.folders import own, secret, state_dir
from nbtorchjob.payload import archive
from nbtorchjob.payload.archive import SHARED
from nbtorchjob.runtime.install import stock
from nbtorchjob.text import words

if TYPE_CHECKING:
    from nbtorchjob.capture.model import ShippedFile
    from nbtorchjob.environment.wheels import Installer

FOLDERS = (SHARED, stock.FOLDER)
_USES, _GOING = "uses", ".going"
_UNUSED_S = 30 * 24 * 3600.0  # from when a file was stored, or last taken, until it is removed
_YOUNG_S = 3600.0  # a use may be of a job that is just being sent
_USE_BYTES = 1 << 21  # of one job's record in uses: digests of 20,000 files at most
_AT_ONCE = 50  # files that are about to be removed at a time: none of them for long
_WAIT_S = 60.0  # for a file that is about to be removed to be gone
_LOOK_S = 0.2


class Unused(FrozenDataclass):
    """The files in one of a store's shared folders that no job uses; ``age`` is the oldest's, in seconds."""

    url: str
    paths: tuple[str, ...]
    size: int
    age: float

    def __str__(self) -> str:
        many = words.count(len(self.paths), "file")
        return f"{words.size(self.size)} in {many} that no job uses"


def put_files(storage: str, run: str, files: Sequence[ShippedFile | Installer]) -> None:
    """Write those files of a job that its payload doesn't hold, unless an earlier job has.

    Raises ``SubmitError``, and ``CaptureError`` for a file that has changed meanwhile.
    """
    if files:
        use(storage, run, (file.sha256 for file in files))
    for file in files:
        url = archive.stored(storage, file.sha256)
        with submit_errors(url):
            _put_file(file, url)


def _put_file(file: ShippedFile | Installer, url: str) -> None:
    from nbtorchjob.capture.shipped import changed  # late: most uses of stores capture nothing

    files, path = reached(url)
    _await_gone(files, path)
    if files.exists(path) and files.size(path) == file.size:
        return
    # An object store shows a file once it is whole; a folder shows partial files, too.
    partial = f"{path}.{secrets.token_hex(4)}.partial" if "file" in files.protocol else path
    digest, data = hashlib.sha256(), getattr(file, "data", None)
    make_folder(files, path)
    try:
        with (
            io.BytesIO(data) if data is not None else open(file.source, "rb") as source,
            files.open(partial, "wb") as target,
            activity(f"storing {file.path}", file.size) as storing,
        ):
            for piece in iter(lambda: source.read(PIECE), b""):
                digest.update(piece)
                target.write(piece)
                storing.done += len(piece)
        if digest.hexdigest() != file.sha256:
            raise changed(file.path)
        if partial != path:
            files.mv(partial, path)
    except BaseException:
        if files.exists(partial):
            files.rm_file(partial)
        raise


def use(storage: str, run: str, files: Iterable[str]) -> None:
    """Record that a job uses files, by their digests, and remember the store. Raises ``SubmitError``."""
    url = f"{storage.rstrip('/')}/{SHARED}/{_USES}/{run}"
    with submit_errors(url):
        store, path = reached(url)
        make_folder(store, path)
        store.pipe_file(path, json.dumps({"owner": _owner(), "files": [*files]}).encode())
    remember(storage)  # only a store that can be used: each gc looks into it from now on


def use_again(storage: str, run: str, former: str) -> None:
    """Record that a job uses the same files as a former one. Raises ``SubmitError``."""
    url = f"{storage.rstrip('/')}/{SHARED}/{_USES}/{former}"
    with submit_errors(url):
        store, path = reached(url)
        if store.exists(path):
            use(storage, run, _read_use(store, path)[1])


def done(storage: str, run: str) -> None:
    """Record that a job no longer uses anything. Raises ``SubmitError``."""
    url = f"{storage.rstrip('/')}/{SHARED}/{_USES}/{run}"
    with submit_errors(url):
        _drop(*reached(url))


def _await_gone(store: Any, path: str) -> None:
    """Wait while a file is about to be removed; after a while, finish a removal that was left undone."""
    until, going = time.monotonic() + _WAIT_S, f"{path}{_GOING}"
    while store.exists(going):
        if time.monotonic() > until:
            _drop(store, path)
            _drop(store, going)
            return
        time.sleep(_LOOK_S)
        store.invalidate_cache()


def remember(storage: str) -> None:
    """Remember a store in which this user's jobs share files, so that ``gc`` cleans it up later."""
    with suppress(OSError):
        (own(state_dir() / "stores") / hashlib.sha256(storage.encode()).hexdigest()[:24]).write_text(storage)


def remembered() -> list[str]:
    """Return the remembered stores."""
    urls = []
    with suppress(OSError):
        urls = [path.read_text() for path in sorted(own(state_dir() / "stores").iterdir())]
    return urls


def unused(storage: str, alive: Collection[str] | None, *, installs: bool) -> list[Unused]:
    """Return files unused for a month; ``alive`` are the runs of this user's jobs, None if unknown.

    With ``installs``, a running job may take what was installed: that stays. Raises ``SubmitError``.
    """
    leftovers = []
    for name in FOLDERS:
        url = f"{storage.rstrip('/')}/{name}"
        if name == stock.FOLDER and installs:
            continue
        with submit_errors(url):
            store, folder = reached(url)
            store.invalidate_cache()
            uses = _used(store, folder, alive) if name == SHARED else set()
            old = [
                (path, size, age)
                for path, size, age in _listed(store, folder)
                if age > _UNUSED_S
                and not path.endswith((_GOING, ".partial"))
                and path.rpartition("/")[2] not in uses
            ]
        if old:
            paths, sizes, ages = zip(*old, strict=True)
            leftovers.append(Unused(url, paths, sum(sizes), max(ages)))
    return leftovers


def remove(leftover: Unused, alive: Collection[str] | None) -> None:
    """Remove files, except those that a job has begun to use. Raises ``SubmitError``."""
    with submit_errors(leftover.url):
        store, folder = reached(leftover.url)
        for begin in range(0, len(leftover.paths), _AT_ONCE):
            paths = leftover.paths[begin : begin + _AT_ONCE]
            try:
                for path in paths:
                    store.pipe_file(f"{path}{_GOING}", b"")
                store.invalidate_cache()
                uses = _used(store, folder, alive)
                for path in paths:
                    if path.rpartition("/")[2] not in uses:
                        _drop(store, path)
            finally:
                for path in paths:
                    _drop(store, f"{path}{_GOING}")


def _listed(store: Any, folder: str) -> Iterator[tuple[str, int, float]]:
    with suppress(FileNotFoundError):
        for entry in store.ls(folder, detail=True):
            if entry["type"] == "file":
                age = time.time() - store.modified(entry["name"]).timestamp()
                yield entry["name"], entry["size"] or 0, age


def _used(store: Any, folder: str, alive: Collection[str] | None) -> set[str]:
    """Return the files that jobs use; remove uses that were written here for jobs that are gone."""
    names: set[str] = set()
    for path, size, age in _listed(store, f"{folder}/{_USES}"):
        if not size:  # object stores return no part of an empty file
            continue
        with suppress(FileNotFoundError, ValueError):  # deleted meanwhile, or written by anybody
            owner, files = _read_use(store, path)
            is_gone = alive is not None and path.rpartition("/")[2] not in alive
            if is_gone and owner == _owner() and age > _YOUNG_S:
                store.rm_file(path)
            else:
                names.update(files)
    return names


def _read_use(store: Any, path: str) -> tuple[str, list[str]]:
    """Return who wrote a use, and the files that it names; raises ``ValueError`` for anything else."""
    data = store.cat_file(path, 0, _USE_BYTES + 1)
    if len(data) > _USE_BYTES:
        raise ValueError(f"{path} isn't a list of files: it is larger than {words.size(_USE_BYTES)}")
    try:
        record = json.loads(data)
        owner, files = record["owner"], record["files"]
    except (LookupError, TypeError, RecursionError) as exc:
        raise ValueError(f"{path} isn't a list of files") from exc
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ValueError(f"{path} isn't a list of files")
    return str(owner), files


def _drop(store: Any, path: str) -> None:
    with suppress(FileNotFoundError):  # somebody else has removed it
        store.rm_file(path)


def _owner() -> str:
    """Return a digest that identifies this user's state folder, and that nobody without it can write."""
    return hashlib.sha256(b"stores" + secret("stores")).hexdigest()[:24]
