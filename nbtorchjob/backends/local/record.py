"""A job's folder: its files by name, and the record written at submission."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nbtorchjob.backends.local.processes import Process
from nbtorchjob.errors import NameTakenError, SubmitError
from nbtorchjob.runtime.emit import append
from nbtorchjob.state import JobInfo

# Given up when the disk is full, so that the job's last events still fit (``runtime/emit.py``).
BALLAST_BYTES = 65_536
# A job whose spec doesn't say: a week, as results of every cell would fill a disk in the end.
KEEP_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Folder:
    """The folder of one job."""

    path: Path

    @property
    def payload(self) -> Path:
        """The zipapp that every node runs."""
        return self.path / "job.pyz"

    @property
    def key(self) -> Path:
        """The job's own key."""
        return self.path / "key"

    @property
    def events(self) -> Path:
        """Every fact, one JSON line each."""
        return self.path / "events.jsonl"

    @property
    def cancel(self) -> Path:
        """A file that is there once somebody asked for the job's end."""
        return self.path / "cancel"

    @property
    def checkpoints(self) -> Path:
        """What ranks keep from attempt to attempt; there once one of them asked for it."""
        return self.path / "checkpoints"

    def node(self, index: int) -> Path:
        """Where a node writes."""
        return self.path / f"node-{index}"

    def rank_log(self, node: int, round_: int, rank: int) -> Path:
        """A rank's log in one round."""
        return self.node(node) / f"round-{round_}" / f"rank-{rank}.log"

    def info(self) -> JobInfo:
        """Read what was submitted."""
        data: dict[str, Any] = json.loads((self.path / "job.json").read_text())["info"]
        data["nodes"] = tuple(data["nodes"])
        data["sources"] = {name: tuple(pair) for name, pair in data["sources"].items()}
        return JobInfo(**data)

    def emit(self, event: str, **fields: Any) -> None:
        """Write down a fact of now: a class name of ``nbtorchjob/events.py`` with its fields."""
        append(str(self.events), {"event": event, "time": time.time(), **fields})

    def ttl_s(self) -> float:
        """Read how many seconds the job is kept once it has ended."""
        try:
            return float((self.path / "ttl").read_text())
        except FileNotFoundError:
            return KEEP_S

    def pool(self) -> tuple[Process, Path] | None:
        """Read which pool was asked to start the job, and where that one writes its log."""
        try:
            found = json.loads((self.path / "pool.json").read_text())
        except FileNotFoundError:
            return None
        return Process(**found["process"]), Path(found["folder"])

    def hand_to(self, pool: Process, folder: Path) -> None:
        """Write down which pool is asked to start the job."""
        self._write("pool.json", {"process": asdict(pool), "folder": str(folder)})

    def _write(self, name: str, data: dict[str, Any]) -> None:
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(data))
        partial.rename(self.path / name)

    def supervisor(self) -> Process | None:
        """Read who keeps the job; None before somebody does."""
        try:
            return Process(**json.loads((self.path / "supervisor.json").read_text()))
        except FileNotFoundError:
            return None

    def keep(self, process: Process) -> None:
        """Write down who keeps the job."""
        self._write("supervisor.json", asdict(process))


def create(jobs: Path, info: JobInfo, payload: Callable[[BinaryIO, bytes], int]) -> Folder:
    """Make the job's folder in one step; ``payload`` writes the zipapp, signed with the key it gets.

    Raises ``NameTakenError``, or ``SubmitError`` where the disk won't take it; then nothing is left.
    """
    if (jobs / info.name).exists():
        raise _taken(info.name)
    new = Folder(jobs / f".new-{secrets.token_hex(8)}")
    try:
        new.path.mkdir(mode=0o700)
        _fill(new, payload, info.ttl_s)
        record = {"info": {**vars(info), "sources": dict(info.sources), "spec": dict(info.spec)}}
        (new.path / "job.json").write_text(json.dumps(record))
        new.path.rename(jobs / info.name)
    except OSError as exc:
        shutil.rmtree(new.path, ignore_errors=True)
        if (jobs / info.name).exists():  # another kernel was faster
            raise _taken(info.name) from None
        raise SubmitError(f"the job can't be written to {jobs}: {exc.strerror or exc}") from exc
    except BaseException:
        shutil.rmtree(new.path, ignore_errors=True)
        raise
    return Folder(jobs / info.name)


def _fill(new: Folder, payload: Callable[[BinaryIO, bytes], int], ttl_s: int | None) -> None:
    key = secrets.token_bytes(32)
    _private(new.key, key)
    with open(new.payload, "wb") as file:
        payload(file, key)
    if ttl_s is not None:
        (new.path / "ttl").write_text(str(ttl_s))
    (new.path / "ballast").write_bytes(b"\0" * BALLAST_BYTES)
    new.events.touch()


def _private(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _taken(name: str) -> NameTakenError:
    return NameTakenError(
        f"a job named {name!r} exists already; choose another --name, or %torchjob delete {name}"
    )
