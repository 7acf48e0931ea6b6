"""Supervises one job: starts its attempts, as far as its budgets go, and closes its record.

It is this machine's operator. What an attempt's end means, and whether another one follows, is for
``state/`` to say: the supervisor folds the job's own events, as whoever looks at the job does.
"""

from __future__ import annotations

import os
import signal
import time
from functools import reduce
from pathlib import Path
from typing import Any

from nbtorchjob.backends.local.jobdir import directory
from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.backends.local.jobdir.follow import EventFile
from nbtorchjob.backends.local.launch.attempt import PEER_LOST, Attempt
from nbtorchjob.machine.processes import Process
from nbtorchjob.runtime.facts import death
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.node import shortage
from nbtorchjob.state import US, JobState, Next, Phase, apply
from nbtorchjob.state import events as ev

_WAITED_S = 5.0  # from its submission: a pool may take so long to start
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


def supervise(folder: Path, request: dict[str, Any]) -> None:
    """Run the job in ``folder`` to its end; the calling process is its supervisor from here on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(PEER_LOST, signal.SIG_IGN)  # also for agents, until they can do something with it
    death.adopt_orphans()
    job = JobDirectory(folder)
    try:
        if not job.claim(Process.of(os.getpid())):
            return  # somebody has ended it before it began
        supervisor = Supervisor(job, request)
    except Exception as exc:
        # Nobody is known to supervise the job, so nobody could miss its supervisor: say the end.
        _failed(job, exc)
        job.emit("Closed")
        raise
    supervisor.run()


def _monotonic(at: float) -> float:
    """Return a time of the wall clock as one of the monotonic clock, in which all waiting is done."""
    return time.monotonic() + max(0.0, at - time.time())


def _failed(job: JobDirectory, exc: Exception) -> None:
    error = shortage.explained(from_exception(exc), exc).to_json()
    job.emit("NodeFailed", node=0, code=shortage.code_of(exc), error=error)


class Supervisor:
    """One job's supervisor."""

    def __init__(self, job: JobDirectory, request: dict[str, Any]) -> None:
        self._job = job
        self._request = request
        self._info = job.info()
        self._events = EventFile(job.events)
        self._state = JobState(self._info)  # as of the last attempt's end
        self._gently = False
        self._over = False  # nothing is started any more: somebody's wish, or the deadline
        seconds = self._info.deadline_s
        self._deadline = None if seconds is None else _monotonic(self._begins() + seconds)
        before = self._info.leave_before_s
        self._leave_at = None if self._deadline is None or before is None else self._deadline - before

    def _begins(self) -> float:
        """Return from when on the deadline counts: what a job waited for its turn isn't its own time.

        That is told as what it is like, a pause that ends. So is a creation that lies ahead, as where the
        clock was set back meanwhile: counted from there, the deadline would be as much later.
        """
        now = time.time()
        if self._info.deadline_s is None or 0 <= now - self._info.created < _WAITED_S:
            return self._info.created
        resumed = ev.Suspended(now, suspended=False)
        self._job.emit(**ev.to_json(resumed))
        return now

    def run(self) -> None:
        """Start attempts until one ends well or nothing may follow, and close the job's record."""
        try:
            if self._job.cancel.exists():
                self._end("CancelRequested", **self._job.early)
            else:
                self._try()
        except Exception as exc:
            _failed(self._job, exc)
            raise
        finally:
            directory.put_by(self._job)
            self._job.emit("Closed")
            directory.thin_out(self._job.path.parent)

    def _try(self) -> None:
        number = 1
        while True:
            # Rounds go on: what a rank wrote in an earlier attempt stays.
            first = self._state.last_round + 1
            self._run(Attempt(self._job, self._info, self._request, number, first, self._deadline))
            following = self._following(number)
            if following is None:
                return
            until = _monotonic(following.at)
            while not self._over and until > time.monotonic():
                self.wait(until)
            if self._over:
                return
            number = following.number

    def _run(self, attempt: Attempt) -> None:
        try:
            attempt.start()
            while attempt.live:
                self.wait(attempt.due)
                attempt.reap()
                if self._over:
                    attempt.stop(gently=self._gently)
                elif self._leave_at is not None and time.monotonic() >= self._leave_at:
                    attempt.leave()
                attempt.act()
            if attempt.ended_on_demand and not self._over:
                self._end("DeadlineExceeded", seconds=self._info.deadline_s)
        finally:
            attempt.sweep()

    def _following(self, number: int) -> Next | None:
        """Describe what follows attempt ``number``, and write down that it failed where something does."""
        if self._info.retry_owner != US or self._over:
            return None
        now = time.time()
        self._state = reduce(apply, self._events.read(reports=False), self._state)
        if apply(self._state, ev.Closed(now)).phase is Phase.SUCCEEDED:
            return None
        verdict = ev.Verdict(now, succeeded=False, reason="AttemptFailed", attempt=number)
        self._job.emit(**ev.to_json(verdict))
        return apply(self._state, verdict).next

    def wait(self, until: float | None) -> None:
        """Wait for a signal, the deadline or ``until``; note somebody's wish for the end, or the deadline."""
        leaving = self._leave_at is None or self._leave_at <= time.monotonic()
        limits = [t for t in (self._deadline, until, None if leaving else self._leave_at) if t is not None]
        timeout = max(0.0, min(limits) - time.monotonic()) if limits else 3600.0
        got = signal.sigtimedwait(_SIGNALS, timeout)
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._gently = self._job.gently
            self._end("CancelRequested", **self._job.early)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._end("DeadlineExceeded", seconds=self._info.deadline_s)

    def _end(self, event: str, **fields: Any) -> None:
        self._job.emit(event, **fields)
        self._over = True
