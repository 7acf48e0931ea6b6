"""A job's folder: its location, its files, the record of the submission, and errors for damaged ones."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from nbtorchjob.errors import DamagedError, NameTakenError, NBTorchJobError, SubmitError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import own, plain, record, state_dir
from nbtorchjob.machine.processes import NOBODY, Process
from nbtorchjob.runtime.api.points import KEPT
from nbtorchjob.runtime.facts import append
from nbtorchjob.spec import checked
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts.factlines import UNREADABLE
from nbtorchjob.state.info import read, run_at, why, write
from nbtorchjob.text.hints import hint


class reading:
    """Raises ``DamagedError`` for what can't be read, but ``FileNotFoundError`` if the job is gone."""

    # Not a generator, which takes three times as long: a list enters this three times per job.
    __slots__ = ("_folder", "_part")

    def __init__(self, folder: Path, part: str = "record") -> None:
        self._folder, self._part = folder, part

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is None or isinstance(exc, NBTorchJobError) or not isinstance(exc, (OSError, *UNREADABLE)):
            return
        if not isinstance(exc, FileNotFoundError) or (self._folder / "events.jsonl").exists():
            raise DamagedError("local", self._folder.name, self._part, why(exc)) from exc


# Given up when the disk is full, so that the job's last events still fit (``runtime/facts``).
BALLAST_BYTES = 65_536
# By default a job is kept for a week: the results of all cells would fill a disk in the end.
TTL_S = 7 * 24 * 3600.0
# The newest payloads of ended jobs are saved for retries, up to this size in total.
SAVED_BYTES = 1 << 30

GENTLY = "gently"  # the content of a job's cancel file if its ranks are to have time to save
_CLOSER = "closer"  # instead of a supervisor
_EARLY = "early"  # in the same file, in front of the reason for stopping a run early

_VALUE = re.compile(r"(?<![^/])node-\d{1,9}/round-(\d+)/rank-(\d+)\.value\Z")
# The fields of the request that ``launch/pool_client.py`` writes.
_REQUEST = {"python": str, "env": dict, "cwd": str, "path": list, "umask": int, "cpus": list, "limits": dict}


class Handover(FrozenDataclass):
    """The pool that is to start a job, the folder with its log, the process that asks it, and when.

    ``at`` is in seconds since the machine's start (:func:`uptime`): that clock can't be set.
    """

    pool: Process
    folder: Path
    kernel: Process
    at: float


