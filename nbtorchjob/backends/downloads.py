"""Downloads of the files that a job leaves: artifacts and logs, copied or as one zip archive.

Each node's archive may have been written by anything that ran in a job, so everything in it is checked before
it is used: an artifact's name can't lead outside the folder that it is copied to.

A zip archive is made while it is read, so its files need to fit neither into memory nor on a disk.
"""

from __future__ import annotations

import calendar
import io
import itertools
import os
import stat
import struct
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

from nbtorchjob.backends.base import Backend, Stores, able
from nbtorchjob.errors import ResultError, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import plain
from nbtorchjob.runtime.api.artifacts import MOST_BYTES, MOST_FILES
from nbtorchjob.state import JobState
from nbtorchjob.state.facts import logs as loglines
from nbtorchjob.state.facts.events import ArtifactsReady
from nbtorchjob.state.facts.logs import LogLine, Stream
from nbtorchjob.text import words

_PIECE_BYTES = 1 << 18  # read or yielded at a time


PLAIN, EXECUTABLE = 0o600, 0o700


def zip_chunks(files: Iterable[tuple[str, int, Iterator[bytes]]]) -> Iterator[bytes]:
    """Yield a zip archive of files, given as name, mode and pieces; files without pieces are left out."""
    buffer = _ZipBuffer()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, mode, pieces in files:
            first = next(pieces, None)
            if first is None:
                continue
            entry = zipfile.ZipInfo(name, time.localtime()[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = mode << 16
            with file.open(entry, "w", force_zip64=True) as target:
                for piece in chain((first,), pieces):
                    target.write(piece)
                    if buffer.size >= _PIECE_BYTES:
                        yield buffer.take()
    yield buffer.take()


class _ZipBuffer(io.RawIOBase):
    """Holds the bytes of a zip file until they are taken; it can't seek, so it is written in one go."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> bytes:
        """Return and forget what was written."""
        parts, self._parts, self.size = self._parts, [], 0
        return b"".join(parts)


def log(backend: Backend, name: str, rank: int, stream: Stream | None = None) -> Iterator[bytes]:
    """Return a rank's log, or what it wrote to one stream, in pieces."""
    stores = able(backend, Stores, "logs", name)
    if stream is None:
        return stores.log(name, rank)
    (chunks,) = stores.chunks(name, [rank])
    return (data for chunk in chunks for _, data in loglines.of_stream(chunk, stream))


def lines(
    backend: Backend,
    state: JobState,
    *,
    rank: int | None = None,
    node: int | None = None,
    stream: Stream | None = None,
) -> Iterator[LogLine]:
    """Yield the lines of a rank, of all ranks on a node, or of all ranks, in the order of their times.

    With a ``stream``, yields only the lines written to it. ``state`` is the job's state before this call:
    while the job goes on, a line that has no end yet is left out.
    """
    places = None if node is None else written_on(state, node)
    if places is not None:
        ranks = sorted({rank for rank, _ in places})
    else:
        ranks = _all_ranks(state) if rank is None else [rank]
    logs = []
    stores = able(backend, Stores, "logs", state.info.address)
    for number, chunks in zip(ranks, stores.chunks(state.info.address, ranks), strict=True):
        selection = (chunk for chunk in chunks if places is None or (chunk.rank, chunk.round) in places)
        logs.append(loglines.lines(number, selection, ended=state.phase.terminal, stream=stream))
    return loglines.merged(logs)


def written_on(state: JobState, node: int) -> frozenset[tuple[int, int]]:
    """Return the ranks that a node had, as (rank, round)."""
    workers = state.nodes[node].workers if node in state.nodes else ()
    had = {worker.round: worker.ranks for worker in workers}
    turns = ((turn.round, {*turn.ranks} & {*had.get(turn.base, ())}) for turn in state.turns)
    return frozenset((rank, round_) for round_, ranks in (*had.items(), *turns) for rank in ranks)


def zip_logs(backend: Backend, state: JobState, *, times: bool = False) -> Iterator[bytes]:
    """Return a zip archive in pieces: ``JOB/rank-0.log`` and so on, for all ranks that have written.

    Logs are as they were written, or with ``times`` as :func:`lines` yields them, each line with its time in
    front. Little of the archive is in memory at any time.
    """
    stores = able(backend, Stores, "logs", state.info.address)
    return zip_chunks(
        (
            f"{state.info.name}/rank-{rank}.log",
            PLAIN,
            filter(
                None,
                (line.shown(time=True, rank=False) for line in lines(backend, state, rank=rank))
                if times
                else stores.log(state.info.address, rank),
            ),
        )
        for rank in _all_ranks(state)
    )


def _all_ranks(state: JobState) -> list[int]:
    """Return the ranks that the job may have; a job that others submitted doesn't say how many."""
    info = state.info
    ranks = (rank for node in state.nodes.values() for worker in node.workers for rank in worker.ranks)
    return sorted({*range(info.nodes[1] * info.nproc_per_node), *ranks})


# The end of a zip file without a comment: the zip64 locator of a bigger one, and then the end record with the
# numbers of disks and entries, and the size and offset of the directory.
_END = struct.Struct("<4s16x4s4H2LH")
_LONGEST = 16 << 20  # bytes of a directory
_NAMED = 3  # conflicting files that an error names


class Artifact(FrozenDataclass):
    """A file that a node of the job sent: its ``path`` below the folder to copy to, and ``size`` in bytes."""

    path: str
    size: int
    node: int
    attempt: int


class StoredArtifact(FrozenDataclass):
    """An artifact with its location: an entry of an archive."""

    artifact: Artifact
    archive: Path
    entry: zipfile.ZipInfo

    @property
    def executable(self) -> bool:
        """Whether its owner could run it."""
        return bool(self.entry.external_attr >> 16 & stat.S_IXUSR)

    @property
    def modified(self) -> float:
        """When it was written, in epoch seconds by its node's clock, to two seconds."""
        try:
            return float(calendar.timegm((*self.entry.date_time, 0, 0, 0)))
        except (ValueError, OverflowError):  # an archive may say anything
            return 0.0

    @property
    def content(self) -> tuple[int, int]:
        """The size and checksum, which tell two contents apart."""
        return self.entry.file_size, self.entry.CRC

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's bytes; the first piece of an empty file is empty. Raises ``ResultError``."""
        with _reading(self.archive) as file, file.open(self.entry) as source:
            yield source.read(_PIECE_BYTES)
            while piece := source.read(_PIECE_BYTES):
                yield piece


def listed(backend: Backend, state: JobState, attempt: int | None = None) -> tuple[Artifact, ...]:
    """Return the artifacts of an attempt, by default the newest one that sent any, sorted by path.

    If nodes wrote different files at one path, the first node's file keeps the path, and another's is below
    ``node-1/`` and so on. Raises ``ResultError`` if an archive can't be downloaded or read.
    """
    return tuple(artifact.artifact for artifact in stored(backend, state, attempt))


def copy(backend: Backend, state: JobState, folder: Path, attempt: int | None = None) -> tuple[Artifact, ...]:
    """Copy an attempt's artifacts into a folder, made if needed; return what :func:`listed` returns.

    Existing files stay: if one has other content, raises ``SpecError`` before any file is written. Raises
    ``ResultError`` as :func:`listed` does, and if the folder can't be written to.
    """
    artifacts = stored(backend, state, attempt)
    try:
        targets = {folder / artifact.artifact.path: artifact for artifact in artifacts}
        existing = {path for path in targets if os.path.lexists(path)}
        others = [targets[path].artifact.path for path in sorted(existing) if not _is_at(path, targets[path])]
        if others:
            named = words.some(others, _NAMED)
            raise SpecError("folder", str(folder), f"a folder without other files of these names: {named}")
        if artifacts:
            folder.mkdir(parents=True, exist_ok=True)
        for path in targets.keys() - existing:
            _write(path, targets[path])
    except OSError as exc:
        raise ResultError(f"the artifacts of {state.info.name} can't be written to {folder}: {exc}") from exc
    return tuple(artifact.artifact for artifact in artifacts)


def zip_artifacts(backend: Backend, state: JobState, attempt: int | None = None) -> Iterator[bytes]:
    """Return what :func:`copy` would write, as a zip archive in pieces: ``JOB/runs/events…``.

    A backslash in a name becomes ``_``: Windows would unpack such a file into another folder. Raises
    ``ResultError`` as :func:`listed` does, and if there are no artifacts.
    """
    artifacts = stored(backend, state, attempt)
    if not artifacts:
        raise ResultError(f"{state.info.name} left no artifacts")
    return zip_chunks(
        (
            f"{state.info.name}/{artifact.artifact.path}".replace("\\", "_"),
            EXECUTABLE if artifact.executable else PLAIN,
            artifact.pieces(),
        )
        for artifact in artifacts
    )


def stored(backend: Backend, state: JobState, attempt: int | None = None) -> list[StoredArtifact]:
    """Return the artifacts as :func:`listed` does, with their locations; raises as it does."""
    by_path: dict[str, StoredArtifact] = {}
    folders: set[str] = set()
    for new in sent(backend, state, attempt):
        place = _place(new, by_path, folders)
        if place in by_path:
            continue  # the same file of another node
        by_path[place] = replace(new, artifact=replace(new.artifact, path=place))
        folders.update(_folders(place))
    return [by_path[path] for path in sorted(by_path)]


def sent(backend: Backend, state: JobState, attempt: int | None = None) -> Iterator[StoredArtifact]:
    """Yield the artifacts of each node in turn, at the paths that it wrote; raises as :func:`listed` does."""
    attempts = {number for number, _ in state.artifacts}
    number = max(attempts, default=1) if attempt is None else attempt
    if attempt is not None and attempt not in attempts:
        available = " and ".join(map(str, sorted(attempts))) or "none"
        raise SpecError("attempt", attempt, f"one that left artifacts: {available}")
    for _, archive in sorted((of[1], archive) for of, archive in state.artifacts.items() if of[0] == number):
        yield from _of_node(backend, state, archive)


def _place(new: StoredArtifact, by_path: dict[str, StoredArtifact], folders: set[str]) -> str:
    """Return a path for a file: one that an equal file has, or one that clashes with no file or folder."""
    own, node = new.artifact.path, f"node-{new.artifact.node}"
    for path in itertools.chain((own, f"{node}/{own}"), (f"{node}-{n}/{own}" for n in itertools.count(2))):
        if path in by_path and by_path[path].content == new.content:
            return path
        if (
            path not in by_path
            and path not in folders
            and not any(folder in by_path for folder in _folders(path))
        ):
            return path
    raise AssertionError("unreachable")


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _of_node(backend: Backend, state: JobState, sent: ArtifactsReady) -> Iterator[StoredArtifact]:
    path = able(backend, Stores, "artifacts", state.info.address).artifacts(state.info.address, sent)
    with _reading(path) as file:
        entries = file.infolist()
        if len(entries) > MOST_FILES or sum(entry.file_size for entry in entries) > MOST_BYTES:
            raise zipfile.BadZipFile("it holds more than any node sends")
        for entry in entries:
            # Nodes send plain files, stored uncompressed, whose names stay below their folder.
            name = entry.filename
            safe = name.isprintable() and not {"", ".", ".."} & set(name.split("/"))
            stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
            if not (safe and stored and not entry.flag_bits & 1):
                raise zipfile.BadZipFile(f"{entry.filename!r:.100} isn't a file that a node sends")
            yield StoredArtifact(
                Artifact(entry.filename, entry.file_size, sent.node, sent.attempt), path, entry
            )


@contextmanager
def _reading(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a node's archive; raises ``ResultError`` if it isn't one."""
    try:
        with open(path, "rb", opener=plain) as raw:
            # The directory is read into memory, so one that is longer than any node's is refused.
            raw.seek(max(0, os.fstat(raw.fileno()).st_size - _END.size))
            bigger, mark, *_, length, _, comment = _END.unpack(raw.read().rjust(_END.size))
            if bigger == b"PK\6\7" or mark != b"PK\5\6" or length > _LONGEST or comment:
                raise zipfile.BadZipFile("it is cut short, or too long")
            with zipfile.ZipFile(raw) as file:
                yield file
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as exc:
        raise ResultError(f"the artifacts in {path} can't be read: {exc}") from exc


def _is_at(path: Path, artifact: StoredArtifact) -> bool:
    """Whether there is a file at ``path`` with the artifact's content."""
    if not path.is_file() or path.stat().st_size != artifact.entry.file_size:
        return False
    crc = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            crc = crc32(piece, crc)
    return crc == artifact.entry.CRC


def _write(path: Path, artifact: StoredArtifact) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        try:
            file.writelines(artifact.pieces())
            if artifact.executable:  # for all who may read it according to the umask
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)
        except BaseException:
            path.unlink()
            raise
