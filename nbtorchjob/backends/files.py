"""Lists, reads and copies files that ranks wrote, from a running job's nodes or from what came home.

Files are named as the nodes name them (``runtime/ask/files.py``): ``artifacts/…`` and ``checkpoints/…``.
Anything that a node sends may come from the job's code, so a name is checked before it becomes a path. For an
ended job there are the artifacts that its nodes sent, and the checkpoints that lie on this machine.
"""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from nbtorchjob.backends import downloads
from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.errors import AskError, ClusterError, JobEndedError, ResultError, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.api.checkpoints import PARTIAL
from nbtorchjob.runtime.ask.files import ARTIFACTS, CHECKPOINTS, MOST_FILES, RefusedPath, opened, plain_files
from nbtorchjob.state import JobState
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import line, size

_LIST_S = 10.0
_PART_S = 60.0  # for the next part of a file
_TRIES = 4  # in a row that transfer nothing
_PASSES = 3  # over a file that is being written
_AGAIN_S = 1.0
_PIECE_BYTES = 1 << 20
_WHOLE_BYTES = 1 << 23  # a synced copy up to this size is compared as a whole
_TAIL_BYTES = 1 << 16  # compared at the end of a bigger copy, if the file has grown
_MOST_NAME = 4096
_LONGEST_NAME = 255  # bytes of a file's own name, on all usual file systems
_MOST = 1 << 62
_MOST_LACKING = 3  # reasons that an error gives


class RunFile(FrozenDataclass):
    """A file on a node: its ``path``, ``size`` in bytes, and when it was ``modified``, in epoch seconds."""

    path: str
    size: int
    modified: float
    node: int


class Listing(FrozenDataclass):
    """The files of a job, sorted by path and node, and why nodes are missing, by their number.

    ``more`` is whether a node has more files than it lists.
    """

    files: tuple[RunFile, ...]
    trouble: Mapping[int, str]
    more: bool = False


class NodeListing(FrozenDataclass):
    """The files that one node lists.

    ``more`` is whether it has others, ``shared`` whether all nodes share its folder of checkpoints.
    """

    files: tuple[RunFile, ...]
    more: bool
    shared: bool

    def new(self, shared_paths: set[str]) -> Iterator[RunFile]:
        """Yield the files, except shared ones in ``shared_paths``; add the path of each other shared one."""
        for file in self.files:
            if self.shared and file.path.startswith(f"{CHECKPOINTS}/"):
                if file.path in shared_paths:
                    continue
                shared_paths.add(file.path)
            yield file


class RefusedFileError(ResultError):
    """The node no longer has the file, or can't read it."""


class BusyFileError(ResultError):
    """Another copy writes to the same file here."""


class CopiedFile(FrozenDataclass):
    """A copied file; ``kept`` is the number of bytes that were here already.

    ``growing`` is whether it was still being written: the copy is its beginning, as of a moment ago.
    """

    path: Path
    size: int
    kept: int
    growing: bool


def listed(backend: Backend, state: JobState, path: str = "", nodes: Sequence[int] | None = None) -> Listing:
    """Ask a running job's nodes what their ranks have written at or below ``path``.

    A folder of checkpoints that all nodes share is listed once, by any of them. For an ended job, lists the
    files that came home. Raises ``SpecError``, and ``JobEndedError`` if the job ends meanwhile.
    """
    path = checked(path)
    if state.phase.terminal:
        home = [kept.file for kept in islice(_home(backend, state, path, nodes), MOST_FILES + 1)]
        return Listing(tuple(home[:MOST_FILES]), {}, len(home) > MOST_FILES)
    files: list[RunFile] = []
    trouble: dict[int, str] = {}
    more = whole = False
    shared: set[str] = set()
    question = {"question": "files", "list": path}
    answers = able(backend, Talks, "files", state.info.address).ask(
        state.info.address, question, nodes=nodes, timeout=_LIST_S
    )
    for answer in sorted(answers, key=lambda answer: answer.node):
        listing = _listing(answer.records, answer.node, path)
        if listing is None:
            trouble[answer.node] = answer.trouble or "its answer has no end"
            continue
        more = more or listing.more
        whole = whole or (listing.shared and path.partition("/")[0] == CHECKPOINTS)
        files += listing.new(shared)
    missing = {} if whole else trouble
    return Listing(tuple(sorted(files, key=lambda file: (file.path, file.node))), missing, more)


