"""A folder here that is kept in step with what ranks write, for as long as their job runs.

A file that grows is read from where the copy ends: what is here is compared first, of a big file its last
bytes. One that was written anew is replaced in one step. A node sends the rest once its ranks have ended.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from nbtorchjob.backends import downloads
from nbtorchjob.backends.base import Backend
from nbtorchjob.backends.files import Reader, RefusedFileError, RunFile
from nbtorchjob.errors import AskError, ClusterError, JobEndedError, NBTorchJobError, ResultError
from nbtorchjob.runtime.api.checkpoints import PARTIAL
from nbtorchjob.runtime.ask.files import ARTIFACTS
from nbtorchjob.state import JobState

EVERY_S = 2.0
_WHOLE_BYTES = 1 << 23  # of a copy, which is compared whole
_PIECE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16  # of a bigger one, where the file has grown


class Sync:
    """What lies at or below ``path`` on a job's nodes, in ``folder``.

    ``copied`` counts the bytes that came, and ``trouble`` is why a node is missing now, "" if none is.
    """

    def __init__(self, backend: Backend, state: JobState, path: str, folder: Path) -> None:
        self.copied = 0
        self.trouble = ""
        self._backend, self._state = backend, state
        self._path, self._folder = path, folder
        self._readers: dict[int, Reader] = {}
        self._seen: dict[tuple[int, str], RunFile] = {}
        self._refused: dict[tuple[int, str], RunFile] = {}
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._owners: dict[str, int] = {}  # the node whose file of a path has that path here

    def start(self) -> Sync:
        """Bring what is new from now on, in the background, until the job has ended; return this."""
        threading.Thread(
            target=self._follow, name=f"nbtorchjob-sync-{self._state.info.name}", daemon=True
        ).start()
        return self

    def _follow(self) -> None:
        try:
            while self.step() and not self._stopped.wait(EVERY_S):
                pass
        except NBTorchJobError as exc:
            self.trouble = str(exc)
        finally:
            self.close()
            self._ended.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, with its job or by ``stop``; return whether it has."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """End it once what it does now is done."""
        self._stopped.set()

    def step(self) -> bool:
        """Bring what is new; return whether the job goes on.

        Raises ``ResultError`` where the folder can't be written to.
        """
        self.trouble = ""
        state = self._backend.known(self._state.info.address)
        if state.phase.terminal:
            self._complete()
            return False
        for node in sorted(index for index, node in state.nodes.items() if node.life.running):
            try:
                reader = self._readers.get(node) or Reader(self._backend, state.info.address, node)
                self._readers[node] = reader
                for file in reader.list(self._path):
                    if self._seen.get((node, file.path)) != file:
                        self._renew(reader, file)
            except (AskError, ClusterError, TimeoutError, JobEndedError) as exc:
                self.trouble = f"node {node}: {exc or 'it does not answer'}"
                self._leave(node)
        return True

    def close(self) -> None:
        """Leave the nodes."""
        for node in list(self._readers):
            self._leave(node)

    def _leave(self, node: int) -> None:
        if reader := self._readers.pop(node, None):
            reader.close()

    def _target(self, file: RunFile) -> Path:
        below = file.path[len(self._path) :].strip("/") or file.path.rpartition("/")[2]
        own = self._owners.setdefault(file.path, file.node) == file.node
        return self._folder / below if own else self._folder / f"node-{file.node}" / below

    def _renew(self, reader: Reader, file: RunFile) -> None:
        """Bring a file to what its node has; one that was removed or renamed meanwhile is passed over."""
        key, target = (file.node, file.path), self._target(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._read(reader, file, target)
        except RefusedFileError as exc:
            if self._refused.get(key) == file:  # it is still listed
                self.trouble = f"node {file.node}: {exc}"
            self._refused[key] = file
        except OSError as exc:
            if isinstance(exc, TimeoutError):
                raise
            raise ResultError(f"{file.path} can't be written to {target}: {exc.strerror or exc}") from exc
        else:
            self._seen[key] = file

    def _read(self, reader: Reader, file: RunFile, target: Path) -> None:
        have = target.stat().st_size if target.exists() else 0
        # A file of the same size was written anew; perhaps its end was not.
        span = have if have == file.size or have <= _WHOLE_BYTES else _TAIL_BYTES
        digest = _digest_of_end(target, span)
        parts = reader.read(file.path, have, span, digest.hexdigest())
        continues = next(parts) == have > 0
        partial = target.with_name(f".{target.name}{PARTIAL}")
        if not continues:
            digest = hashlib.sha256()
        with open(target if continues else partial, "ab" if continues else "wb") as out:
            for part in parts:
                assert isinstance(part, bytes)
                out.write(part)
                digest.update(part)
                self.copied += len(part)
            if digest.hexdigest() != reader.end[0]:
                out.truncate(have if continues else 0)
                raise AskError(f"{file.path} was damaged on its way: its digest isn't the node's")
        if not continues:
            os.replace(partial, target)

    def _complete(self) -> None:
        """Write what nodes have sent at their end."""
        state = self._backend.snapshot(self._state.info.address)
        below = self._path.partition("/")[2]
        if not state.artifacts or self._path.partition("/")[0] not in ("", ARTIFACTS):
            return
        inside = self._folder / ARTIFACTS if not self._path else self._folder
        try:
            self.copied += downloads.refresh(self._backend, state, inside, below)
        except NBTorchJobError as exc:
            self.trouble = str(exc)


def _digest_of_end(path: Path, span: int) -> hashlib._Hash:
    """Return the digest of a file's last bytes, so many, to be continued."""
    digest = hashlib.sha256()
    if span:
        with open(path, "rb") as file:
            file.seek(-span, os.SEEK_END)
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
    return digest
