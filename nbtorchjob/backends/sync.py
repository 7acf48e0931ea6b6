"""A folder here that is kept in step with what ranks write, for as long as their job runs.

A file that grows is read from where the copy ends: its last bytes are compared first. One that was written
anew is replaced in one step. What a node sends once its ranks have ended completes the folder.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from nbtorchjob.backends import downloads
from nbtorchjob.backends.base import Backend
from nbtorchjob.backends.files import Reader, RunFile
from nbtorchjob.errors import AskError, ClusterError, JobEndedError, NBTorchJobError, ResultError
from nbtorchjob.runtime.api.checkpoints import PARTIAL
from nbtorchjob.runtime.ask.files import ARTIFACTS
from nbtorchjob.state import JobState

EVERY_S = 2.0
_TAIL_BYTES = 1 << 16  # by which the beginning of a file is known again


class Sync:
    """What lies at or below ``path`` on a job's nodes, in ``folder``.

    ``copied`` counts the bytes that came, and ``trouble`` is why a node is missing now, "" if none is.
    """

    def __init__(self, backend: Backend, state: JobState, path: str, folder: Path) -> None:
        self.copied = 0
        self.trouble = ""
        self._backend, self._state = backend, state
        self._path, self._folder = path.strip("/"), folder
        self._readers: dict[int, Reader] = {}
        self._seen: dict[tuple[int, str], RunFile] = {}
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
                        self._bring(reader, file)
                        self._seen[node, file.path] = file
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

    def _bring(self, reader: Reader, file: RunFile) -> None:
        target = self._target(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._read(reader, file, target)
        except OSError as exc:
            if isinstance(exc, TimeoutError):
                raise
            raise ResultError(f"{file.path} can't be written to {target}: {exc.strerror or exc}") from exc

    def _read(self, reader: Reader, file: RunFile, target: Path) -> None:
        tail = _tail(target)
        have = target.stat().st_size if target.exists() else 0
        digest = hashlib.sha256(tail)
        parts = reader.read(file.path, have, len(tail), digest.hexdigest())
        continues = next(parts) == have
        partial = target.with_name(f".{target.name}{PARTIAL}")
        if not continues or not have:
            digest = hashlib.sha256()
        with open(target if continues and have else partial, "ab" if continues and have else "wb") as out:
            for part in parts:
                assert isinstance(part, bytes)
                out.write(part)
                digest.update(part)
                self.copied += len(part)
        if digest.hexdigest() != reader.end[0]:
            raise ResultError(f"{file.path} was damaged on its way: its digest isn't the node's")
        if not (continues and have):
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


def _tail(path: Path) -> bytes:
    """Return the last bytes of a file; b"" where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""
