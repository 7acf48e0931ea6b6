"""The handle on a job: waits as a ``concurrent.futures.Future`` does, and can be awaited."""

from __future__ import annotations

import concurrent.futures
import io
import linecache
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from nbtorchjob.backends import backend_of, downloads, naming, stacks
from nbtorchjob.backends.base import Backend, Exports, Queues, Retries, Suspends, able
from nbtorchjob.backends.downloads import Artifact
from nbtorchjob.errors import (
    ClusterError,
    DamagedError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    JobStoppedError,
    NBTorchJobError,
    ResultError,
    SpecError,
    failed,
)
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.interrupts import Once
from nbtorchjob.state import JobInfo, JobState, Phase, apply, runs
from nbtorchjob.state.facts.events import Closed, Event, Removed
from nbtorchjob.state.facts.logs import LineFilter, LogLine, Stream, check_stream, compiled
from nbtorchjob.state.text import attempts, facts
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbtorchjob.backends.files import CopiedFile, Listing
    from nbtorchjob.backends.links import Forward, Sync
    from nbtorchjob.backends.talk import Session
    from nbtorchjob.payload.results import FetchedValue
    from nbtorchjob.state.text.stacks import MemoryProfile, Profile, Stacks
    from nbtorchjob.swapping.sending import SwapAnswer

T = TypeVar("T")  # of rank 0's value

Callback = Callable[[JobState], object]
Listener = Callable[[Event], object]

_log = logging.getLogger(__name__)


class _Following:
    """The following of one job, shared by all handles of this process on it.

    Alone, each would open the job's file or connections again, and fold the same facts to the same state.
    """

    def __init__(self, info: JobInfo) -> None:
        self.state = JobState(info)
        self.ended: Once[None] = Once()
        self.callbacks: list[Callback] = []
        self.current = False  # whether the state was looked up; else it is folded from the facts read so far
        self._has_facts = False
        self._looks: tuple[list[Event], ...] = ()

    def begin(self, backend: Backend, listener: Listener | None, over: Callable[[], object]) -> None:
        """Follow the job in the background; ``over`` is called at the end."""
        from nbtorchjob.machine import loop  # late, as all here that needs asyncio: a list follows no job

        loop.start(self._follow_to_its_end(backend, listener, over))

    def tell(self, callback: Callback) -> None:
        """Have ``callback`` called with each new state, and now if facts have arrived already."""
        from nbtorchjob.machine import loop  # late, as above

        def catch_up() -> None:
            if self._has_facts and callback in self.callbacks:
                self._call(callback)

        self.callbacks.append(callback)
        loop.call_soon(catch_up)

    def look(self) -> list[Event] | None:
        """Return a list that collects the facts from now on, until it is given to ``adopt``.

        None if the state is made of facts already: by now they may be recorded nowhere else.
        """
        if self.current or self._has_facts:
            return None
        since: list[Event] = []
        self._looks = (*self._looks, since)
        return since

    def adopt(self, state: JobState | None, since: list[Event]) -> None:
        """Continue from a state that was looked up: facts that are read again change nothing.

        It may lack the facts in ``since``, which arrived after the look-up began.
        """
        from nbtorchjob.machine import loop  # late, as above

        def take() -> None:
            self._looks = tuple(facts for facts in self._looks if facts is not since)
            if state is not None and not self.current and not self.ended.come:
                self.state, self.current = reduce(apply, since, state), True

        loop.call_soon(take)

    async def _follow_to_its_end(
        self, backend: Backend, listener: Listener | None, over: Callable[[], object]
    ) -> None:
        import asyncio

        try:
            # A listener gets every byte of the logs; a state holds only their ends anyway.
            since: dict[tuple[int, int], int] | None = None if listener is None else {}
            async for event in backend.follow(self.state.info.address, since=since):
                self.state, self._has_facts = apply(self.state, event), True
                for facts in self._looks:
                    facts.append(event)
                if listener is not None:
                    listener(event)
                for callback in tuple(self.callbacks):
                    self._call(callback)
            over()
            self.ended.bring(None)
        except asyncio.CancelledError:  # as the process ends; waiters see what a cancelled future raises
            over()
            self.ended.fail(concurrent.futures.CancelledError())
            raise
        except BaseException as exc:
            over()
            self.ended.fail(exc)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self.state)
        except Exception:  # the callback is the user's, and the job's other followers wait
            _log.exception("a callback of %s raised", self.state.info.name)