class JobDirectory(FrozenDataclass):
    """The folder of one job."""

    path: Path

    @property
    def payload(self) -> Path:
        """The zipapp that every node runs."""
        return self.path / "job.pyz"

    @property
    def saved(self) -> Path:
        """The payload of an ended job, as long as it is saved."""
        return self.path / "saved.pyz"

    @property
    def key(self) -> Path:
        """The job's own key."""
        return self.path / "key"

    @property
    def events(self) -> Path:
        """Every fact, one JSON line each."""
        return self.path / "events.jsonl"

    @property
    def environment(self) -> Path:
        """What the job's interpreter can import: an ``EnvironmentTold`` without its time."""
        return self.path / "environment.json"

    @property
    def checkout(self) -> Path:
        """What git reported about the notebook's folder: a ``CheckoutTold``."""
        return self.path / "checkout.json"

    @property
    def cancel(self) -> Path:
        """A file that exists once the job's end was requested; its content says how (``GENTLY``)."""
        return self.path / "cancel"

    @property
    def gently(self) -> bool:
        """Whether the job's end was requested, and its ranks have time to save."""
        with suppress(OSError):
            return self.cancel.read_text() == GENTLY
        return False

    @property
    def early(self) -> dict[str, str]:
        """Why the job's end was requested, as fields of that fact; empty if for no special reason."""
        with suppress(OSError):
            kind, _, why = self.cancel.read_text().partition(" ")
            return {"early": why} if kind == _EARLY else {}
        return {}

    def ask_end(self, *, gently: bool, early: str) -> None:
        """Mark that the job's end is requested; stopping it early doesn't replace another request."""
        if not early:
            self.cancel.write_text(GENTLY if gently else "")
        elif not self.cancel.exists():
            self.cancel.write_text(f"{_EARLY} {early}")

    @property
    def checkpoints(self) -> Path:
        """What ranks save from attempt to attempt; exists once one of them asked for it."""
        return self.path / "checkpoints"

    def node(self, index: int) -> Path:
        """The folder that a node writes to."""
        return self.path / f"node-{index}"

    def rank_log(self, node: int, round_: int, rank: int) -> Path:
        """A rank's log in one round."""
        (log,) = self.rank_logs([(node, round_, rank)])
        return Path(log)

    def rank_logs(self, ranks: Iterable[tuple[int, int, int]]) -> Iterator[str]:
        """Yield the logs of ranks, given as (node, round, rank); as text, as hundreds are checked often."""
        for node, round_, rank in ranks:
            yield f"{self.path}/node-{node}/round-{round_}/rank-{rank}.log"

    def value(self, round_: int, rank: int, ref: str) -> Path | None:
        """Return the path of a rank's value that was reported at ``ref``; None if no node writes there."""
        # Only the part below the job's folder is used, as the folder may have been moved since.
        match = _VALUE.search(ref)
        return self.path / match[0] if match and match.groups() == (str(round_), str(rank)) else None

    def artifacts(self, node: int, attempt: int) -> Path:
        """Return the path of the archive with a node's artifacts of an attempt."""
        return self.node(node) / f"artifacts-{attempt}.zip"

    def open_log(self, path: Path) -> BinaryIO | None:
        """Open a rank's log; None if there is none. Raises ``DamagedError`` if it isn't a plain file."""
        with reading(self.path, "log"), suppress(FileNotFoundError):
            return open(path, "rb", opener=plain)
        return None

    def info(self) -> JobInfo:
        """Read the record of the submission; raises ``DamagedError``, like all methods that read a record."""
        with reading(self.path):
            info = read(record(f"{self.path}/job.json"), "local", self.path.name, under="info")
            # A caller may delete the job with the name that it gets.
            if (info.address, info.backend) != (self.path.name, "local"):
                raise ValueError(f"it is of {info.id!r}")
            return info

    def run(self) -> str:
        """Read which run of its name the job is, and no more of its record."""
        with reading(self.path):
            path = f"{self.path}/job.json"
            status = os.stat(path)
            return _run(path, (status.st_ino, status.st_size, status.st_mtime_ns))

    def prepare(self, key: bytes, request: Mapping[str, Any]) -> None:
        """Write what only this user may read: the job's key, and what it takes over from its kernel."""
        _private(self.key, key)
        _private(self.path / "request.json", json.dumps(request).encode())

    def request(self) -> dict[str, Any]:
        """Read what the job takes over from its kernel (``launch/pool_client.py``)."""
        with reading(self.path):
            request = {"limits": {}, **json.loads(record(self.path / "request.json"))}  # older ones have none
            return {name: type_(request[name]) for name, type_ in _REQUEST.items()}

    def emit(self, event: str, **fields: Any) -> None:
        """Append a fact of now: a class name of ``nbtorchjob/state/facts/events.py`` with its fields."""
        append(str(self.events), {"event": event, "time": time.time(), **fields}, once=True)

    def ttl_s(self) -> float:
        """Read how many seconds the job is kept once it has ended."""
        with reading(self.path):
            try:
                return float(record(f"{self.path}/ttl"))
            except FileNotFoundError:
                return TTL_S

    def handover(self) -> Handover | None:
        """Read which process hands the job over, and to which pool; None before that."""
        with reading(self.path):
            try:
                handover = json.loads(record(self.path / "pool.json"))
            except FileNotFoundError:
                return None
            handover.setdefault("kernel", asdict(NOBODY))  # of an older version
            pool, kernel = (Process(**checked(Process, handover[key])) for key in ("process", "kernel"))
            return Handover(pool, Path(handover["folder"]), kernel, float(handover.get("at") or 0.0))

    def maker(self) -> Process:
        """Read which process made the folder, and is to hand it over."""
        with reading(self.path):
            try:
                return Process(**checked(Process, json.loads(record(self.path / "maker.json"))))
            except FileNotFoundError:  # of an older version
                return NOBODY

    def hand_to(self, pool: Process, folder: Path) -> None:
        """Record the pool that this process is about to ask to start the job."""
        kernel = Process.of(os.getpid())
        data = {"process": asdict(pool), "folder": str(folder), "kernel": asdict(kernel), "at": uptime()}
        partial = self.path / "pool.json.partial"
        partial.write_text(json.dumps(data))
        partial.rename(self.path / "pool.json")

    def supervisor(self) -> Process | None:
        """Read the job's supervisor; None before it has one, ``NOBODY`` if it will never begin."""
        supervisor, _ = self._claimed()
        return supervisor

    def closer(self) -> Process:
        """Read which process closes, or has closed, a job that never had a supervisor."""
        _, closer = self._claimed()
        return closer

    def _claimed(self) -> tuple[Process | None, Process]:
        with reading(self.path):
            try:
                claim = json.loads(record(self.path / "supervisor.json"))
            except FileNotFoundError:
                return None, NOBODY
            if _CLOSER in claim:
                return NOBODY, Process(**checked(Process, claim[_CLOSER]))
            return Process(**checked(Process, claim)), NOBODY

    def claim(self, process: Process) -> bool:
        """Record the job's supervisor, for good; False if another process was faster."""
        return self._claim(asdict(process))

    def close_unbegun(self, event: str, **fields: Any) -> bool:
        """Close the job with how it ended, before it begins; False if it has a supervisor."""
        # Until the end is written, readers wait for it as for a supervisor's last facts.
        if not self._claim({_CLOSER: asdict(Process.of(os.getpid()))}):
            return False
        try:
            self.emit(event, **fields)
            put_by(self)
        finally:
            self.emit("Closed")
        return True

    def _claim(self, claim: Mapping[str, Any]) -> bool:
        partial = self.path / f".{secrets.token_hex(4)}"
        partial.write_text(json.dumps(claim))
        try:
            os.link(partial, self.path / "supervisor.json")
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            partial.rename(self.path / "supervisor.json")
            return True
        partial.unlink()
        return True