def fetch(
    backend: Backend, state: JobState, path: str, folder: Path, node: int | None = None
) -> Iterator[CopiedFile]:
    """Copy a file, or all files below a path, into a folder, made if needed; yield each copy.

    An interrupted copy goes on where it stopped, now or at the next call, and its digest is compared with the
    node's. A local file that is the beginning of the node's is completed. Raises ``SpecError`` for a local
    file with other content, ``AskError`` and ``JobEndedError``; ``ResultError`` for files that can't be read
    or aren't listed, once all others are copied.
    """
    path = checked(path)
    if not path:
        raise SpecError("path", path, f"a file or folder that {hint('files', state.info.name)} lists")
    nodes = None if node is None else [node]
    home: dict[tuple[str, int], _KeptFile] = {}
    if state.phase.terminal:
        home = {(kept.file.path, kept.file.node): kept for kept in _home(backend, state, path, nodes)}
        listing = Listing(tuple(kept.file for kept in home.values()), {})
    else:
        listing = listed(backend, state, path, nodes)
    if not listing.files:
        why = _first_trouble(listing)
        raise ResultError(
            f"{state.info.name} has no file {path!r} now; {hint('files', state.info.name)} lists them{why}"
        )
    lacking = [f"node {index} didn't list its files: {why}" for index, why in listing.trouble.items()]
    if listing.more:
        text = f"{path} has more files than the {MOST_FILES:,} that a node lists: name a folder in it"
        lacking.insert(0, text)
    places, above = Places(), path.rpartition("/")[0]
    for file in listing.files:
        below = places.of(file, file.path[len(above) + 1 :] if above else file.path)
        kept, target = home.get((file.path, file.node)), folder / below
        try:
            yield _copied_home(kept, target) if kept else _Copy(backend, state, file, target).run()
        except RefusedFileError as exc:
            lacking.append(str(exc))
    if lacking:
        raise ResultError("; ".join(lacking[:_MOST_LACKING]))


def refresh(backend: Backend, state: JobState, path: str, target_of: Callable[[RunFile], Path]) -> int:
    """Overwrite copies with the files of an ended job that came home, at or below a path.

    Return the number of bytes written. Raises ``ResultError`` for a file that can't be read or written.
    """
    count = 0
    for kept in _home(backend, state, path, {0, *(node for _, node in state.artifacts)}):
        target = target_of(kept.file)
        with _beside(target, kept) as partial:
            if not target.is_file() or not filecmp.cmp(partial, target, shallow=False):
                os.replace(partial, target)
                count += kept.file.size
    return count


def renew(reader: Reader, file: RunFile, target: Path) -> int:
    """Update a copy to what its node has, in one step if that was rewritten; return the bytes received.

    Raises ``BusyFileError``, ``RefusedFileError`` and ``AskError``.
    """
    partial, received = partial_of(target), 0
    with ExitStack() as stack:

        def begin() -> BinaryIO:
            begun = stack.enter_context(appending(partial, file.path, target))
            stack.callback(_remove, partial, begun)
            begun.truncate(0)
            return begun

        is_new = not target.exists()
        out = begin() if is_new else stack.enter_context(appending(target, file.path, target))
        have = out.seek(0, os.SEEK_END)
        # A file of the same size was rewritten, perhaps with the same end, so all of it is compared.
        span = have if have == file.size or have <= _WHOLE_BYTES else _TAIL_BYTES
        # The digest of the copy's last ``span`` bytes; those that arrive are added.
        digest = hashlib.sha256()
        out.seek(have - span)
        while piece := out.read(_PIECE_BYTES):
            digest.update(piece)
        parts = reader.read(file.path, have, span, digest.hexdigest())
        continues = next(parts) == have > 0
        if not continues:
            out, digest = out if is_new else begin(), hashlib.sha256()
        for part in parts:
            assert isinstance(part, bytes)
            out.write(part)
            digest.update(part)
            received += len(part)
        if digest.hexdigest() != reader.end[0]:
            if continues:
                out.truncate(have)
            raise AskError(f"{file.path} was damaged on its way: its digest isn't the node's")
        out.flush()
        if not continues:
            os.replace(partial, target)
    return received


def within(path: str, folder: str) -> str:
    """Return a file's path in the copy of a folder; its name if ``folder`` is the file itself."""
    return path[len(folder) :].strip("/") or path.rpartition("/")[2]


class Content(FrozenDataclass):
    """One file to read; ``pieces`` may differ from its size in bytes if it is being written."""

    file: RunFile
    pieces: Iterator[bytes]


