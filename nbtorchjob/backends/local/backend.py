"""The verbs of the local backend."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import NoReturn

from nbtorchjob import payload
from nbtorchjob.backends.base import Choice, Finding, Leftover
from nbtorchjob.backends.local import lost, places, pool, record
from nbtorchjob.backends.local.follow import EventFile, Follower
from nbtorchjob.backends.local.policies import POLICIES
from nbtorchjob.backends.local.record import Folder
from nbtorchjob.backends.local.request import request
from nbtorchjob.capture import Call
from nbtorchjob.cluster import given
from nbtorchjob.errors import JobNotFoundError, NBTorchJobError, ResultError, SpecError, SubmitError
from nbtorchjob.events import Event, Lost, ValueReady, WorkersStarted
from nbtorchjob.policies import CleanPodPolicy, RunPolicy
from nbtorchjob.results import Fetched
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply

_CHUNK = 1 << 20
_LEFT_OVER_S = 24 * 3600.0  # a folder half made, or half removed, whose maker is long gone
_END_S = 15.0  # longer than a supervisor takes to end a job that resists


# What reading a folder raises that another kernel is deleting, or that a power cut has left.
_DAMAGED = (OSError, ValueError, KeyError, TypeError)


def create() -> LocalBackend:
    """Give the backend (see ``backends.backend``)."""
    return LocalBackend()


class LocalBackend:
    """This machine. See ``backends/base.py`` for what each verb promises."""

    def check(self, spec: JobSpec) -> list[str]:
        """Refuse what only a cluster has; warn of more ranks than cores."""
        if spec.launch.run_policy is not None:
            _check_policy(spec.launch.run_policy)
        for name in given(spec.cluster):
            allowed = "left out on the local backend: it is for --backend kubernetes"
            raise SpecError(name, getattr(spec.cluster, name), allowed)
        return list(_cautions(spec))

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Write the job's folder and hand it to the pool."""
        if payload.torch_version() is None:
            raise SubmitError("torch isn't installed here: pip install 'nbtorchjob[local]'")
        self._expire()
        job = record.create(places.jobs_dir(), info, lambda file, key: payload.write(file, call, spec, key))
        try:
            with pool.connected() as send:
                job.hand_to(pool.process(), places.pool_dir())
                send(request(job, spec))
        except BaseException:
            shutil.rmtree(job.path, ignore_errors=True)
            raise
        return info

    async def follow(self, name: str) -> AsyncIterator[Event]:
        """Read the job's folder until the job is closed, lost or deleted."""
        job = Folder(places.jobs_dir() / name)
        async for event in Follower(job, lambda: lost.why(job)).stream():
            yield event

    def jobs(self, *, everyone: bool = False) -> list[JobState]:
        """Read every job's facts; the state folder is this user's alone."""
        self._expire()
        states = []
        for job in self._folders():
            with suppress(*_DAMAGED):
                states.append(self._snapshot(job))
        return sorted(states, key=lambda s: s.info.created)

    def snapshot(self, name: str) -> JobState:
        """Read the job's folder once, logs included."""
        job = self._job(name)
        gone = lost.why(job)
        state = reduce(apply, Follower(job, lambda: gone).look(), JobState(job.info()))
        if gone is not None and not state.phase.terminal:
            state = apply(state, Lost(time.time(), gone))
        return state

    def info(self, name: str) -> JobInfo:
        """Read the job's record."""
        return self._job(name).info()

    def cancel(self, name: str) -> None:
        """Leave a mark, and tell the supervisor."""
        with suppress(JobNotFoundError, FileNotFoundError):
            job = self._job(name)
            job.cancel.touch()
            keeper = job.supervisor()
            if keeper is not None:
                keeper.signal(signal.SIGTERM)

    def delete(self, name: str) -> None:
        """Cancel the job, wait for its processes' end, and remove its folder."""
        job = Folder(places.jobs_dir() / name)
        self.cancel(name)
        until = time.monotonic() + _END_S
        while lost.alive(job) and time.monotonic() < until:
            time.sleep(0.02)
        if lost.alive(job):
            raise NBTorchJobError(f"{name} doesn't end; try %torchjob delete {name} again")
        # Renamed first: a folder half removed is no longer a job.
        gone = job.path.with_name(f".deleted-{job.path.name}-{time.time_ns()}")
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

    def _only_kubernetes(self, verb: str, name: str) -> NoReturn:
        self._job(name)
        raise SpecError(verb, name, "a job on Kubernetes: this one runs on this machine")

    def leftovers(self) -> list[Leftover]:
        """Give the jobs that have ended."""
        now = time.time()
        ended = [(state, state.ended) for state in self.jobs()]
        return [
            Leftover(state.info.name, f"{state.phase.value} on this machine", now - end, state)
            for state, end in ended
            if end is not None
        ]

    def clear(self, leftover: Leftover) -> None:
        """Delete the job; its value goes with it."""
        self.delete(leftover.name)

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Say of each policy whether the supervisor sees to it."""
        policy = info.asked.launch.run_policy
        asked = policy.clean_pod_policy.value if policy and policy.clean_pod_policy else "None"
        named = {key.removesuffix(f"={asked}"): said for key, said in POLICIES.items()}
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

    def log(self, name: str, rank: int) -> Iterator[bytes]:
        """Read the rank's log files, round after round."""
        job = self._job(name)
        starts = [e for e in EventFile(job.events).read() if isinstance(e, WorkersStarted)]
        for start in sorted((e for e in starts if rank in e.ranks), key=lambda e: e.round):
            with suppress(FileNotFoundError), open(job.rank_log(start.node, start.round, rank), "rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk

    def fetch(self, name: str, value: ValueReady) -> Fetched:
        """Give the file that the rank wrote: it lies here already."""
        path = Path(value.ref)
        if not path.exists():
            raise ResultError(f"the value of {name} is gone: {path} was removed")
        return Fetched(path, self._job(name).key.read_bytes())

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

    def _folders(self) -> Iterator[Folder]:
        for path in places.jobs_dir().iterdir():
            if not path.name.startswith(".") and path.is_dir():
                yield Folder(path)

    def _snapshot(self, job: Folder) -> JobState:
        gone = lost.why(job)
        state = reduce(apply, EventFile(job.events).read(reports=False), JobState(job.info()))
        if gone is not None and not state.phase.terminal:
            state = apply(state, Lost(job.events.stat().st_mtime, gone))
        return state

    def _expire(self) -> None:
        """Delete jobs that ended longer ago than they asked to be kept."""
        for path in places.jobs_dir().glob(".*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= _LEFT_OVER_S:
                    shutil.rmtree(path, ignore_errors=True)
        for job in self._folders():
            # The last event is the end: until its time is old there is no need to read the file.
            with suppress(*_DAMAGED, NBTorchJobError):
                age = time.time() - job.events.stat().st_mtime
                if age >= job.ttl_s() and self._snapshot(job).ended is not None:
                    self.delete(job.path.name)


def _cautions(spec: JobSpec) -> Iterator[str]:
    ranks, cores = spec.launch.nproc_per_node, os.cpu_count() or 1
    if ranks > cores:
        yield f"nproc_per_node={ranks} is more than this machine's {cores} cores: the ranks will take turns"
    if spec.retry is not None and spec.retry.on_demand_last:
        yield "on_demand_last does nothing on this machine: nobody preempts its jobs"


def _check_policy(policy: RunPolicy) -> None:
    if policy.backoff_limit is not None:
        allowed = "left out on the local backend, which counts attempts and no pods: use --retries"
        raise SpecError("backoff_limit", policy.backoff_limit, allowed)
    # Of a job that has ended no process is left here, whatever was asked for: as with Running. None
    # keeps what there is to keep, its folder.
    if policy.clean_pod_policy is CleanPodPolicy.ALL:
        allowed = (
            "None or Running on the local backend, which has no pods: "
            "--ttl-seconds-after-finished 0 removes all of an ended job"
        )
        raise SpecError("clean_pod_policy", policy.clean_pod_policy.value, allowed)