def uptime() -> float:
    """Return the seconds since the machine was started, including its sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def create(jobs: Path, info: JobInfo, fill: Callable[[JobDirectory], None]) -> JobDirectory:
    """Make the job's directory in one step; ``fill`` writes what the job is started from.

    Raises ``NameTakenError``, or ``SubmitError`` if the disk refuses it; then nothing is left.
    """
    if (jobs / info.name).exists():
        raise _name_conflict(info.name)
    maker = Process.of(os.getpid())
    new = JobDirectory(partial(jobs, "new"))
    with processes.files_in_reserve() as release:
        try:
            new.path.mkdir(mode=0o700)
            fill(new)
            if info.ttl_s is not None:
                (new.path / "ttl").write_text(str(info.ttl_s))
            (new.path / "ballast").write_bytes(b"\0" * BALLAST_BYTES)
            new.events.touch()
            (new.path / "maker.json").write_text(json.dumps(asdict(maker)))
            if info.began:
                info = replace(info, packed=time.time(), payload=new.payload.stat().st_size)
            (new.path / "job.json").write_text(f'{{"info":{write(info)}}}')
            new.path.rename(jobs / info.name)
        except BaseException as exc:
            release()
            shutil.rmtree(new.path, ignore_errors=True)
            if not isinstance(exc, OSError):
                raise
            if (jobs / info.name).exists():  # another kernel was faster
                raise _name_conflict(info.name) from None
            raise SubmitError(f"the job can't be written to {jobs}: {exc.strerror or exc}") from exc
    return JobDirectory(jobs / info.name)


def partial(jobs: Path, kind: str) -> Path:
    """Return the path of a folder that this process is about to fill, or to remove."""
    me = Process.of(os.getpid())
    return jobs / f".{kind}-{me.pid}-{me.started}-{secrets.token_hex(8)}"


def in_work(path: Path) -> bool:
    """Whether a running process is making, or removing, a folder."""
    match = re.match(r"\.(?:new|deleted)-(\d{1,9})-(\d{1,18})-", path.name)
    return match is not None and Process.of_this_boot(int(match[1]), int(match[2])).alive()


def put_by(job: JobDirectory) -> None:
    """Save an ending job's payload for a retry, unless the disk is full."""
    ballast = job.path / "ballast"
    with suppress(FileNotFoundError):  # the folder was removed, so there is nothing to save
        # If the ballast is gone, the disk was full: then the payload, maybe the biggest file of all, makes
        # room for the last fact.
        job.payload.rename(job.saved) if ballast.exists() else job.payload.unlink()
        ballast.unlink()