def content(backend: Backend, state: JobState, path: str, node: int | None = None) -> Content:
    """Read a file from its node, or from what came home; closing the pieces ends the transfer.

    Raises ``SpecError``, ``ResultError``, ``AskError`` and ``JobEndedError``, also while the file is read.
    """
    path = checked(path)

    def streamed(file: RunFile) -> Iterator[bytes]:
        reader = Reader(backend, state.info.address, file.node)
        try:
            for part in reader.read(file.path, 0, 0, ""):
                if isinstance(part, bytes):
                    yield part
        finally:
            reader.close()

    why = ""
    if state.phase.terminal:
        for kept in _home(backend, state, path, None if node is None else [node]):
            if kept.file.path == path:
                return Content(kept.file, kept.pieces())
    else:
        listing = listed(backend, state, path, None if node is None else [node])
        for file in listing.files:
            if file.path == path:
                return Content(file, streamed(file))
        why = _first_trouble(listing)
    raise ResultError(f"{state.info.name} has no file {path!r} now{why}")


def _first_trouble(listing: Listing) -> str:
    return next((f"; node {index}: {text}" for index, text in listing.trouble.items()), "")


class _KeptFile(FrozenDataclass):
    """A file of an ended job, and the function that reads it."""

    file: RunFile
    pieces: Callable[[], Iterator[bytes]]


def _home(
    backend: Backend, state: JobState, path: str, nodes: Collection[int] | None = None
) -> Iterator[_KeptFile]:
    """Yield the files of an ended job that came home, at or below a path, sorted as in a listing.

    Unless ``nodes`` are named, files of several nodes that are the same are yielded once.
    """
    first, _, rest = path.partition("/")
    if first in ("", ARTIFACTS):
        sent = sorted(downloads.sent(backend, state), key=lambda new: (new.artifact.path, new.artifact.node))
        contents: set[tuple[str, tuple[int, int]]] = set()
        for stored in sent:
            artifact, content = stored.artifact, (stored.artifact.path, stored.content)
            is_selected = content not in contents if nodes is None else artifact.node in nodes
            if is_selected and (not rest or f"{artifact.path}/".startswith(f"{rest}/")):
                contents.add(content)
                file = RunFile(f"{ARTIFACTS}/{artifact.path}", artifact.size, stored.modified, artifact.node)
                yield _KeptFile(file, stored.pieces)
    root = backend.checkpoints(state.info.address) if first in ("", CHECKPOINTS) else None
    if root is not None:
        folder = os.path.realpath(root)
        for name, status in plain_files(CHECKPOINTS, folder, path):
            # All nodes of this machine share the folder.
            file = RunFile(name, status.st_size, status.st_mtime, min(nodes or [0]))
            yield _KeptFile(file, partial(_pieces, folder, name.partition("/")[2]))


def _pieces(root: str, rest: str) -> Iterator[bytes]:
    try:
        with opened(root, rest) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except RefusedPath as exc:
        raise ResultError(str(exc)) from exc


@contextmanager
def _beside(target: Path, kept: _KeptFile) -> Iterator[Path]:
    """Write a file of an ended job next to its target and yield that path; remove it unless it was moved.

    Turns an ``OSError``, also of the body, into a ``ResultError``.
    """
    partial = partial_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with appending(partial, kept.file.path, target) as file:
            try:
                file.truncate(0)
                file.writelines(kept.pieces())
                file.flush()
                yield partial
            finally:
                _remove(partial, file)
    except OSError as exc:
        raise ResultError(f"{kept.file.path} can't be written to {target}: {exc.strerror or exc}") from exc


def _copied_home(kept: _KeptFile, target: Path) -> CopiedFile:
    """Copy a file of an ended job; an existing file that is its beginning is completed."""
    local_size = 0
    with _beside(target, kept) as partial:
        try:
            _settle(partial, target)
        except FileExistsError:
            same = filecmp.cmp(partial, target, shallow=False)  # needs no right to write
            local_size = kept.file.size if same else _completed(partial, target, kept.file.path)
    return CopiedFile(target, kept.file.size, local_size, growing=False)


def _settle(partial: Path, target: Path) -> None:
    """Give a whole file its name; raises ``FileExistsError`` rather than replace another file."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # FAT and many file systems in user space have no links: first take the name
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.replace(partial, target)


def _completed(whole: Path, target: Path, path: str) -> int:
    """Append what a file lacks of the whole one; return its size before. Raises as :func:`fetch` does."""
    with open(whole, "rb") as source, open(target, "r+b") as file:
        _lock(file, path, target)
        while piece := file.read(_PIECE_BYTES):
            if source.read(len(piece)) != piece:
                allowed = f"a folder without another file named {target.name}"
                raise SpecError("folder", str(target.parent), allowed)
        local_size = file.tell()
        shutil.copyfileobj(source, file)
    return local_size


def _lock(file: BinaryIO, path: str, target: Path) -> None:
    """Keep other copies from appending to the same file until it is closed; raises ``BusyFileError``."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyFileError(f"{path} is being copied to {target} already") from None
    except OSError:  # a file system without locks
        pass


