"""The verbs of the local backend."""

from __future__ import annotations

import base64
import itertools
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends import naming
from nbtorchjob.backends.base import (
    Backend,
    Finding,
    Leftover,
    Make,
    NodeAnswer,
    Summary,
    made_of,
    no_cluster,
)
from nbtorchjob.backends.local import directory, listing, liveness
from nbtorchjob.backends.local.directory import JobDirectory, reading
from nbtorchjob.backends.local.eventfile import EventFile
from nbtorchjob.backends.local.listing import DAMAGED, ListedJob, Listing
from nbtorchjob.capture import identity
from nbtorchjob.errors import (
    AskError,
    DamagedError,
    JobNotFoundError,
    NameTakenError,
    NBTorchJobError,
    ResultError,
    SpecError,
    SubmitError,
)
from nbtorchjob.machine import folders
from nbtorchjob.machine.folders import record
from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts import append
from nbtorchjob.runtime.objects import wire
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts.events import (
    Annotated,
    ArtifactsReady,
    CheckoutTold,
    Closed,
    Event,
    LogChunk,
    Lost,
    ValueReady,
    WorkersStarted,
)
from nbtorchjob.state.facts.factlines import UNREADABLE, believed, to_json
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Talk
    from nbtorchjob.capture import Call
    from nbtorchjob.payload.results import FetchedValue
    from nbtorchjob.runtime.data import cache
    from nbtorchjob.state.turns import View

_DATA, _DATA_UNUSED_S = "data-", 7 * 24 * 3600.0
_REMEDY = "pip install 'nbtorchjob[local]'"
_CHUNK = 1 << 20
_LEFT_OVER_S = 24 * 3600.0  # a half-made or half-removed folder, whose maker is long gone
_END_S = 15.0  # longer than a supervisor takes to end a job that resists


def create() -> LocalBackend:
    """Return the backend (see ``backends.backend``)."""
    return LocalBackend()