def share_payload(old: JobDirectory, new: JobDirectory) -> None:
    """Share with a new job the payload of an old one, which is never written to again.

    Raises ``FileNotFoundError`` if that is no longer saved.
    """
    saved = old.saved if old.saved.exists() else old.payload  # the latter if its supervisor was killed
    try:
        os.link(saved, new.payload)
    except OSError:  # file systems without links, or without any left, raise different errors
        shutil.copyfile(saved, new.payload)


def share_swaps(old: JobDirectory, new: JobDirectory) -> None:
    """Have a new job begin with an old one's code as swapped: its nodes agree on what one of them has."""
    folders = list(old.path.glob(f"node-*/{KEPT}"))
    most = max(folders, key=lambda folder: len([*folder.iterdir()]), default=None)
    if most is not None:
        shutil.copytree(most, new.node(0) / KEPT)


def thin_out(jobs: Path, most: int = SAVED_BYTES) -> None:
    """Remove the oldest saved payloads, so that the others have no more than ``most`` bytes."""
    with suppress(FileNotFoundError):  # a folder that is removed meanwhile: the next job's end does the rest
        payloads = [(path, path.stat()) for path in jobs.glob("*/saved.pyz")]
        counted: set[int] = set()  # a retry shares its payload with the job that it retried
        for path, status in sorted(payloads, key=lambda payload: payload[1].st_mtime, reverse=True):
            if status.st_ino in counted:
                continue
            if status.st_size > most:
                path.unlink()
            else:
                most -= status.st_size
                counted.add(status.st_ino)


@lru_cache(maxsize=64)  # each cell needs its lab's
def _run(path: str, _mark: tuple[int, int, int]) -> str:
    """Return which run a record is of; cached as long as its file is the same."""
    return run_at(float(json.loads(record(Path(path)))["info"]["created"]))


def _private(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _name_conflict(name: str) -> NameTakenError:
    return NameTakenError(f"a job named {name!r} exists already: {hint('delete', name)} removes it")


def jobs_dir() -> Path:
    """Return the folder with one folder per job."""
    return own(state_dir() / "jobs")


def environments_dir() -> Path:
    """Return the folder with what jobs' interpreters could import, one file per environment."""
    return own(state_dir() / "environments")


def queue_dir() -> Path:
    """Return the folder of the jobs that wait for a turn on this machine, and of those that have it."""
    folder = own(state_dir() / "queue")
    for name in ("waiting", "running"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    return folder


def ended_file(made_by: str) -> Path:
    """Return the file with the summaries that a function of this code made of ended jobs."""
    return state_dir() / "ended" / f"{made_by}-{code()}.json"


def pool_dir() -> Path:
    """Return the folder of the pool that serves this Python and this torch."""
    return own(own(state_dir() / "pool") / environment())


def socket_path() -> Path:
    """Return the path of the pool's socket; it may be too long for one, so the folder is used to reach it."""
    return pool_dir() / "socket"


@cache
def environment() -> str:
    """Return a name for this interpreter, its torch and this package: pools with others can't serve it."""
    torch = importlib.util.find_spec("torch")
    origin = torch.origin if torch and torch.origin else ""
    try:
        version = Path(origin).with_name("version.py").read_text() if origin else ""
    except FileNotFoundError:
        raise SubmitError(f"{origin} hides the installed torch: rename it") from None
    # No process may raise a limit above the hard limit of its parent.
    most = sorted((name, pair[1]) for name, pair in processes.of_this_process().items())
    text = f"{sys.executable}\n{sys.prefix}\n{origin}\n{version}\n{code()}\n{most}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def code() -> str:
    """Return a name for this version of the code: another version writes other things."""
    # Not by ``rglob``: its 400 paths take a command that lists jobs 5 ms. Sizes count, as all files of a
    # reproducibly built package have the same time, which conda and Nix keep.
    files = []
    for folder, below, names in os.walk(Path(__file__).parents[2]):
        below[:] = [name for name in below if name != "__pycache__"]
        paths = [f"{folder}/{name}" for name in names if name.endswith(".py")]
        files += [(path, os.stat(path)) for path in paths]
    lines = sorted(f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
