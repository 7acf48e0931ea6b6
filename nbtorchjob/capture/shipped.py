"""The files and folders that a job requests (``--ship``, ``--data NAME=./FOLDER``): checked, and read once.

All errors in them are reported here, before anything is sent. Shipped files lie below the notebook's folder.
Folders with data may lie elsewhere: ranks on this machine are pointed to them, and they reach other machines
through the job's store, by their digests.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from nbtorchjob.capture import identity
from nbtorchjob.capture.model import DataFolder, Ship, Shipped, ShippedFile
from nbtorchjob.capture.modules import stays, walk
from nbtorchjob.errors import CaptureError
from nbtorchjob.machine.activity import Activity, activity
from nbtorchjob.spec.config import where
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.text import words

SMALL = 1 << 18  # bytes: files up to this size go into the payload even if there is a better place
MOST_FILES = 20_000
MOST_SMALL_BYTES = 1 << 28  # all of them are in memory at once
_DEEPEST = 100
_NAMED = 3
_PIECE = 1 << 20
# The digests of big files, by path and file status: a cell is run again and again.
_digests: dict[tuple[str, int, int, int, int], str] = {}


@dataclass
class _Selection:
    root: Path  # resolved
    paths: dict[str, tuple[Path, os.stat_result]] = field(default_factory=dict)  # by relative path
    left: list[str] = field(default_factory=list)


def collect(names: Sequence[str], root: Path, *, limit: int | None = None, hashed: bool = True) -> Shipped:
    """Find and read the files and folders ``names`` below ``root``, folders with all their content.

    With a ``limit``, all files go into the payload, and may have that many bytes in total; else only small
    files do. Unless ``hashed``, the digests of big files are left out. Raises ``CaptureError``.
    """
    selection = _Selection(root.resolve())
    by_name: dict[str, list[str]] = {}
    for name in names:
        before = {*selection.paths}
        path = root / name
        if not os.path.lexists(path):
            raise CaptureError(f"--ship {name}: there is no such file or folder in {root}{_near(name, root)}")
        paths = list(_take(path, name, selection, ()))
        if not paths:
            but = (
                f", only what is left out of folders: {words.some(selection.left, _NAMED)}"
                if selection.left
                else ""
            )
            raise CaptureError(f"--ship {name}: there is no file in it to ship{but}")
        by_name[name] = [path for path in paths if path not in before]
    sizes = {path: status.st_size for path, (_, status) in selection.paths.items()}
    if limit is None:
        sizes = {path: size for path, size in sizes.items() if size <= SMALL}
    most = MOST_SMALL_BYTES if limit is None else limit
    if (total := sum(sizes.values())) > most:
        biggest = sorted(sizes, key=lambda path: -sizes[path])[:_NAMED]
        named = ", ".join(f"{path} ({words.size(sizes[path])})" for path in biggest)
        many = f"the shipped files are {words.size(total)}, but at most {words.size(most)}"
        if limit is None:
            raise CaptureError(f"{many} of small files can be sent: ship an archive of them")
        raise CaptureError(
            f"{many} can be sent through the API; the biggest: {named}: put them in a store, "
            "--storage URL, or on a --mount"
        )
    every = sum(status.st_size for _, status in selection.paths.values())
    with activity("reading the files to ship", every) as reading:
        files = tuple(
            _file(
                *(path, source, status, reading),
                whole=limit is not None or status.st_size <= SMALL,
                hashed=hashed,
            )
            for path, (source, status) in sorted(selection.paths.items())
        )
    by_path = {file.path: file for file in files}
    ships = tuple(_ship(name, root, [by_path[path] for path in paths]) for name, paths in by_name.items())
    kinds = "hidden files, bytecode and checkpoints"
    note = (
        f"left out of shipped folders: {words.some(selection.left, _NAMED)} "
        f"({kinds} are shipped only by name)"
    )
    return Shipped(files, ships, (note,) if selection.left else ())


def _ship(name: str, root: Path, files: Sequence[ShippedFile]) -> Ship:
    size, hashed = sum(file.size for file in files), all(file.sha256 for file in files)
    combined = identity.of_contents((file.path, file.sha256) for file in files) if hashed else ""
    if (root / name).is_dir():
        label = "./" if name == "." else f"{name}/"
        return Ship(label, words.count(len(files), "file"), size, digest=combined)
    return Ship(name, "file", size, digest=combined)


def _near(name: str, root: Path) -> str:
    folder = (root / name).parent
    with suppress(OSError):
        neighbours = [neighbour.relative_to(root).as_posix() for neighbour in folder.iterdir()]
        near = difflib.get_close_matches(name, neighbours, n=_NAMED, cutoff=0.7)
        return f"; did you mean {' or '.join(near)}?" if near else ""
    return ""


def _take(path: Path, name: str, selection: _Selection, above: tuple[str, ...]) -> Iterator[str]:
    """Select the file at ``path``, or all files below it; ``above`` are the folders that it lies in."""
    if not name.isprintable():
        raise CaptureError(f"--ship: the name of {name!a} isn't printable: rename it")
    try:
        real = os.path.realpath(path, strict=True)
        status = os.stat(real)
    except OSError as exc:
        raise _unreadable(name, exc) from exc
    if not Path(real).is_relative_to(selection.root):
        raise CaptureError(
            f"--ship {name}: it leads out of the notebook's folder, to {real}: put a copy in its place"
        )
    if stat.S_ISDIR(status.st_mode):
        if len(above) > _DEEPEST:
            raise CaptureError(f"--ship {name:.60}…: its folders are nested more than {_DEEPEST} deep")
        if real in above:
            raise CaptureError(f"--ship {name}: it is a link to a folder that contains it: remove it")
        try:
            # Of a very big folder, read only enough entries to tell that it is too big.
            with os.scandir(path) as scan:
                entries = sorted(entry.name for entry in islice(scan, MOST_FILES + 1))
        except OSError as exc:
            raise _unreadable(name, exc) from exc
        _check_count(name, len(entries))
        for entry in entries:
            inner = entry if name == "." else f"{name}/{entry}"
            if entry.endswith(".pyc") or stays(path / entry):
                selection.left.append(inner)
            else:
                yield from _take(path / entry, inner, selection, (*above, real))
    elif not stat.S_ISREG(status.st_mode):
        sorts = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe"}
        sort = sorts.get(stat.S_IFMT(status.st_mode), "a device")
        raise CaptureError(f"--ship {name}: it is {sort}, and only files can be shipped")
    else:
        key = os.path.normpath(name)
        selection.paths[key] = Path(real), status
        _check_count(name, len(selection.paths))
        yield key


def _check_count(name: str, many: int) -> None:
    if many > MOST_FILES:
        top, reason = name.partition("/")[0], f"there are more than {MOST_FILES:,} files"
        raise CaptureError(f"--ship {top}: {reason}: ship an archive of them, or put them on a --mount")


def _unreadable(name: str, exc: OSError) -> CaptureError:
    return CaptureError(f"--ship {name}: it can't be read ({exc.strerror})")


def _file(
    path: str, source: Path, status: os.stat_result, reading: Activity, *, whole: bool, hashed: bool
) -> ShippedFile:
    data, sha256 = None, ""
    try:
        # Opening a pipe that has replaced the file meanwhile would hang.
        plain = os.O_NONBLOCK | os.O_CLOEXEC
        with open(source, "rb", opener=lambda path, flags: os.open(path, flags | plain)) as file:
            if whole:
                data = file.read(status.st_size + 1)
                sha256 = hashlib.sha256(data).hexdigest()
            elif hashed:
                sha256 = _digest(file, status, str(source), reading)
            now = os.fstat(file.fileno())
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    if _state(now) != _state(status) or (data is not None and len(data) != status.st_size):
        raise changed(path)
    executable = bool(status.st_mode & stat.S_IXUSR)
    return ShippedFile(path, source, status.st_size, executable, status.st_mtime_ns, sha256, data)


def changed(path: str) -> CaptureError:
    """Return the error for a file that is being written to."""
    return CaptureError(f"--ship {path}: it changed while it was read: send it once nothing writes to it")


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(file: BinaryIO, status: os.stat_result, source: str, reading: Activity) -> str:
    """Return the digest of a file, which is read again only if it has changed."""
    key, before = (source, *_state(status)), reading.done
    if key not in _digests:
        hashed = hashlib.sha256()
        for piece in iter(lambda: file.read(_PIECE), b""):
            hashed.update(piece)
            reading.done += len(piece)
        _digests[key] = hashed.hexdigest()
    reading.done = before + status.st_size
    return _digests[key]


def data_path(text: str, root: Path) -> Path:
    """Return the folder or file that a path, relative to the notebook's folder, names."""
    return root / os.path.expanduser(text)  # Path.expanduser raises for an unknown user


