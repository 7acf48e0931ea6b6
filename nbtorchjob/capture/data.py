"""Folders of the notebook that ranks read as data (``--data NAME=./FOLDER``): checked, and read once.

On this machine ranks are led to them. To other machines they go by way of the job's store, by their digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from nbtorchjob.capture.model import DataFolder, ShippedFile
from nbtorchjob.capture.shipped import changed, digest
from nbtorchjob.errors import CaptureError
from nbtorchjob.spec.data import where
from nbtorchjob.spec.jobspec import JobSpec

MOST_FILES = 20_000


def path(text: str, root: Path) -> Path:
    """Return the folder, or file, that a place beside the notebook names."""
    return root / Path(text).expanduser()


def check(spec: JobSpec, root: Path) -> None:
    """Raise ``CaptureError`` for a path that isn't there, or that nodes elsewhere can't be sent."""
    for name, text in spec.data.items():
        if where(text).scheme:
            continue
        here = path(text, root)
        if not here.exists():
            raise CaptureError(f"--data {name}={text}: there is no such file or folder in {root}")
        if not os.access(here, os.R_OK):
            raise CaptureError(f"--data {name}={text}: it can't be read")
        if spec.remote and not spec.cluster.storage:
            raise CaptureError(
                f"--data {name}={text}: it is on this machine: name a store for it, --storage URL"
            )


def collect(spec: JobSpec, root: Path) -> tuple[DataFolder, ...]:
    """Read the folders that go to a job's store; raises ``CaptureError``."""
    places = {name: text for name, text in spec.data.items() if not where(text).scheme}
    return tuple(_folder(name, path(text, root)) for name, text in places.items()) if spec.remote else ()


def _folder(name: str, root: Path) -> DataFolder:
    files = tuple(_file(name, relative, source) for relative, source in sorted(_below(name, root)))
    if not files:
        raise CaptureError(f"--data {name}: there is no file in {root}")
    listed = json.dumps([[file.path, file.size, file.sha256] for file in files]).encode()
    sha256 = hashlib.sha256(listed).hexdigest()
    return DataFolder(
        name, files, ShippedFile(f"{name}: its list", root, len(listed), False, 0, sha256, listed)
    )


def _below(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield root.name, root
        return
    count, seen = 0, {os.path.realpath(root)}
    for folder, folders, files in os.walk(root, followlinks=True, onerror=_raise):
        kept = []
        for inner in folders:
            real = os.path.realpath(os.path.join(folder, inner))
            if real not in seen:
                seen.add(real)
                kept.append(inner)
        folders[:] = kept
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


def _file(name: str, relative: str, source: Path) -> ShippedFile:
    try:
        seen = source.stat()
        with open(source, "rb") as file:
            sha256 = digest(file, seen, str(source))
            now = os.fstat(file.fileno())
    except OSError as exc:
        raise CaptureError(f"--data {name}: {relative} can't be read ({exc.strerror})") from exc
    if (now.st_size, now.st_mtime_ns) != (seen.st_size, seen.st_mtime_ns):
        raise changed(relative)
    executable = bool(seen.st_mode & stat.S_IXUSR)
    return ShippedFile(relative, source, seen.st_size, executable, seen.st_mtime_ns, sha256, None)


def _raise(exc: OSError) -> None:
    raise CaptureError(f"--data: {exc.filename} can't be read ({exc.strerror})") from exc