_Key = tuple[Backend, str, str, float]
_followings: weakref.WeakValueDictionary[_Key, _Following] = weakref.WeakValueDictionary()
_sharing = threading.Lock()
_handles: weakref.WeakSet[Job[Any]] = weakref.WeakSet()


def _follow_anew() -> None:
    """Have a forked process follow jobs itself: it lacks its parent's threads, which may hold the locks."""
    global _sharing
    _sharing = threading.Lock()
    _followings.clear()
    for job in _handles:
        job._lock = threading.RLock()
        if job._following is not None and not job._following.ended.come:
            job._following = None


os.register_at_fork(after_in_child=_follow_anew)


class Job(Generic[T]):
    """One submitted job, followed in the background once its state is first read.

    The job lives on without any handle. All handles of a process on one job share one following.
    """

    def __init__(self, backend: Backend, info: JobInfo, *, trust: bool = False, joined: bool = False) -> None:
        self.info = info
        self.trust = trust  # unpickles its values even if the job may be another person's
        self.joined = joined  # the job was running already when its cell was run again
        self._backend = backend
        self._listener: Listener | None = None
        self._lock = threading.RLock()
        self._values: dict[int, T] = {}
        self._following: _Following | None = None
        _handles.add(self)

    def _follow(self) -> _Following:
        """Return the job's following, and begin it if it hasn't begun."""
        with self._lock:
            if self._following is None:
                self._following = self._shared()
            return self._following

    def _shared(self, state: JobState | None = None) -> _Following:
        """Return the following that this process's handles share; a new one begins with ``state``."""
        candidate = _Following(self.info)
        if state is not None:
            candidate.state, candidate.current = state, True
        if self._listener is not None:
            candidate.begin(self._backend, self._listener, lambda: None)
            return candidate
        key = self._key
        with _sharing:
            following = _followings.get(key)
            if following is None:
                following = _followings[key] = candidate
                candidate.begin(self._backend, None, lambda: _followings.pop(key, None))
        return following

    @property
    def _key(self) -> _Key:
        return self._backend, self._backend.login, self.info.address, self.info.created

    @property
    def _replaced(self) -> bool:
        """Whether another job has the address by now; False if what is there can't be read."""
        if self.info.of_lab:  # a lab's turn never is, and looking one up takes several requests
            return False
        with suppress(DamagedError, JobNotFoundError):
            return self.info.is_another(self._backend.info(self.info.address))
        return False

    @property
    def _address(self) -> str:
        """The job's address on its backend; raises ``JobNotFoundError`` if another job has it by now."""
        if self._replaced:
            raise naming.replaced(self.info)
        return self.info.address

    @property
    def _ended(self) -> Once[None]:
        return self._follow().ended

    @property
    def name(self) -> str:
        """The job's name: what ``attach`` and ``%torchjob`` take."""
        return self.info.name

    @property
    def trusted(self) -> bool:
        """Whether the job was submitted from here, so that nobody else chose its outputs, or is trusted."""
        return self.trust or (self._backend.ours(self.info.address) and not self._replaced)

    @property
    def state(self) -> JobState:
        """The job's state now; the object doesn't change, so read the property again for news."""
        with self._lock:
            if self._following is not None:
                return self._following.state
            others = None if self._listener is not None else _followings.get(self._key)
            since = others.look() if others is not None else None
            # Else a job that ended long ago would seem to be just submitted, until following reaches its end.
            # The facts that are then read again change nothing.
            snapshot: JobState | None = None
            with suppress(NBTorchJobError):
                snapshot = self._backend.snapshot(self.info.address)
            if snapshot is not None and self.info.is_another(snapshot.info):
                # The state that a follower has once the job is deleted
                following, now = _Following(self.info), time.time()
                following.state = apply(apply(following.state, Removed(now)), Closed(now))
                following.ended.bring(None)
                self._following = following
                return following.state
            following = self._following = others or self._shared(snapshot)
            if since is not None:
                following.adopt(snapshot, since)
            return snapshot if snapshot is not None and not following.current else following.state

    def _current_state(self) -> JobState:
        """Return the job's state now, without following it; raises ``JobNotFoundError``."""
        if self._following is not None and self._following.ended.come:
            with suppress(ClusterError):  # it may be unreachable: the job's end is known anyway
                self._address  # noqa: B018
            return self._following.state
        # Following may have only just begun.
        return naming.unreplaced(self.info, self._backend.snapshot(self.info.address))

    def done(self) -> bool:
        """Whether the job has ended, one way or another."""
        return self._ended.come

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for the job to end; return whether it did."""
        # Not result(timeout): following itself may raise a TimeoutError as well.
        ended = self._ended
        if not ended.wait(timeout):
            return False
        ended.result()
        return True

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end and return rank 0's value.

        Raises ``TimeoutError`` after ``timeout`` seconds (the job goes on), ``JobFailedError`` or
        ``JobCancelledError`` if the job didn't succeed, ``ResultError`` if its value can't be loaded here. A
        ``JobFailedError`` is also of the type that its rank raised, such as ``ValueError``, if that type is
        loaded here and plain.
        """
        self._succeeded(timeout)
        return self._value(self.info.speaker)

    @property
    def value(self) -> T:
        """Rank 0's value of an ended job; raises as :meth:`result` does, and while the job still runs."""
        if not self.state.phase.terminal:
            raise ResultError(f"{self.name} is still {self.state.phase.word}: result() waits for the value")
        return self.result()

    def results(self, timeout: float | None = None) -> list[T]:
        """Wait for the end and return every rank's value, by rank; raises as :meth:`result` does."""
        self._succeeded(timeout)
        if not self.state.info.all_ranks:
            raise ResultError(
                f"{self.name} returned only rank 0's value: submit it with --all-ranks (all_ranks=True)"
            )
        return [self._value(rank) for rank in self.info.turn or range(self.state.world_size)]

    def returned(self) -> Any:
        """Wait for the end and return rank 0's value, or with ``all_ranks`` every rank's, by rank.

        Raises as :meth:`result` does.
        """
        return self.results() if self.state.info.all_ranks else self.result()

    def exception(self, timeout: float | None = None) -> JobFailedError | None:
        """Wait for the end and return why the job failed; None if it succeeded.

        Its ``error`` is the exception of the first failing rank, as data, with its frames' variables.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"{self.name} is still {self.state.phase.word} after {timeout} s")
        phase = self.state.phase
        if phase is Phase.SUCCEEDED:
            return None
        outcome = "deleted" if self.state.deleted else phase.word
        lines = attempts.lines(self.state)
        if self.state.stopped_early:  # its first line says how it ended
            stopped = JobStoppedError(f"{self.name} " + "\n".join(lines))
            stopped.metrics = runs.metrics(self.state)
            return stopped
        text = "\n".join([f"{self.name} {outcome}", *lines])
        if phase is Phase.CANCELLED:
            return JobCancelledError(text)
        error = self.state.failure.error if self.state.failure is not None else None
        failure = failed(text, error.type if error is not None else "")
        failure.error = error
        return failure

    def _succeeded(self, timeout: float | None) -> None:
        with interrupts.message(f"Stopped waiting for {self.name}: {hint('attach', self.name)} follows it."):
            error = self.exception(timeout)
        if error is not None:
            raise error

    def _value(self, rank: int) -> T:
        from nbtorchjob.payload import results  # late: most handles are asked for no value
        from nbtorchjob.runtime.objects import sources

        with self._lock:
            if rank not in self._values:
                self._values[rank] = results.load(self._fetched(rank), self.name, trust=self.trust)
                # Sources of functions in the value: tracebacks show their lines, and other Pythons need them.
                for filename, (_, text) in self.state.info.sources.items():
                    if filename.startswith("<") or not linecache.getlines(filename):
                        sources.show(text, filename)
            return self._values[rank]

    def _fetched(self, rank: int) -> FetchedValue:
        value = self.state.values.get(rank)
        if value is None:
            suffix = "".join(f": {notice.text}" for notice in self.state.notices[-1:])
            raise ResultError(f"{self.name} succeeded, but rank {rank} returned no value{suffix}")
        return self._backend.fetch(self._address, value)

    def raw(self, rank: int | None = None, timeout: float | None = None) -> bytes:
        """Wait for the end and return a rank's value as the bytes that were sent, without unpickling them.

        For a value that can't be rebuilt here; ``nbtorchjob.runtime.objects.wire`` describes the layout.
        Raises as :meth:`result` does.
        """
        self._succeeded(timeout)
        return self._fetched(self.info.speaker if rank is None else rank).path.read_bytes()

    def plain(self, most: int = 1_000_000) -> Any:
        """Return rank 0's value if it is there, has at most ``most`` bytes and is plain data; else None.

        Unpickles nothing, and doesn't wait.
        """
        state = self._current_state()
        value = state.values.get(state.info.speaker)
        if state.phase is not Phase.SUCCEEDED or value is None or value.size > most:
            return None
        from nbtorchjob.payload import results  # late, as above

        with suppress(ResultError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fetched = self._backend.fetch(self.info.address, value)
            return results.load(replace(fetched, ours=False), self.name)
        return None

    def read_log(self, rank: int = 0, stream: Stream | None = None) -> Iterator[bytes]:
        """Return a rank's whole log so far, or what it wrote to one stream, in pieces.

        Raises as :meth:`check_rank` does, and for an invalid stream.
        """
        self.check_rank(rank)
        check_stream(stream)
        return downloads.log(self._backend, self._address, rank, stream)

    def check_rank(self, rank: int) -> None:
        """Raise ``SpecError`` if the job can't have that rank."""
        self._check("rank", rank, self.info.nodes[1] * self.info.nproc_per_node)

    def check_node(self, node: int) -> None:
        """Raise ``SpecError`` if the job can't have that node."""
        self._check("node", node, self.info.nodes[1])

    def _check(self, field: str, number: int, most: int) -> None:
        # A job that another tool made has no spec, which gives its size.
        if self.info.spec and number not in range(most):
            valid_range = f"0 to {most - 1}" if most > 1 else "0"
            raise SpecError(field, number, f"{valid_range}: {self.name} has {words.count(most, field)}")

    def logs(self, rank: int = 0, tail: int | None = None, *, stream: Stream | None = None) -> str:
        """Return a rank's whole log so far, or its last ``tail`` lines.

        With ``stream``, "stdout" or "stderr", only what the rank wrote there. Raises ``SpecError`` for a
        negative ``tail``, an invalid stream, and a rank that the job can't have.
        """
        if tail is not None and tail < 0:
            raise SpecError("tail", tail, "0 or more lines")
        text = b"".join(self.read_log(rank, stream)).decode(errors="replace")
        # Unlike str.splitlines, StringIO takes a progress bar's \r for no new line.
        return "".join(deque(io.StringIO(text), tail))

    def lines(
        self,
        rank: int | None = None,
        *,
        node: int | None = None,
        since: float | None = None,
        until: float | None = None,
        pattern: str | None = None,
        stream: Stream | None = None,
    ) -> Iterator[LogLine]:
        """Return all ranks' lines so far, or one rank's, or a node's, in the order of their times.

        If given, ``since`` and ``until`` (seconds since the epoch) limit the lines by time, ``pattern`` to
        those with a match of this regular expression, and ``stream``, "stdout" or "stderr", to those written
        there. Each has a ``time``, a ``rank`` and its ``text``; times are accurate to some hundredths of a
        second. While the job goes on, an unfinished line is left out. Raises ``SpecError`` for an invalid
        regular expression or stream, and for a rank or node that the job can't have.
        """
        line_filter = LineFilter(since, until, None if pattern is None else compiled(pattern))
        if rank is not None:
            self.check_rank(rank)
        if node is not None:
            self.check_node(node)
        check_stream(stream)
        lines = downloads.lines(self._backend, self._current_state(), rank=rank, node=node, stream=stream)
        return filter(line_filter.has, lines)

    def archive(self, *, times: bool = False) -> Iterator[bytes]:
        """Return all ranks' logs so far as a zip archive, in pieces: ``JOB/rank-0.log`` and so on.

        With ``times`` each line has its time in front, as ``nbtorchjob logs --timestamps`` prints it.
        """
        return downloads.zip_logs(self._backend, self._current_state(), times=times)

    def artifacts(
        self, folder: str | Path | None = None, *, attempt: int | None = None
    ) -> tuple[Artifact, ...]:
        """Return the files that ranks left below ``artifacts_dir()``, copied into ``folder`` if given.

        They arrive once their node has ended: those of the newest attempt that left any, or of ``attempt``. A
        file in the folder is never replaced: raises ``SpecError`` if it differs, and ``ResultError`` if
        artifacts can't be fetched.
        """
        state = self._current_state()
        if folder is None:
            return downloads.listed(self._backend, state, attempt)
        return downloads.copy(self._backend, state, Path(folder), attempt)

    def files(self, path: str = "") -> Listing:
        """List the files that ranks have written at or below ``path``.

        A path begins with ``artifacts/`` (``artifacts_dir()``) or ``checkpoints/`` (``checkpoint_dir()``).
        The result has the ``files``, and in ``trouble`` why those of a node are missing. For an ended job,
        lists the files that came home: the artifacts of the newest attempt that left any, and checkpoints
        that lie on this machine.
        """
        from nbtorchjob.backends import files  # late: most handles are asked for none

        return files.listed(self._backend, self._current_state(), path)

    def get(self, path: str, folder: str | Path = ".", *, node: int | None = None) -> tuple[CopiedFile, ...]:
        """Copy a file that ranks have written, or all below a path, into a folder.

        An interrupted copy continues where it stopped, also at the next call. A file in the folder is never
        replaced, but completed if it is the beginning of the rank's. Raises ``SpecError`` if it differs,
        ``ResultError``, ``AskError`` and ``JobEndedError``.
        """
        if node is not None:
            self.check_node(node)
        from nbtorchjob.backends import files  # late, as above

        return tuple(files.fetch(self._backend, self._current_state(), path, Path(folder), node))

    def sync(self, folder: str | Path, path: str = "") -> Sync:
        """Keep a folder in step with what ranks write at or below ``path``, in the background.

        It ends with the job, complete, or on ``stop()``; ``wait()`` waits for that. On a cluster the last
        checkpoints can't be copied once the job has ended; ``trouble`` then says so.
        """
        from nbtorchjob.backends import (
            files,
            links,  # late, as above
        )

        return links.Sync(self._backend, self._current_state(), files.checked(path), Path(folder)).start()

    def forward(self, port: int, rank: int = 0, *, local: int | None = None) -> Forward:
        """Forward a rank's port to a port of this machine's loopback, until ``close()`` or this process ends.

        That port is ``local``, by default the same number, or any free one if that is taken; the result has
        it as ``local``, and a ``url``. Raises ``SpecError`` for a port or rank that isn't available,
        ``AskError`` and ``JobEndedError``.
        """
        self.check_rank(rank)
        from nbtorchjob.backends import links  # late, as above

        for name, number in (("port", port), ("local-port", local)):
            if number is not None and number not in links.PORTS:
                raise SpecError(name, number, "1 to 65535")
        return links.Forward(self._backend, self._current_state(), port, rank, local)

    def swap(
        self,
        code: str = "",
        *,
        or_back: bool = False,
        within: float = 60.0,
        namespace: dict[str, Any] | None = None,
        **values: Any,
    ) -> SwapAnswer:
        """Have the ranks of this running job go on with new code, all at one call.

        ``code`` defines functions, classes and values; ``values`` are more values, of plain types. Other
        names that the code reads are taken from ``namespace`` if the ranks don't have them. The ranks switch
        at a call of ``swap_point()``, ``leaving()`` or ``report()`` that all of them make ``within`` that
        many seconds. With ``or_back`` the old code is put back if the new one's first call raises on any
        rank. Raises ``SwapError`` if the code stays as it was.
        """
        from nbtorchjob.swapping import sending  # late: most handles change nothing

        plain, settings = sending.values({name: repr(value) for name, value in values.items()})
        text = "\n".join(filter(None, (code, plain)))
        return sending.swap_job(
            self.info, text, namespace or {}, settings=settings, or_back=or_back, within=within
        )

    def stacks(self, timeout: float = 10.0) -> Stacks:
        """Ask the job's nodes what each rank is doing now, and conclude which ranks the others wait for.

        For a node that doesn't answer within ``timeout`` seconds, and for a job that has ended, the result
        has the last known stacks. Asking doesn't change the job.
        """
        return stacks.ask(self._backend, self._current_state(), timeout)

    def profile(self, seconds: float = 3.0, rank: int = 0, folder: str | Path = ".") -> Profile:
        """Profile a rank for the next ``seconds``: write a trace to ``folder``, return where its time went.

        Raises ``ProfileError`` if that fails, for example because its main thread doesn't return to Python
        within 5 seconds, ``JobEndedError``, and ``SpecError`` for a rank that the job can't have.
        """
        self.check_rank(rank)
        from nbtorchjob.backends import stacks  # late: most handles are asked for none

        return stacks.take_profile(self._backend, self._current_state(), rank, seconds, Path(folder))

    def profile_memory(self, seconds: float = 3.0, rank: int = 0, folder: str | Path = ".") -> MemoryProfile:
        """Record a rank's accelerator memory for the next ``seconds``: write a snapshot to ``folder``.

        Raises as :meth:`profile` does, also if the rank uses no accelerator.
        """
        self.check_rank(rank)
        from nbtorchjob.backends import stacks  # late, as above

        return stacks.take_memory_profile(self._backend, self._current_state(), rank, seconds, Path(folder))

    def debugger(self, rank: int | None = None, by: str = "") -> AbstractContextManager[Session]:
        """Attach to a rank that is stopped in the debugger, by default the only one; ``by`` is who attaches.

        The result takes pdb's commands and has pdb's output. Leaving it leaves the rank stopped. Raises
        ``AskError`` if no rank is stopped, or if somebody else is attached to it, and ``JobEndedError``.
        """
        if rank is not None:
            self.check_rank(rank)
        from nbtorchjob.backends import talk  # late, as above

        return talk.session(self._backend, self._current_state(), rank, by)

    def release(self) -> list[int]:
        """Release all ranks that are held where they failed; return which ranks.

        Raises ``AskError`` if none is held, and ``JobEndedError``.
        """
        from nbtorchjob.backends import talk  # late, as above

        return talk.release(self._backend, self._current_state())

    def note(self, text: str) -> None:
        """Replace the job's note, a line for people; "" removes it. Lists and the sidebar search it.

        Raises ``SpecError`` for more than 2,000 characters.
        """
        self._annotate(note=text)

    def tag(self, *tags: str) -> None:
        """Add tags to the job, for lists and the sidebar to find it by; raises ``SpecError`` if invalid."""
        self._annotate(add=tags)

    def untag(self, *tags: str) -> None:
        """Remove tags from the job; tags that it lacks are ignored."""
        self._annotate(remove=tags)

    def _annotate(self, **changes: Any) -> None:
        state = naming.unreplaced(self.info, self._backend.brief_state(self.info.address))
        annotation = naming.annotate(self._backend, state, **changes)
        following = self._following
        if following is not None and following.ended.come:  # it reads no more facts
            following.state = apply(following.state, annotation)

    def cancel(self, *, gently: bool = False) -> None:
        """Request the job's end; what it has reported and written is kept. An ended job stays as it is."""
        if not self._replaced:
            self._backend.cancel(self.info.address, gently=gently)

    def delete(self) -> None:
        """End the job if it runs, and remove its record, logs and values."""
        if not self._replaced:
            self._backend.delete(self.info.address)

    def suspend(self) -> None:
        """Remove the job's nodes but keep the job; raises ``SpecError`` if that isn't possible."""
        address = self._address
        able(self._backend, Suspends, "suspend", address).suspend(address)

    def resume(self) -> None:
        """Start a suspended job's nodes again."""
        address = self._address
        able(self._backend, Suspends, "resume", address).resume(address)

    def start(self) -> None:
        """Start a job that waits for its turn on this machine, beside the jobs that it waits for.

        Raises ``SpecError`` on a cluster, where a queue decides.
        """
        address = self._address
        able(self._backend, Queues, "start", address).start(address)

    def retry(self, *, resume: bool = False) -> Job[T]:
        """Run this job again, as a new job with a copy of its payload.

        With ``resume`` the new job finds this one's checkpoints in its ``checkpoint_dir()``, for code that
        continues from them, as ``ResumableTraining`` does. They are copied, unless the job has
        ``--checkpoints PATH``: then both jobs use one folder, which only pods see. Raises ``SubmitError`` for
        a job that hasn't ended, or whose payload is no longer kept; with ``resume`` also where there are no
        checkpoints, or pods of the job still run.
        """
        address = self._address
        new = able(self._backend, Retries, "retry", address).retry(address, resume=resume)
        return Job(self._backend, new, trust=self.trust)

    def export(self, folder: str | Path) -> list[Path]:
        """Write files to ``folder`` that run the job again without a notebook; return them.

        On Kubernetes ``kubectl apply -f folder`` then submits it. If its ranks have reported what they could
        import, ``requirements.txt`` lists that.
        """
        address = self._address
        files = able(self._backend, Exports, "export", address).export(address, Path(folder))
        state = self._backend.snapshot(address)  # a follower doesn't receive all of it
        if state.importable is not None:
            from nbtorchjob.environment import requirements  # late, as above

            files.append(Path(folder, "requirements.txt"))
            files[-1].write_text(requirements.lock_text(state, state.importable, facts.origins(state)) + "\n")
        return files

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Have ``callback`` called with each new state, on the background thread; return what stops that.

        It must not block: the job's other followers wait for it. Exceptions that it raises are logged.
        """
        following = self._follow()
        following.tell(callback)
        return lambda: following.callbacks.remove(callback) if callback in following.callbacks else None

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` called with every fact and every byte of the logs, on the background thread.

        Only on a new handle, before anything that follows the job. An exception from it ends following.
        """
        assert self._following is None, "the job is being followed already"
        self._listener = listener

    def add_done_callback(self, callback: Callable[[Job[T]], object]) -> None:
        """Have ``callback`` called with the job once it has ended, on the background thread.

        If it has ended already, call it at once, on this thread. Exceptions that it raises are logged.
        """

        def call() -> None:
            try:
                callback(self)
            except Exception:  # the callback is the user's, and others wait, too
                _log.exception("a callback of %s raised", self.name)

        self._ended.then(call)

    def future(self) -> concurrent.futures.Future[T]:
        """Return a future of rank 0's value, for ``as_completed``, ``wait`` and ``asyncio.wrap_future``.

        The future can't be cancelled; the job can.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                future.set_result(self.result())
            except BaseException as exc:
                future.set_exception(exc)

        # On its own thread: loading a big value would hold up the loop that follows all jobs.
        begin = threading.Thread(target=settle, name=f"nbtorchjob-{self.name}", daemon=True).start
        self._ended.then(begin)
        return future

    @property
    def _condition(self) -> NoReturn:
        # as_completed and wait read this of a future first, to add themselves to its waiters.
        raise TypeError("as_completed and wait take futures: pass job.future() instead of the job")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reference, which attaches to the job again wherever it is unpickled."""
        return attached, (self.info.id, self.trust)

    def __await__(self) -> Generator[Any, None, T]:
        """Await rank 0's value."""
        import asyncio

        event_loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # that loop is closed
                event_loop.call_soon_threadsafe(ended.set)

        self._ended.then(tell)
        yield from ended.wait().__await__()
        return self.result(0)

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.state.phase.word} on {self.state.info.backend}>"


def attached(id_: str, trust: bool) -> Job[Any]:
    """Return a handle on the job with that id (``JobInfo.id``); raises ``JobNotFoundError``."""
    backend_name, _, address = id_.partition(":")
    backend = backend_of(backend_name, address)
    return Job(backend, backend.info(address), trust=trust)


def newest_run(chosen: Backend, name: str) -> JobState:
    """Return the state of a name's run that is still going, or of the last one that ended."""
    runs = [candidate for candidate in chosen.names() if naming.is_run(candidate, name)] or [name]
    states = [chosen.brief_state(run) for run in runs]
    return next((state for state in reversed(states) if not state.phase.terminal), states[-1])