class LocalBackend(Backend):
    """This machine. See ``backends/base.py`` for what each verb promises."""

    where = "this machine"

    def __init__(self) -> None:
        self._listing = Listing()
        self._summaries: dict[Path, listing.Summaries] = {}  # by their file
        self._jobs: dict[str, ListedJob] = {}  # of labs, whose states are needed again and again

    def check(self, spec: JobSpec) -> list[str]:
        """Refuse cluster options, and any job if this isn't Linux; warn of more ranks than cores."""
        if sys.platform != "linux":
            raise SpecError("backend", "local", "'kubernetes' here: jobs on this machine need Linux")
        if spec.launch.run_policy is not None:
            from nbtorchjob.backends.local import policies  # late: listing jobs checks none

            policies.check(spec.launch.run_policy)
        no_cluster(spec)
        cautions: list[str] = []
        ranks, cores = spec.launch.nproc_per_node, os.cpu_count() or 1
        if ranks > cores:
            cautions.append(
                f"nproc_per_node={ranks} is more than this machine's {cores} cores: the ranks will take turns"
            )
        if spec.retry is not None and spec.retry.on_demand_last:
            cautions.append("on_demand_last does nothing on this machine: its jobs are never preempted")
        return cautions

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Write the job's folder and hand it to the pool; if named, the same call may run already."""
        # Late: only starting a job needs the pool.
        from nbtorchjob.backends.local.launch import pool_client

        self._has_torch()
        with pool_client.refused():
            self._sweep()

        def fill(new: JobDirectory) -> None:
            key = secrets.token_bytes(32)
            new.prepare(key, pool_client.of_this_process(spec.secrets()))
            _pack(new, call, spec, key)

        if spec.name is None:
            return self._begin(info, fill)
        # Under the given name, or the next free one made from it, unless this call still runs.
        info = replace(info, call=identity.of_job(call, spec))
        while True:
            for state in self._running(spec.name):
                if state.info.call != info.call:
                    raise naming.busy(spec.name, state.info)
                return self.info(state.info.address)
            taken_names = set(os.listdir(directory.jobs_dir()))
            runs = (naming.run(spec.name, number) for number in itertools.count(1))
            free = next(name for name in runs if name not in taken_names)
            with suppress(NameTakenError):  # by another kernel, just now
                return self._begin(replace(info, name=free), fill)

    def submit_runs(self, call: Call, spec: JobSpec, infos: Sequence[JobInfo]) -> list[JobInfo]:
        """Write a folder for each run, all with one payload, and then hand them to the pool."""
        from nbtorchjob.backends.local.launch import pool_client  # late, as above
        from nbtorchjob.runtime.store.payload import signed_given

        self._has_torch()
        with pool_client.refused():
            self._sweep()
        key, request = secrets.token_bytes(32), pool_client.of_this_process(spec.secrets())
        directories: list[JobDirectory] = []
        sent = [replace(info, variant=signed_given(base64.b64decode(info.variant), key)) for info in infos]

        def fill(new: JobDirectory) -> None:
            new.prepare(key, request)
            if directories:
                directory.share_payload(directories[0], new)
                return
            _pack(new, call, spec, key)

        try:
            for info in sent:
                directories.append(directory.create(directory.jobs_dir(), info, fill))
            pool_client.start_here(*directories)
        except BaseException:
            for job in directories:
                with suppress(NBTorchJobError):
                    self.delete(job.path.name)
            raise
        return sent

    def _has_torch(self) -> None:
        version = torch_versions.installed()
        if not version:
            raise SubmitError(f"torch isn't installed here: {_REMEDY}")
        if refusal := torch_versions.too_old(version):
            raise SubmitError(f"this environment {refusal}: {_REMEDY}")

    def _begin(self, info: JobInfo, fill: Callable[[JobDirectory], None]) -> JobInfo:
        from nbtorchjob.backends.local.launch import pool_client

        try:
            pool_client.begin(info, fill, pool_client.start_here)
        except KeyboardInterrupt:  # which may come between any two of its steps
            with suppress(NBTorchJobError):
                if self.info(info.name).run == info.run:
                    self.delete(info.name)
            raise
        return info

    def _running(self, stem: str) -> Iterator[JobState]:
        """Yield a given name's jobs that go on, except cancelled ones, whose end may take a while."""
        for job in self._listing.look(directory.jobs_dir()):
            name = job.name
            if naming.is_run(name, stem) and not job.folder.cancel.exists():
                try:
                    state = job.state()
                except DAMAGED as exc:
                    self._listing.leave_out(name, exc)
                    continue
                if stem in (name, state.info.spec.get("name")) and not state.phase.terminal:
                    yield state

    def retry(self, name: str, *, resume: bool = False) -> JobInfo:
        """Hand the job's payload to the pool once more, in a new folder."""
        from nbtorchjob.backends.local import retry  # late, as above

        job = self._job(name)
        state = self.snapshot(name)
        if not state.phase.terminal:
            raise SubmitError(f"{name} hasn't ended: cancel it first, {hint('cancel', name)}")
        return retry.retry(job, state, resume=resume)

    async def follow(
        self,
        name: str,
        *,
        since: Mapping[tuple[int, int], int] | None = None,
        turn: View | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Read the job's folder until the job is closed, lost or deleted."""
        from nbtorchjob.backends.local.follow import Follower  # late: lists read no logs

        job = JobDirectory(directory.jobs_dir() / name)
        if turn is None or turn.mark is None:  # else the follower has these facts from the lab
            for fact in _beside(job):
                yield fact
        follower = Follower(job, liveness.Liveness(job).why, since, turn, lambda: listing.waiting(job))
        async with aclosing(follower.stream()) as events:
            async for event in events:
                yield event

    def jobs(self, *, everyone: bool = False, scope: str | None = None) -> list[JobState]:
        """Read what is new of every job; ``everyone`` adds none, as the state folder is this user's alone."""
        states = []
        for job in self._unexpired():
            try:
                states.append(job.state())
            except DAMAGED as exc:
                self._listing.leave_out(job.name, exc)
        listing.tidy([state.info.name for state in states if state.phase.terminal])
        return sorted(states, key=lambda s: s.info.created)

    def summaries(
        self, make: Make[Summary], *, everyone: bool = False, scope: str | None = None
    ) -> list[Summary]:
        """Make the summaries of jobs that weren't listed since they ended; the others' are kept."""
        now, path = time.time(), directory.ended_file(f"{make.__module__}.{make.__qualname__}")
        kept = self._summaries.get(path) or self._summaries.setdefault(path, listing.Summaries(path))
        ended: dict[str, listing.Line] = {}
        going, over = [], []

        def is_kept(name: str, mark: listing.Mark) -> bool:
            line = kept.get(name, mark, now)
            if line is not None:
                ended[name] = line
            return line is not None

        for job in self._unexpired(without=is_kept):
            name = job.name
            try:
                # Not kept: Python's garbage collector would scan thousands of states again and again.
                state = job.state(keep=False)
            except DAMAGED as exc:
                self._listing.leave_out(name, exc)
                continue
            summary = made_of(state, make, now)
            if summary is None:
                continue
            # A job whose supervisor isn't seen from here may be alive on another machine with this folder.
            if not job.closed or job.mark is None:
                going.append(summary)
            else:
                ended[name] = listing.Line(job.mark, job.changed + job.ttl, listing.alike(summary))
                over.append(name)
        kept.keep(ended)
        listing.tidy(over)
        return [*(line.summary for line in ended.values()), *going]

    def names(self) -> list[str]:
        """Return the folders' names: reading thousands of records would delay tab completion by seconds."""
        times: dict[str, float] = {}
        folder = directory.jobs_dir()
        for name in os.listdir(folder):
            with suppress(OSError):
                times[name] = os.stat(f"{folder}/{name}/job.json").st_mtime
        return sorted(
            (name for name in times if not name.startswith(".") and name.isprintable()), key=times.__getitem__
        )

    def snapshot(self, name: str) -> JobState:
        """Read the job's folder once, logs included."""
        state = reduce(apply, self.facts(name), JobState(self.info(name)))
        listing.tidy([name] if state.phase.terminal else [])
        return state

    def facts(self, name: str, turn: View | None = None) -> Iterator[Event]:
        """Read the facts from the job's folder."""
        from nbtorchjob.backends.local.follow import Follower  # late, as above

        job = self._job(name)
        yield from _beside(job)
        reason, closed = liveness.why(job), False
        if (waiting := listing.waiting(job)) is not None:
            yield waiting
        for event in Follower(job, lambda: reason, turn=turn).look():
            closed = closed or isinstance(event, Closed)
            yield event
        if reason is not None and not closed:
            yield Lost(time.time(), reason)

    def brief_state(self, name: str) -> JobState:
        """Read what was added to the job's folder since the last call."""
        job = self._job(name)
        with suppress(*DAMAGED):
            listed = self._jobs.get(name)
            if listed is None:
                listed = self._jobs[name] = ListedJob(job.path.parent, name)
            listed.look()
            return listed.state()
        self._jobs.pop(name, None)
        return self.snapshot(name)

    def mark(self, name: str) -> int | None:
        """Return the length of the job's events file."""
        return self._job(name).events.stat().st_size

    def info(self, name: str) -> JobInfo:
        """Read the job's record."""
        return self._job(name).info()

    def note(self, info: JobInfo, fact: CheckoutTold) -> None:
        """Write the fact to the job's folder, beside the job's own."""
        job = self._job(info.address)
        if job.info().run == info.run:
            job.checkout.write_text(json.dumps(to_json(fact)))

    def annotate(self, name: str, fact: Annotated) -> None:
        """Append it to the job's facts; an ended job isn't kept longer for it."""
        job = self._job(name)
        ended = self.brief_state(name).phase.terminal
        status = job.events.stat()
        append(str(job.events), to_json(fact), once=True)
        if ended:  # its time to live counts from the last write to its facts
            os.utime(job.events, ns=(status.st_atime_ns, status.st_mtime_ns))

    def cancel(self, name: str, *, gently: bool = False, early: str = "") -> None:
        """Leave a mark, and signal the supervisor."""
        with suppress(JobNotFoundError, FileNotFoundError):
            job = self._job(name)
            job.ask_end(gently=gently, early=early)
            supervisor = job.supervisor()
            if supervisor is None and liveness.why(job) is None:
                # It hasn't begun, and never will: the process that was to begin it finds it claimed.
                if job.close_unbegun("CancelRequested", **job.early):
                    self._leave_queue(name)
                    return
                supervisor = job.supervisor()
            if supervisor is not None:
                supervisor.signal(signal.SIGTERM)

    def start(self, name: str) -> None:
        """Let it run beside others, without sharing its GPUs."""
        from nbtorchjob.backends.local.launch import pool_client, queue

        self._job(name)
        if liveness.queued(name) and queue.put_beside(name):
            pool_client.step()

    def delete(self, name: str) -> None:
        """Cancel the job, wait for its processes' end, and remove its folder."""
        job = JobDirectory(directory.jobs_dir() / name)
        with suppress(DamagedError):  # its supervisor is unknown, and will find the folder gone
            if liveness.why(job) is None:  # its followers learn of it before the record is gone
                job.emit("Removed")
            self.cancel(name)
            until = time.monotonic() + _END_S
            while liveness.alive(job) and time.monotonic() < until:
                time.sleep(0.02)
            if liveness.alive(job):
                raise NBTorchJobError(f"{name} doesn't end; try {hint('delete', name)} again")
        self._leave_queue(name)
        # Renamed first, so that a half-removed folder is no longer a job.
        trash = directory.partial(job.path.parent, "deleted")
        with suppress(FileNotFoundError):
            job.path.rename(trash)
            shutil.rmtree(trash)

    def _leave_queue(self, name: str) -> None:
        from nbtorchjob.backends.local.launch import pool_client, queue

        if liveness.queued(name) and queue.leave(name):
            pool_client.step()  # a job that needs less room may have been behind it

    def leftovers(self) -> list[Leftover]:
        """Return the ended jobs, what killed kernels left behind, and cached data that no job uses."""
        remains = "part of a job on this machine, left by a killed kernel"
        leftovers = [
            *super().leftovers(),
            *(Leftover(path.name, remains, age) for path, age in _remains()),
        ]
        for entry in _unused_data():
            origin = f" of {words.line(entry.where, 120)}" if entry.where else ""
            text = f"{words.size(entry.size)}{origin} in this machine's cache of data"
            leftovers.append(Leftover(_DATA + Path(entry.path).name, text, time.time() - entry.used))
        return leftovers

    def clear(self, leftover: Leftover) -> None:
        """Delete the job together with its value, or remove what else is left over."""
        if leftover.state is not None:
            self.delete(leftover.name)
            return
        from nbtorchjob.runtime.data import cache  # late: lists don't look at data

        for entry in _unused_data():
            if leftover.name == _DATA + Path(entry.path).name and not cache.remove(entry):
                raise NBTorchJobError(f"a job has begun to use {entry.where}")
        for path, _ in _remains():
            if path.name == leftover.name:
                shutil.rmtree(path, ignore_errors=True)

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Return, for each policy, whether the supervisor enforces it."""
        from nbtorchjob.backends.local import policies  # late, as above

        policy = info.jobspec.launch.run_policy
        value = policy.clean_pod_policy.value if policy and policy.clean_pod_policy else "None"
        named = {key.removesuffix(f"={value}"): enforcement for key, enforcement in policies.POLICIES.items()}
        return {key: str(enforcement) for key, enforcement in named.items() if "=" not in key}

    def doctor(self, spec: JobSpec) -> list[Finding]:
        """Check for torch, and name the folder that jobs are kept in."""
        version = torch_versions.installed()
        refusal = torch_versions.too_old(version)
        good = bool(version) and not refusal
        text = f"this environment {refusal}" if refusal else f"torch {version or 'is not installed'}"
        checked: list[Finding] = []
        try:
            checked.extend(Finding(True, caution) for caution in self.check(spec))
        except SpecError as exc:
            checked.append(Finding(False, str(exc)))
        return [
            *checked,
            Finding(good, text, "" if good else _REMEDY),
            *(Finding(True, f"torch {version}: {line}") for line in torch_versions.missed(version or "")),
            Finding(True, f"jobs are kept in {directory.jobs_dir()}"),
        ]

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Read the rank's log files, round after round."""
        job = self._job(name)
        for start in _starts(job, rank):
            file = job.open_log(job.rank_log(start.node, start.round, rank))
            if file is None:
                continue
            with file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))
                offset = max(0, offset - size)
                while chunk := file.read(_CHUNK):
                    yield chunk

    def chunks(self, name: str, ranks: Sequence[int]) -> list[Iterator[LogChunk]]:
        """Read the ranks' log files with the indexes beside them."""
        job = self._job(name)

        def rank_chunks(rank: int) -> Iterator[LogChunk]:
            from nbtorchjob.backends.local.follow import LogFile  # late: lists read no logs

            for start in _starts(job, rank):
                log = LogFile(job, job.rank_log(start.node, start.round, rank), rank, start.round, offset=0)
                while (chunk := log.read(ended=True)) is not None:
                    yield chunk

        return [rank_chunks(rank) for rank in ranks]

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[NodeAnswer]:
        """Connect to the nodes' sockets."""
        from nbtorchjob.backends import talk as asking  # late: most commands ask nothing
        from nbtorchjob.backends.local import sockets

        job = self._job(name)
        state = _standing(job)
        targets, answers = asking.reachable_nodes(state, nodes)
        yield from answers
        talks = [asking.Conversation(node, _node_key(job, node), question) for node in targets]
        yield from sockets.ask(job, state, talks, timeout)

    def talk(self, name: str, node: int, question: Mapping[str, Any], timeout: float = 10.0) -> Talk:
        """Connect to the node's socket; the job's state is read only if that fails."""
        from nbtorchjob.backends import talk as asking  # late, as above
        from nbtorchjob.backends.local import sockets
        from nbtorchjob.backends.talk import Talk

        job = self._job(name)
        talk = asking.Conversation(node, _node_key(job, node), question, goes_on=True)
        try:
            line = sockets.line(job, node)
        except OSError as exc:
            state = _standing(job)
            _, answers = asking.reachable_nodes(state, [node])
            why = answers[0].trouble if answers else sockets.trouble(exc, state.nodes[node])
            raise AskError(why, absent=bool(answers) or why == asking.STARTING) from None
        return Talk(talk, line, timeout)

    def key(self, name: str) -> bytes:
        """Read the key from the job's folder."""
        job = self._job(name)
        with reading(job.path, "key"):
            return job.key.read_bytes()

    def fetch(self, name: str, value: ValueReady) -> FetchedValue:
        """Return the file that the rank wrote: it is on this machine already."""
        from nbtorchjob.payload.results import FetchedValue  # late: lists load no values

        job = self._job(name)
        path = job.value(value.round, value.rank, value.ref)
        if path is None:
            raise ResultError(
                f"the value of {name} is said to be at {value.ref!r}, where none of its ranks writes"
            )
        if not path.exists():
            raise ResultError(f"the value of {name} is gone: {path} was removed")
        with reading(job.path, "key"):
            key = job.key.read_bytes()
        try:
            return FetchedValue(path, wire.value_key(key, job.run(), value.round, value.rank))
        except wire.WireError as exc:
            raise ResultError(f"the value of {name} can't be checked: {exc}") from exc

    def artifacts(self, name: str, sent: ArtifactsReady) -> Path:
        """Return the archive that the node wrote."""
        path = self._job(name).artifacts(sent.node, sent.attempt)
        if not path.exists():
            raise ResultError(f"artifacts of {name} are gone: {path} was removed")
        return path

    def checkpoints(self, name: str) -> Path | None:
        """Return the folder that all its ranks share."""
        folder = self._job(name).checkpoints
        return folder if folder.is_dir() else None

    def dry_run(self, call: Call, spec: JobSpec, info: JobInfo) -> str:
        """Describe which processes would start."""
        return f"{super().dry_run(call, spec, info)}, under {directory.jobs_dir()}"

    def _job(self, name: str) -> JobDirectory:
        job = JobDirectory(directory.jobs_dir() / name)
        if name.startswith(".") or "/" in name or len(name) > 200 or not job.events.exists():
            raise JobNotFoundError(f"there is no job named {name!r} on this machine")
        return job

    def _unexpired(self, without: Callable[[str, listing.Mark], bool] = lambda *_: False) -> list[ListedJob]:
        """Return the jobs whose time to live isn't over, and delete the others."""
        stay = []
        for job in self._listing.look(directory.jobs_dir(), without):
            with suppress(*DAMAGED, NBTorchJobError):
                if job.expired(time.time()):
                    self.delete(job.name)
                    continue
            stay.append(job)
        return stay

    def _sweep(self) -> None:
        """Make room for a new job."""
        from nbtorchjob.backends.local.launch import pool_client  # late, as above

        self._unexpired()
        for path, age in _remains():
            if age >= _LEFT_OVER_S:
                shutil.rmtree(path, ignore_errors=True)

        pool_client.thin_out()