def check_data(spec: JobSpec, root: Path) -> None:
    """Raise ``CaptureError`` for a path that doesn't exist, or that can't be sent to nodes elsewhere."""
    for name, text in spec.data.items():
        if where(text).scheme:
            continue
        path = data_path(text, root)
        try:
            mode = path.stat().st_mode
        except OSError as exc:
            why = f"it can't be read ({exc.strerror})"
            if exc.errno in (errno.ENOENT, errno.ENOTDIR):
                why = f"there is no such file or folder in {root}"
            raise CaptureError(f"--data {name}={text}: {why}") from None
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):  # nobody may ever write into a pipe
            raise CaptureError(f"--data {name}={text}: it is neither a file nor a folder")
        if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
            raise CaptureError(f"--data {name}={text}: it can't be read")
        if spec.remote and not spec.cluster.storage:
            raise CaptureError(
                f"--data {name}={text}: it is on this machine: name a store for it, --storage URL"
            )


def collect_data(spec: JobSpec, root: Path) -> tuple[DataFolder, ...]:
    """Read the folders that go to a job's store; raises ``CaptureError``."""
    places = {name: text for name, text in spec.data.items() if not where(text).scheme}
    return tuple(_folder(name, data_path(text, root)) for name, text in places.items()) if spec.remote else ()


