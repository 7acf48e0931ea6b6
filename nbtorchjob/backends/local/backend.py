"""The verbs of the local backend."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import reduce
from pathlib import Path
from typing import NoReturn

from nbtorchjob import payload
from nbtorchjob.backends.base import Choice, Finding, Leftover
from nbtorchjob.backends.local import (
    again,
    handover,
    lost,
    places,
    policies,
    processes,
    record,
    request,
)
from nbtorchjob.backends.local.damage import reading
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.backends.local.follow import Follower
from nbtorchjob.backends.local.listing import DAMAGED, Listed, Listing
from nbtorchjob.backends.local.record import Folder
from nbtorchjob.capture import Call
from nbtorchjob.cluster import given
from nbtorchjob.errors import (
    DamagedError,
    JobNotFoundError,
    NBTorchJobError,
    ResultError,
    SpecError,
    SubmitError,
)
from nbtorchjob.events import Event, Lost, ValueReady, WorkersStarted
from nbtorchjob.results import Fetched
from nbtorchjob.runtime import wire
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply

_CHUNK = 1 << 20
_LEFT_OVER_S = 24 * 3600.0  # a folder half made, or half removed, whose maker is long gone
_END_S = 15.0  # longer than a supervisor takes to end a job that resists


def create() -> LocalBackend:
    """Give the backend (see ``backends.backend``)."""
    return LocalBackend()


class LocalBackend:
    """This machine. See ``backends/base.py`` for what each verb promises."""

    def __init__(self) -> None:
        self._listing = Listing()

    def check(self, spec: JobSpec) -> list[str]:
        """Refuse what only a cluster has; warn of more ranks than cores."""
        if spec.launch.run_policy is not None:
            policies.check(spec.launch.run_policy)
        for name in given(spec.cluster):
            allowed = "left out on the local backend: it is for --backend kubernetes"
            raise SpecError(name, getattr(spec.cluster, name), allowed)
        return list(_cautions(spec))

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Write the job's folder and hand it to the pool."""
        if payload.torch_version() is None:
            raise SubmitError("torch isn't installed here: pip install 'nbtorchjob[local]'")
        self._sweep()

        def fill(new: Folder) -> None:
            key = secrets.token_bytes(32)
            new.prepare(key, request.of_this_process())
            with open(new.payload, "wb") as file:
                payload.write(file, call, spec, key)

        handover.begin(info, fill, handover.here)
        return info

    def retry(self, name: str) -> JobInfo:
        """Hand what the job ran to the pool once more, in a folder of its own."""
        job = self._job(name)
        if not self.snapshot(name).phase.terminal:
            raise SubmitError(f"{name} hasn't ended: cancel it first, %torchjob cancel {name}")
        return again.retry(job)

    async def follow(
        self, name: str, *, since: Mapping[tuple[int, int], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Read the job's folder until the job is closed, lost or deleted."""
        job = Folder(places.jobs_dir() / name)
        async with aclosing(Follower(job, lambda: lost.why(job), since).stream()) as events:
            async for event in events:
                yield event

    def places(self) -> list[str]:
        """Give the one place there is."""
        return [""]

    def jobs(self, *, everyone: bool = False, place: str | None = None) -> list[JobState]:
        """Read what is new of every job; the state folder is this user's alone."""
        states = []
        for job in self._unexpired():
            with self._listing.leaving_out(job.folder.path.name):
                states.append(job.state())
        return sorted(states, key=lambda s: s.info.created)

    def names(self) -> list[str]:
        """Give the folders' names: reading thousands of records would hold up a tab key for seconds."""
        made: dict[str, float] = {}
        folder = places.jobs_dir()
        for name in os.listdir(folder):
            with suppress(OSError):
                made[name] = os.stat(f"{folder}/{name}/job.json").st_mtime
        return sorted(
            (name for name in made if not name.startswith(".") and name.isprintable()), key=made.__getitem__
        )

    def snapshot(self, name: str) -> JobState:
        """Read the job's folder once, logs included."""
        job = self._job(name)
        gone = lost.why(job)
        state = reduce(apply, Follower(job, lambda: gone).look(), JobState(self.info(name)))
        if gone is not None and not state.phase.terminal:
            state = apply(state, Lost(time.time(), gone))
        return state

    def info(self, name: str) -> JobInfo:
        """Read the job's record."""
        job = self._job(name)
        info = job.info()
        with reading(job.path), suppress(SpecError):  # a later version's spec may hold what ours doesn't know
            info.asked  # noqa: B018  # built when it is asked for
        return info

    def cancel(self, name: str) -> None:
        """Leave a mark, and tell the supervisor."""
        with suppress(JobNotFoundError, FileNotFoundError):
            job = self._job(name)
            job.cancel.touch()
            if job.supervisor() is None and lost.why(job) is None and job.keep(processes.NOBODY):
                # Nobody has begun it, and nobody will: who was to finds it kept.
                job.emit("CancelRequested")
                record.put_by(job)
                job.emit("Closed")
                return
            keeper = job.supervisor()
            if keeper is not None:
                keeper.signal(signal.SIGTERM)

    def delete(self, name: str) -> None:
        """Cancel the job, wait for its processes' end, and remove its folder."""
        job = Folder(places.jobs_dir() / name)
        with suppress(DamagedError):  # it can't be told who keeps it: whoever does finds the folder gone
            self.cancel(name)
            until = time.monotonic() + _END_S
            while lost.alive(job) and time.monotonic() < until:
                time.sleep(0.02)
            if lost.alive(job):
                raise NBTorchJobError(f"{name} doesn't end; try %torchjob delete {name} again")
        # Renamed first: a folder half removed is no longer a job.
        gone = record.partial(job.path.parent, "deleted")
        with suppress(FileNotFoundError):
            job.path.rename(gone)
            shutil.rmtree(gone)

    def suspend(self, name: str) -> None:
        """Refuse: what a process has done can't be kept without it."""
        self._only_kubernetes("suspend", name)

    def resume(self, name: str) -> None:
        """Refuse, as :meth:`suspend` does."""
        self._only_kubernetes("resume", name)

    def export(self, name: str, folder: Path) -> list[Path]:
        """Refuse: there are no manifests."""
        self._only_kubernetes("export", name)

    def manifests(self, name: str) -> str:
        """Refuse, as :meth:`export` does."""
        self._only_kubernetes("manifests", name)

    def _only_kubernetes(self, verb: str, name: str) -> NoReturn:
        self._job(name)
        raise SpecError(verb, name, "a job on Kubernetes: this one runs on this machine")

    def leftovers(self) -> list[Leftover]:
        """Give the jobs that have ended, and what a kernel left that was killed while it made one."""
        now = time.time()
        ended = [(state, state.ended) for state in self.jobs()]
        return [
            Leftover(state.info.name, f"{state.phase.value} on this machine", now - end, state)
            for state, end in ended
            if end is not None
        ] + [
            Leftover(path.name, "part of a job on this machine, left by a killed kernel", age)
            for path, age in _remains()
        ]

    def clear(self, leftover: Leftover) -> None:
        """Delete the job; its value goes with it."""
        if leftover.state is not None:
            self.delete(leftover.name)
            return
        for path, _ in _remains():
            if path.name == leftover.name:
                shutil.rmtree(path, ignore_errors=True)

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Say of each policy whether the supervisor sees to it."""
        policy = info.asked.launch.run_policy
        asked = policy.clean_pod_policy.value if policy and policy.clean_pod_policy else "None"
        named = {key.removesuffix(f"={asked}"): said for key, said in policies.POLICIES.items()}
        return {key: str(said) for key, said in named.items() if "=" not in key}

    def doctor(self, spec: JobSpec) -> list[Finding]:
        """Look for torch, and for the folder that jobs are kept in."""
        found = payload.torch_version()
        remedy = "pip install 'nbtorchjob[local]'"
        return [
            Finding(found is not None, f"torch {found or 'is not installed'}", "" if found else remedy),
            Finding(True, f"jobs are kept in {places.jobs_dir()}"),
        ]

    def choices(self, spec: JobSpec) -> Mapping[str, Sequence[Choice]]:
        """Give nothing: no option names a thing of this machine."""
        return {}

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Read the rank's log files, round after round."""
        job = self._job(name)
        starts = [e for e in EventFile(job.events).read(reports=False) if isinstance(e, WorkersStarted)]
        for start in sorted((e for e in starts if rank in e.ranks), key=lambda e: e.round):
            file = job.open_log(job.rank_log(start.node, start.round, rank))
            if file is None:
                continue
            with file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))
                offset = max(0, offset - size)
                while chunk := file.read(_CHUNK):
                    yield chunk

    def fetch(self, name: str, value: ValueReady) -> Fetched:
        """Give the file that the rank wrote: it lies here already."""
        job = self._job(name)
        path = job.value(value.round, value.rank, value.ref)
        if path is None:
            raise ResultError(
                f"the value of {name} is said to be at {value.ref!r}, where no rank of it writes"
            )
        if not path.exists():
            raise ResultError(f"the value of {name} is gone: {path} was removed")
        with reading(job.path, "key"):
            key = job.key.read_bytes()
        try:
            return Fetched(path, wire.value_key(key, job.info().run, value.round, value.rank))
        except wire.WireError as exc:
            raise ResultError(f"the value of {name} can't be checked: {exc}") from exc

    def dry_run(self, call: Call, spec: JobSpec, info: JobInfo) -> str:
        """Say which processes would start."""
        fewest, most = info.nodes
        nodes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return (
            f"local: {nodes} node(s) × {info.nproc_per_node} rank(s) on this machine, "
            f"under {places.jobs_dir()}"
        )

    def _job(self, name: str) -> Folder:
        job = Folder(places.jobs_dir() / name)
        if name.startswith(".") or "/" in name or len(name) > 200 or not job.events.exists():
            raise JobNotFoundError(f"there is no job named {name!r} on this machine")
        return job

    def _unexpired(self) -> list[Listed]:
        """Give the jobs that stay; who ended longer ago than it asked to be kept is deleted."""
        stay = []
        for job in self._listing.look(places.jobs_dir()):
            with suppress(*DAMAGED, NBTorchJobError):
                if job.expired(time.time()):
                    self.delete(job.folder.path.name)
                    continue
            stay.append(job)
        return stay

    def _sweep(self) -> None:
        """Make room for a new job."""
        self._unexpired()
        for path, age in _remains():
            if age >= _LEFT_OVER_S:
                shutil.rmtree(path, ignore_errors=True)


def _remains() -> Iterator[tuple[Path, float]]:
    """Give the folders of jobs that were left half made or half removed, and for how long they are so."""
    for path in places.jobs_dir().glob(".*"):
        if record.in_work(path):
            continue
        with suppress(OSError):  # made or removed by now
            newest = max(each.stat().st_mtime for each in (path, *path.rglob("*")))
            yield path, time.time() - newest


def _cautions(spec: JobSpec) -> Iterator[str]:
    ranks, cores = spec.launch.nproc_per_node, os.cpu_count() or 1
    if ranks > cores:
        yield f"nproc_per_node={ranks} is more than this machine's {cores} cores: the ranks will take turns"
    if spec.retry is not None and spec.retry.on_demand_last:
        yield "on_demand_last does nothing on this machine: nobody preempts its jobs"
