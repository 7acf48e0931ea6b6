"""The handle on a job: waits as a ``concurrent.futures.Future`` does, and can be awaited."""

from __future__ import annotations

import concurrent.futures
import io
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
from nbtorchjob.state.facts.logs import LogLine, Stream, Wanted, check_stream, compiled
from nbtorchjob.state.text import attempts, facts
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbtorchjob.backends.files import Copied, Listing
    from nbtorchjob.backends.links import Forward, Sync
    from nbtorchjob.backends.talk import Session
    from nbtorchjob.payload.results import Fetched
    from nbtorchjob.state.text.stacks import MemoryProfile, Profile, Stacks
    from nbtorchjob.swapping.sending import SwapAnswer

T = TypeVar("T")  # of rank 0's value

Callback = Callable[[JobState], object]
Listener = Callable[[Event], object]

_log = logging.getLogger(__name__)


class _Following:
    """What is followed of one job, once for all handles of this process on it.

    Each would open the job's file or connections again, and fold the same facts to the same state.
    """

    def __init__(self, info: JobInfo) -> None:
        self.state = JobState(info)
        self.ended: Once[None] = Once()
        self.callbacks: list[Callback] = []
        self.current = False  # whether the state was looked up: else it is that of facts read again so far
        self._heard = False
        self._looks: tuple[list[Event], ...] = ()

    def begin(self, backend: Backend, listener: Listener | None, over: Callable[[], object]) -> None:
        """Follow the job in the background; ``over`` is called at the end."""
        from nbtorchjob.machine import loop  # late, as all here that needs asyncio: a list follows no job

        loop.start(self._follow_to_its_end(backend, listener, over))

    def tell(self, callback: Callback) -> None:
        """Have ``callback`` called with each new state, and with the one that others have led to already."""
        from nbtorchjob.machine import loop  # late, as above

        def catch_up() -> None:
            if self._heard and callback in self.callbacks:
                self._call(callback)

        self.callbacks.append(callback)
        loop.call_soon(catch_up)

    def look(self) -> list[Event] | None:
        """Return a list of the facts that come from now on, until it is given to ``adopt``.

        None where the state is that of facts already: what they say may be nowhere else by now.
        """
        if self.current or self._heard:
            return None
        since: list[Event] = []
        self._looks = (*self._looks, since)
        return since

    def adopt(self, state: JobState | None, since: list[Event]) -> None:
        """Go on from a state that was looked up: facts that are read again change nothing.

        Those that came ``since`` that began may not be in it.
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
            # Whoever listens is told every byte of the logs; a state holds no more than their ends anyway.
            since: dict[tuple[int, int], int] | None = None if listener is None else {}
            async for event in backend.follow(self.state.info.address, since=since):
                self.state, self._heard = apply(self.state, event), True
                for facts in self._looks:
                    facts.append(event)
                if listener is not None:
                    listener(event)
                for callback in tuple(self.callbacks):
                    self._call(callback)
            over()
            self.ended.bring(None)
        except asyncio.CancelledError:  # as the process ends; to whoever waits as a future says so
            over()
            self.ended.fail(concurrent.futures.CancelledError())
            raise
        except BaseException as exc:
            over()
            self.ended.fail(exc)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self.state)
        except Exception:  # it is the user's, and the job's other followers wait
            _log.exception("a callback of %s raised", self.state.info.name)


_Key = tuple[Backend, str, str, float]
_followings: weakref.WeakValueDictionary[_Key, _Following] = weakref.WeakValueDictionary()
_sharing = threading.Lock()
_handles: weakref.WeakSet[Job[Any]] = weakref.WeakSet()


def _follow_anew() -> None:
    """Have a fork follow jobs by itself: its parent's threads do so only there, and may hold the locks."""
    global _sharing
    _sharing = threading.Lock()
    _followings.clear()
    for job in _handles:
        job._lock = threading.RLock()
        if job._following is not None and not job._following.ended.come:
            job._following = None