def partial_of(target: Path) -> Path:
    """Return the path at which a file is written until it is whole."""
    name = target.name
    if len(os.fsencode(f".{name}{PARTIAL}")) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}{PARTIAL}")


@contextmanager
def appending(at: Path, path: str, target: Path) -> Iterator[BinaryIO]:
    """Open the target or its partial file to append; raises ``BusyFileError`` while another copy does."""
    for last in (False, False, True):  # some file systems give an open file another number
        with open(at, "a+b") as file:
            _lock(file, path, target)
            if last or _is_at(at, file):  # the copy that had it until now hasn't moved or removed it
                yield file
                return


def _is_at(at: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.stat(at), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _remove(at: Path, file: BinaryIO) -> None:
    """Remove an open file, unless it has been moved: another copy may have begun a file of that name."""
    with suppress(OSError):
        if _is_at(at, file):
            at.unlink()


class Places:
    """The paths of files in a folder that is filled from several nodes.

    The first node's file keeps its path; another node's is below ``node-1/``, also if one of the two paths is
    a folder of the other.
    """

    def __init__(self) -> None:
        self._owners: dict[str, int] = {}  # by path: the node whose file has it
        self._folders: set[str] = set()

    def of(self, file: RunFile, own: str) -> str:
        """Return the path of a file in the folder; it is ``own`` unless that is taken."""
        above = {str(folder) for folder in PurePosixPath(own).parents}
        if own not in self._folders and above.isdisjoint(self._owners):
            self._folders |= above
            if self._owners.setdefault(own, file.node) == file.node:
                return own
        return f"node-{file.node}/{own}"


def checked(path: str) -> str:
    """Return a path as nodes name files; raise ``SpecError`` if no node can have files there."""
    parts = path.strip("/").split("/")
    odd = parts != [""] and (parts[0] not in (ARTIFACTS, CHECKPOINTS) or {"", ".", ".."}.intersection(parts))
    if odd or len(path) > _MOST_NAME:
        raise SpecError("path", path, f"{ARTIFACTS}/… or {CHECKPOINTS}/…, as `files` lists them")
    return "/".join(parts)


def _listing(records: Sequence[Mapping[str, Any]], node: int, below: str) -> NodeListing | None:
    """Return what a node lists at or below a path, without what leads elsewhere; None if it was cut off."""
    end = next((record for record in records if "listed" in record), None)
    if end is None:
        return None
    files: list[RunFile] = []
    for record in records:
        rows = record.get("files")
        for row in rows if isinstance(rows, list) else ():
            try:
                path, count, modified = row
                file = RunFile(str(path), int(count), float(modified), node)
            except (TypeError, ValueError, OverflowError):
                continue
            parts = file.path.split("/")
            safe = parts[0] in (ARTIFACTS, CHECKPOINTS) and not {"", ".", ".."}.intersection(parts)
            inside = not below or f"{file.path}/".startswith(f"{below}/")
            if safe and file.path.isprintable() and inside and 0 <= file.size < _MOST:
                files.append(file)
    return NodeListing(tuple(files), end.get("more") is True, end.get("shared") is True)


class Reader:
    """A conversation with one node about its files. Raises ``AskError`` and ``ClusterError``.

    ``end`` belongs to the newest read: the digest of the bytes read and of the span before them, and whether
    the file was written to meanwhile.
    """

    def __init__(self, backend: Backend, address: str, node: int) -> None:
        self.node = node
        self.end = ("", False)
        self._talk = able(backend, Talks, "files", address).talk(
            address, node, {"question": "files"}, _LIST_S
        )

    def close(self) -> None:
        """End the conversation."""
        self._talk.close()

    def list(self, path: str) -> NodeListing:
        """Return the node's files at or below a path."""
        self._talk.send({"list": path})
        records: list[Mapping[str, Any]] = []
        while (listing := _listing(records, self.node, path)) is None:
            records.append(_checked_record(self._talk.hear(_PART_S)))
        return listing

    def read(self, path: str, offset: int, span: int, sha256: str) -> Iterator[int | bytes]:
        """Yield the offset at which the node begins to read, and then the bytes.

        It begins at ``offset`` if the ``span`` bytes before that have this digest, else at 0. Raises
        ``RefusedFileError`` for a file that can't be read.
        """
        self._talk.send({"read": path, "offset": offset, "span": span, "sha256": sha256})
        while "from" not in (record := _checked_record(self._talk.hear(_PART_S))):
            pass
        yield offset if record["from"] == offset else 0
        while isinstance(part := self._talk.receive(_PART_S), bytes):
            yield part
        last = _checked_record(part)
        self.end = str(last.get("sha256")), last.get("changed") is True


def _checked_record(record: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if record is None:
        raise AskError("its node has ended the conversation")
    if isinstance(why := record.get("refused"), str):
        raise RefusedFileError(line(why, 300))
    return record


class _Copy:
    """The copy of one file from a node."""

    def __init__(self, backend: Backend, state: JobState, source: RunFile, target: Path) -> None:
        self._backend, self._state, self._source, self._target = backend, state, source, target
        self._partial = partial_of(target)
        self._digest = hashlib.sha256()  # of the bytes that are here
        self._kept = 0
        self._reader: Reader | None = None

    def run(self) -> CopiedFile:
        """Copy the file."""
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            while (growing := self._append(begun=self._target.exists())) is None:
                pass
        except (OSError, JobEndedError) as exc:
            raise self._lost(exc) from exc
        finally:
            self._leave()
        return CopiedFile(self._target, self._target.stat().st_size, self._kept, growing)

    def _append(self, *, begun: bool) -> bool | None:
        """Complete the local file; return what :meth:`_complete` does, None if it has just been begun."""
        with appending(self._target if begun else self._partial, self._source.path, self._target) as file:
            try:
                if not begun and self._target.exists():  # another copy was quicker
                    return None
                growing = self._complete(file, own=not begun)
                if not begun:
                    _settle(self._partial, self._target)
                return growing
            finally:
                # An interrupted copy goes on from its partial file, unless that is empty.
                if not begun and (self._target.exists() or not file.tell()):
                    _remove(self._partial, file)

    def _complete(self, file: BinaryIO, *, own: bool) -> bool:
        """Copy what the node has beyond the local file; return whether it is still being written there."""
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            self._digest.update(piece)
        self._kept = file.tell()
        whole = 0 if own else self._kept  # bytes to keep if the rest arrives damaged
        tries = passes = 0
        while True:
            before = file.tell()
            try:
                changed = self._read_on(file, whole, own=own)
            except (AskError, ClusterError, TimeoutError) as exc:
                self._leave()
                tries = tries + 1 if file.tell() == before else 0
                if tries == _TRIES:
                    raise self._lost(exc) from exc
                time.sleep(_AGAIN_S)
                continue
            passes += 1
            if not changed or passes == _PASSES:
                return changed

    def _read_on(self, file: BinaryIO, whole: int, *, own: bool) -> bool:
        """Read on from the local end; return whether the file was written to meanwhile."""
        if self._reader is None:
            self._reader = Reader(self._backend, self._state.info.address, self._source.node)
        local_end = file.tell()
        parts = self._reader.read(self._source.path, local_end, local_end, self._digest.hexdigest())
        if next(parts) != local_end:
            if not own:
                allowed = f"a folder without another file named {self._target.name}"
                raise SpecError("folder", str(self._target.parent), allowed)
            self._kept, self._digest = 0, hashlib.sha256()
            file.truncate(0)
        for part in parts:
            assert isinstance(part, bytes)
            file.write(part)
            self._digest.update(part)
        file.flush()
        sha256, changed = self._reader.end
        if sha256 != self._digest.hexdigest():
            file.truncate(whole)
            raise ResultError(f"{self._source.path} was damaged on its way: its digest isn't the node's")
        return changed

    def _lost(self, exc: Exception) -> Exception:
        """Return the error that says why a copy is incomplete, and how to continue it."""
        name, path = self._state.info.name, self._source.path
        if isinstance(exc, OSError) and not isinstance(exc, TimeoutError):
            return ResultError(f"{path} can't be written to {self._target}: {exc.strerror or exc}")
        why = str(exc) or "its node doesn't answer"
        kept = self._partial.stat().st_size if self._partial.exists() else 0
        again = f"; {size(kept)} of it are kept, and the same command continues from there" if kept else ""
        kind = JobEndedError if isinstance(exc, JobEndedError) else AskError
        return kind(f"{path} of {name} can't be copied: {why}{again}")

    def _leave(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