def _starts(job: JobDirectory, rank: int) -> list[WorkersStarted]:
    """Return the rounds that a rank was in."""
    starts = [e for e in EventFile(job).read(reports=False) if isinstance(e, WorkersStarted)]
    return sorted((e for e in starts if rank in e.ranks), key=lambda e: e.round)


def _remains() -> Iterator[tuple[Path, float]]:
    """Yield the folders of jobs that were left half made or half removed, with their ages in seconds."""
    for path in directory.jobs_dir().glob(".*"):
        if directory.in_work(path):
            continue
        with suppress(OSError):  # made or removed by now
            newest = max(file.lstat().st_mtime for file in (path, *path.rglob("*")))
            yield path, time.time() - newest


def _unused_data() -> list[cache.Entry]:
    """Return the fetched data that no job has used for a week."""
    from nbtorchjob.runtime.data import cache  # late: lists don't look at data

    before = time.time() - _DATA_UNUSED_S
    kept = cache.entries(str(folders.cache_dir() / "data"))
    return [entry for entry in kept if entry.used < before and cache.is_idle(entry)]


def _pack(job: JobDirectory, call: Call, spec: JobSpec, key: bytes) -> None:
    """Write the job's payload, into room on the disk that is reserved first."""
    from nbtorchjob.payload import archive  # late, as above

    with open(job.payload, "wb") as file:
        wire.reserve(file, sum(view.nbytes for view in call.buffers))
        archive.write(file, call, spec, key)


def _beside(job: JobDirectory) -> Iterator[Event]:
    """Yield the facts that were written beside the job's own."""
    for path in (job.environment, job.checkout):
        with suppress(OSError, *UNREADABLE):
            fact = json.loads(record(path))
            if (event := believed({"time": job.info().created, **fact})) is not None:
                yield event


def _standing(job: JobDirectory) -> JobState:
    """Return a job's state without its reports and logs; a job whose supervisor is gone is lost."""
    reason = liveness.why(job)
    state = reduce(apply, EventFile(job).read(reports=False), JobState(job.info()))
    if reason is not None and not state.phase.terminal:
        state = apply(state, Lost(time.time(), reason))
    return state


def _node_key(job: JobDirectory, node: int) -> bytes:
    from nbtorchjob.runtime.ask import questions  # late: lists ask nothing

    with reading(job.path, "key"):
        return questions.node_key(job.key.read_bytes(), job.run(), node)