def _folder(name: str, root: Path) -> DataFolder:
    sources = sorted(_files_below(name, root))
    if not sources:
        raise CaptureError(f"--data {name}: there is no file in {root}")
    data_files: list[ShippedFile] = []
    with activity(f"reading --data {name}", _total(source for _, source in sources)) as reading:
        for relative, source in sources:
            try:
                status = source.stat()
                with open(source, "rb") as file:
                    sha256 = _digest(file, status, str(source), reading)
                    now = os.fstat(file.fileno())
            except OSError as exc:
                raise CaptureError(f"--data {name}: {relative} can't be read ({exc.strerror})") from exc
            if (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
                raise changed(relative)
            executable = bool(status.st_mode & stat.S_IXUSR)
            data_files.append(
                ShippedFile(relative, source, status.st_size, executable, status.st_mtime_ns, sha256, None)
            )
    files = tuple(data_files)
    listed = json.dumps([[file.path, file.size, file.sha256] for file in files]).encode()
    sha256 = hashlib.sha256(listed).hexdigest()
    return DataFolder(
        name, files, ShippedFile(f"{name}: its list", root, len(listed), False, 0, sha256, listed)
    )


def _total(paths: Iterable[Path]) -> int:
    """Return the size of files, without those that can't be read, which are reported when they are read."""
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _files_below(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield root.name, root
        return

    def refuse(exc: OSError) -> None:
        raise CaptureError(f"--data: {exc.filename} can't be read ({exc.strerror})") from exc

    count = 0
    for folder, _, files in walk(root, refuse):
        for file in files:
            source = Path(folder, file)
            if not source.is_file():
                continue  # a link to nowhere, a pipe
            count += 1
            if count > MOST_FILES:
                raise CaptureError(
                    f"--data {name}: there are more than {MOST_FILES:,} files: pack them into archives"
                )
            yield source.relative_to(root).as_posix(), source