os.register_at_fork(after_in_child=_follow_anew)


class Job(Generic[T]):
    """One submitted job, followed in the background from when its state is first asked for.

    Handles are independent: the job lives on without any. All handles of a process on one job follow it
    together.
    """

    def __init__(self, backend: Backend, info: JobInfo, *, trust: bool = False, joined: bool = False) -> None:
        self.info = info
        self.trust = trust  # unpickles its values though they may be of another person's job
        self.joined = joined  # it ran already when its cell was run again
        self._backend = backend
        self._listener: Listener | None = None
        self._lock = threading.RLock()
        self._values: dict[int, T] = {}
        self._following: _Following | None = None
        _handles.add(self)

    def _follow(self) -> _Following:
        """Follow the job, if that hasn't begun."""
        with self._lock:
            if self._following is None:
                self._following = self._shared()
            return self._following

    def _shared(self, known: JobState | None = None) -> _Following:
        """Return what all handles of this process follow, from what is ``known`` if it begins now."""
        candidate = _Following(self.info)
        if known is not None:
            candidate.state, candidate.current = known, True
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
        """Whether another job has the address by now; of what can't be read there that is unknown."""
        if self.info.of_lab:  # a turn of a lab never is, and to ask about one takes several requests
            return False
        with suppress(DamagedError, JobNotFoundError):
            return self.info.is_another(self._backend.info(self.info.address))
        return False

    @property
    def _address(self) -> str:
        """Where the backend has the job; raises ``JobNotFoundError`` where it has another one there."""
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
        """Whether the job is this user's own, or was said to be trusted: nobody else chose what it shows."""
        return self.trust or (self._backend.ours(self.info.address) and not self._replaced)

    @property
    def state(self) -> JobState:
        """All that is known of the job now; the object doesn't change, ask again for news."""
        with self._lock:
            if self._following is not None:
                return self._following.state
            others = None if self._listener is not None else _followings.get(self._key)
            since = others.look() if others is not None else None
            # Else a job that has ended long ago would seem to be submitted just now, until its follower has
            # come to its end: what it reads again then changes nothing.
            known: JobState | None = None
            with suppress(NBTorchJobError):
                known = self._backend.snapshot(self.info.address)
            if known is not None and self.info.is_another(known.info):
                # What who followed the job to its deletion knows
                following, now = _Following(self.info), time.time()
                following.state = apply(apply(following.state, Removed(now)), Closed(now))
                following.ended.bring(None)
                self._following = following
                return following.state
            following = self._following = others or self._shared(known)
            if since is not None:
                following.adopt(known, since)
            return known if known is not None and not following.current else following.state

    def _known(self) -> JobState:
        """Return what is known of the job now, without following it; raises ``JobNotFoundError``."""
        if self._following is not None and self._following.ended.come:
            with suppress(ClusterError):  # it may be away: what the job came to is known anyway
                self._address  # noqa: B018
            return self._following.state
        # Who follows it may have only begun to.
        return naming.unreplaced(self.info, self._backend.snapshot(self.info.address))

    def done(self) -> bool:
        """Whether the job has ended, one way or another."""
        return self._ended.come

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for the end; return whether it came."""
        # Not result(timeout): what following itself raises may be a TimeoutError as well.
        ended = self._ended
        if not ended.wait(timeout):
            return False
        ended.result()
        return True

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end and return rank 0's value.

        Raises ``TimeoutError`` after ``timeout`` seconds (the job goes on), ``JobFailedError`` or
        ``JobCancelledError`` where the job didn't succeed, ``ResultError`` where its value can't be
        had here. The first is also of the type that its rank raised, a ``ValueError``, where that is loaded
        here and plain.
        """
        self._succeeded(timeout)
        return self._value(self.info.speaker)

    @property
    def value(self) -> T:
        """Rank 0's value of a job that has ended; raises as :meth:`result` does, which waits for the end."""
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

        Its ``error`` is what the first failing rank raised, as data, with its frames' variables.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"{self.name} is still {self.state.phase.word} after {timeout} s")
        phase = self.state.phase
        if phase is Phase.SUCCEEDED:
            return None
        early = self.state.stopped_early
        outcome = "stopped early" if early else "deleted" if self.state.deleted else phase.word
        text = "\n".join([f"{self.name} {outcome}", *attempts.lines(self.state)])
        if early:
            stopped = JobStoppedError(text)
            stopped.metrics = runs.metrics(self.state)
            return stopped
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

        with self._lock:
            if rank not in self._values:
                self._values[rank] = results.load(self._fetched(rank), self.name, trust=self.trust)
            return self._values[rank]

    def _fetched(self, rank: int) -> Fetched:
        value = self.state.values.get(rank)
        if value is None:
            suffix = "".join(f": {notice.text}" for notice in self.state.notices[-1:])
            raise ResultError(f"{self.name} succeeded, but rank {rank} returned no value{suffix}")
        return self._backend.fetch(self._address, value)

    def raw(self, rank: int | None = None, timeout: float | None = None) -> bytes:
        """Wait for the end and return a rank's value as the bytes it came in, which nothing has unpickled.

        For one that can't be rebuilt here; ``nbtorchjob.runtime.objects.wire`` says how it is laid out.
        Raises as :meth:`result` does.
        """
        self._succeeded(timeout)
        return self._fetched(self.info.speaker if rank is None else rank).path.read_bytes()

    def plain(self, most: int = 1_000_000) -> Any:
        """Return rank 0's value where it is there, has at most so many bytes and is plain data; else None.

        Nothing is unpickled, nor waited for.
        """
        state = self._known()
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

        Raises as :meth:`check_rank` does, and for what is no stream.
        """
        self.check_rank(rank)
        check_stream(stream)
        return downloads.log(self._backend, self._address, rank, stream)

    def check_rank(self, rank: int) -> None:
        """Raise ``SpecError`` where the job can have no such rank."""
        self._check("rank", rank, self.info.nodes[1] * self.info.nproc_per_node)

    def check_node(self, node: int) -> None:
        """Raise ``SpecError`` where the job can have no such node."""
        self._check("node", node, self.info.nodes[1])

    def _check(self, what: str, number: int, most: int) -> None:
        # What others made says nothing of its ranks.
        if self.info.spec and number not in range(most):
            there = f"0 to {most - 1}" if most > 1 else "0"
            raise SpecError(what, number, f"{there}: {self.name} has {words.count(most, what)}")

    def logs(self, rank: int = 0, tail: int | None = None, *, stream: Stream | None = None) -> str:
        """Return a rank's whole log so far, or its last ``tail`` lines.

        With ``stream``, "stdout" or "stderr", only what the rank wrote there. Raises ``SpecError`` for a
        negative ``tail``, for what is no stream, and for a rank that the job can't have.
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
        """Return all ranks' lines so far in the order of their times, or one rank's, or a node's.

        Only those written from ``since`` on, by ``until`` (seconds since the epoch), and with a match of the
        regular expression ``pattern``, where given; with ``stream``, "stdout" or "stderr", only what was
        written there. Each has a ``time``, a ``rank`` and its ``text``; times
        are right to some hundredths of a second. While the job goes on, a line that has no end yet is left
        out. Raises ``SpecError`` for what is no regular expression or no stream, and where the job can't have
        the rank or node.
        """
        wanted = Wanted(since, until, None if pattern is None else compiled(pattern))
        if rank is not None:
            self.check_rank(rank)
        if node is not None:
            self.check_node(node)
        check_stream(stream)
        lines = downloads.lines(self._backend, self._known(), rank=rank, node=node, stream=stream)
        return filter(wanted.has, lines)

    def archive(self, *, times: bool = False) -> Iterator[bytes]:
        """Return all ranks' logs so far as a zip archive, in pieces: ``JOB/rank-0.log`` and so on.

        With ``times`` each line has its time in front, as ``nbtorchjob logs --timestamps`` prints it.
        """
        return downloads.zip_logs(self._backend, self._known(), times=times)

    def artifacts(
        self, folder: str | Path | None = None, *, attempt: int | None = None
    ) -> tuple[Artifact, ...]:
        """Return what ranks left below ``artifacts_dir()``, copied into ``folder`` if that is given.

        They come once their node has ended: those of the newest attempt that left any, or of ``attempt``. A
        file in the folder is never replaced: raises ``SpecError`` where it is another one, and
        ``ResultError`` where artifacts can't be had.
        """
        state = self._known()
        if folder is None:
            return downloads.listed(self._backend, state, attempt)
        return downloads.copy(self._backend, state, Path(folder), attempt)

    def files(self, path: str = "") -> Listing:
        """Return what ranks have written at or below ``path``; once the job has ended, what came home.

        A path begins with ``artifacts/`` (``artifacts_dir()``) or ``checkpoints/`` (``checkpoint_dir()``).
        The result has the ``files``, and in ``trouble`` why those of a node are missing. Of an ended job
        there are the artifacts of its newest attempt that left any, and checkpoints that lie on this machine.
        """
        from nbtorchjob.backends import files  # late: most handles are asked for none

        return files.listed(self._backend, self._known(), path)

    def get(self, path: str, folder: str | Path = ".", *, node: int | None = None) -> tuple[Copied, ...]:
        """Copy a file that ranks have written, or all below a path, into a folder.

        What was cut off goes on where it stopped, also at the next call. A file in the folder is never
        replaced, but completed where it is the beginning of the rank's. Raises ``SpecError`` where it is
        another one, ``ResultError``, ``AskError`` and ``JobEndedError``.
        """
        if node is not None:
            self.check_node(node)
        from nbtorchjob.backends import files  # late, as above

        return tuple(files.fetch(self._backend, self._known(), path, Path(folder), node))

    def sync(self, folder: str | Path, path: str = "") -> Sync:
        """Keep a folder in step with what ranks write at or below ``path``, in the background.

        It ends with the job, complete, or by its ``stop()``; ``wait()`` waits for that. On a cluster the
        last checkpoints can't be had once the job has ended, which ``trouble`` says.
        """
        from nbtorchjob.backends import (
            files,
            links,  # late, as above
        )

        return links.Sync(self._backend, self._known(), files.checked(path), Path(folder)).start()

    def forward(self, port: int, rank: int = 0, *, local: int | None = None) -> Forward:
        """Forward a rank's port to a port of this machine's loopback, until ``close()`` or this process ends.

        That is ``local``, by default the same number, or any where that is taken; the result has it as
        ``local``, and a ``url``. Raises ``SpecError`` for a port or rank that can't be had, ``AskError`` and
        ``JobEndedError``.
        """
        self.check_rank(rank)
        from nbtorchjob.backends import links  # late, as above

        for name, number in (("port", port), ("local-port", local)):
            if number is not None and number not in links.PORTS:
                raise SpecError(name, number, "1 to 65535")
        return links.Forward(self._backend, self._known(), port, rank, local)

    def swap(
        self,
        code: str = "",
        *,
        or_back: bool = False,
        within: float = 60.0,
        namespace: dict[str, Any] | None = None,
        **values: Any,
    ) -> SwapAnswer:
        """Have the ranks of this running job go on with other code, all at one call.

        ``code`` defines functions, classes and values, and ``values`` are more of the latter, of plain types.
        What the code reads beside is taken from ``namespace`` where the ranks don't have it. The ranks change
        at a call of ``swap_point()``, ``leaving()`` or ``report()`` that all of them make ``within`` so many
        seconds. With ``or_back`` the old code is put back if the new one's first call raises on any rank.
        Raises ``SwapError`` where the code stays as it was.
        """
        from nbtorchjob.swapping import sending  # late: most handles change nothing

        plain, settings = sending.values({name: repr(value) for name, value in values.items()})
        text = "\n".join(filter(None, (code, plain)))
        return sending.swap_job(
            self.info, text, namespace or {}, settings=settings, or_back=or_back, within=within
        )

    def stacks(self, timeout: float = 10.0) -> Stacks:
        """Ask the job's nodes what each rank does now, and conclude whom the others wait for.

        Of a node that doesn't answer within ``timeout`` seconds, and of a job that has ended, the result has
        what was known last. Nothing that is asked changes the job.
        """
        return stacks.ask(self._backend, self._known(), timeout)

    def profile(self, seconds: float = 3.0, rank: int = 0, folder: str | Path = ".") -> Profile:
        """Have a rank profiled for the next ``seconds``: a trace in ``folder``, and where its time went.

        Raises ``ProfileError`` where it can't be, as where its main thread doesn't come back to Python within
        seconds, ``JobEndedError``, and ``SpecError`` for a rank that the job can't have.
        """
        self.check_rank(rank)
        from nbtorchjob.backends import stacks  # late: most handles are asked for none

        return stacks.take_profile(self._backend, self._known(), rank, seconds, Path(folder))

    def profile_memory(self, seconds: float = 3.0, rank: int = 0, folder: str | Path = ".") -> MemoryProfile:
        """Have a rank's accelerator's memory recorded for the next ``seconds``: a snapshot in ``folder``.

        Raises as :meth:`profile` does, also where the rank uses no accelerator.
        """
        self.check_rank(rank)
        from nbtorchjob.backends import stacks  # late, as above

        return stacks.take_memory_profile(self._backend, self._known(), rank, seconds, Path(folder))

    def debugger(self, rank: int | None = None, by: str = "") -> AbstractContextManager[Session]:
        """Attach to a rank that is stopped in the debugger, which may be the only one; ``by`` says who does.

        What the result says and is told is pdb's. Who leaves it leaves the rank stopped. Raises ``AskError``
        where none is stopped, or somebody else looks at it, and ``JobEndedError``.
        """
        if rank is not None:
            self.check_rank(rank)
        from nbtorchjob.backends import talk  # late, as above

        return talk.session(self._backend, self._known(), rank, by)

    def release(self) -> list[int]:
        """Let go of all ranks that are held where they failed; return which.

        Raises ``AskError`` where none is held, and ``JobEndedError``.
        """
        from nbtorchjob.backends import talk  # late, as above

        return talk.release(self._backend, self._known())

    def note(self, text: str) -> None:
        """Replace the job's note, a line for people; "" removes it. Lists and the sidebar search it.

        Raises ``SpecError`` for more than 2,000 characters.
        """
        self._annotate(note=text)

    def tag(self, *tags: str) -> None:
        """Add tags to the job, by which lists and the sidebar find it; raises ``SpecError`` for no tag."""
        self._annotate(add=tags)

    def untag(self, *tags: str) -> None:
        """Remove tags from the job; those that it lacks change nothing."""
        self._annotate(remove=tags)

    def _annotate(self, **changes: Any) -> None:
        state = naming.unreplaced(self.info, self._backend.known(self.info.address))
        annotation = naming.annotate(self._backend, state, **changes)
        following = self._following
        if following is not None and following.ended.come:  # it reads nothing any more
            following.state = apply(following.state, annotation)

    def cancel(self, *, gently: bool = False) -> None:
        """Ask for the job's end; what it has told and written stays. An ended job stays as it is."""
        if not self._replaced:
            self._backend.cancel(self.info.address, gently=gently)

    def delete(self) -> None:
        """End the job if it runs, and remove its record, logs and values."""
        if not self._replaced:
            self._backend.delete(self.info.address)

    def suspend(self) -> None:
        """Take the job's nodes away and keep the job; ``SpecError`` where that can't be done."""
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
        """Run what this job ran once more, as a new job with a copy of its payload.

        With ``resume`` the new job finds this one's checkpoints in its ``checkpoint_dir()``, for code that
        goes on from them, as ``ResumableTraining`` does. They are copied, unless the job has
        ``--checkpoints PATH``: then both jobs use one folder, which only pods see. Raises ``SubmitError`` for
        a job that hasn't ended, or whose payload is no longer kept; with ``resume`` also where there are no
        checkpoints, or pods of the job still run.
        """
        address = self._address
        new = able(self._backend, Retries, "retry", address).retry(address, resume=resume)
        return Job(self._backend, new, trust=self.trust)

    def export(self, folder: str | Path) -> list[Path]:
        """Write what runs the job again without a notebook to ``folder``; return the files.

        On Kubernetes ``kubectl apply -f folder`` then submits it. Where its ranks have told what they could
        import, that is there as ``requirements.txt``.
        """
        address = self._address
        files = able(self._backend, Exports, "export", address).export(address, Path(folder))
        state = self._backend.snapshot(address)  # not all of it is told to who follows
        if state.importable is not None:
            from nbtorchjob.environment import requirements  # late, as above

            files.append(Path(folder, "requirements.txt"))
            files[-1].write_text(requirements.lock_text(state, state.importable, facts.origins(state)) + "\n")
        return files

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Have ``callback`` called with each new state, on the background thread; return the way out.

        It must not block: the job's other followers wait for it. What it raises is logged.
        """
        following = self._follow()
        following.tell(callback)
        return lambda: following.callbacks.remove(callback) if callback in following.callbacks else None

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` told every fact, and every byte of the logs, on the background thread.

        To be asked of a new handle, before anything that follows the job. What it raises ends following.
        """
        assert self._following is None, "the job is being followed already"
        self._listener = listener

    def add_done_callback(self, callback: Callable[[Job[T]], object]) -> None:
        """Have ``callback`` called with the job once it has ended, on the background thread.

        At once, and here, where it has ended already. What it raises is logged.
        """

        def call() -> None:
            try:
                callback(self)
            except Exception:  # it is the user's, and others wait, too
                _log.exception("a callback of %s raised", self.name)

        self._ended.then(call)

    def future(self) -> concurrent.futures.Future[T]:
        """Return a future of rank 0's value, for ``as_completed``, ``wait`` and ``asyncio.wrap_future``.

        It can't be cancelled, as the job can: nobody waits for its value then.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                future.set_result(self.result())
            except BaseException as exc:
                future.set_exception(exc)

        # A thread of its own: to load a big value would hold up the loop that all jobs are followed on.
        begin = threading.Thread(target=settle, name=f"nbtorchjob-{self.name}", daemon=True).start
        self._ended.then(begin)
        return future

    @property
    def _condition(self) -> NoReturn:
        # What as_completed and wait ask a future for first; they put themselves among its own callbacks.
        raise TypeError("as_completed and wait take futures: pass job.future() instead of the job")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reference, which attaches to the job again wherever it is unpickled."""
        return attached, (self.info.id, self.trust)

    def __await__(self) -> Generator[Any, None, T]:
        """Await rank 0's value."""
        import asyncio

        here = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # that loop is closed
                here.call_soon_threadsafe(ended.set)

        self._ended.then(tell)
        yield from ended.wait().__await__()
        return self.result(0)

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.state.phase.word} on {self.state.info.backend}>"


def attached(id_: str, trust: bool) -> Job[Any]:
    """Return a handle of the job with that id (``JobInfo.id``); raises ``JobNotFoundError``."""
    known, _, address = id_.partition(":")
    there = backend_of(known, address)
    return Job(there, there.info(address), trust=trust)


def newest_run(chosen: Backend, name: str) -> JobState:
    """Return the state of the run of a given name that goes on, or of the last one that ended."""
    runs = [known for known in chosen.names() if naming.is_run(known, name)] or [name]
    states = [chosen.known(run) for run in runs]
    return next((state for state in reversed(states) if not state.phase.terminal), states[-1])
