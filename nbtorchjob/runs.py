"""Many jobs from one call: each is an ordinary job, and the group is a label."""

from __future__ import annotations

import math
import queue
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal, TypeVar, overload

from nbtorchjob import tables
from nbtorchjob.backends import naming
from nbtorchjob.backends.base import Backend, Suspends, able, who_tends
from nbtorchjob.errors import (
    ClusterError,
    DamagedError,
    JobFailedError,
    JobStoppedError,
    NBTorchJobError,
    ResultError,
    SpecError,
)
from nbtorchjob.frozen import NumberedMapping
from nbtorchjob.job import Job
from nbtorchjob.machine import interrupts
from nbtorchjob.state import JobState, Phase, runs
from nbtorchjob.state.runs import Judge
from nbtorchjob.text import safe
from nbtorchjob.text.hints import hint

T = TypeVar("T")  # of a run's value

_LOOK_S, _LONGEST_S = 0.02, 0.5  # bounds of the pause between two looks: twice what the last look took
_AGAIN_S = 30.0  # before a run that should have stopped early, but goes on, is cancelled again
_PLAIN_BYTES = 100_000
_MOST_LABELS = 20  # in a picture's legend


def _light(state: JobState) -> JobState:
    """Return an ended run's state without the parts that a list of runs never shows."""
    nothing = NumberedMapping[Any]()
    return replace(state, logs=nothing, uses=nothing, samples=nothing, displays=())


class Runs(Sequence[Job[T]]):
    """The runs of a group: a sequence of :class:`Job` in the order in which they were given.

    A run that was retried is represented by its newest job.
    """

    def __init__(self, name: str, backend: Backend, jobs: Iterable[Job[T]]) -> None:
        self.name = name
        self._backend = backend
        self._jobs = [*jobs]
        self._ended: dict[str, JobState] = {}  # by address: an ended run never changes
        self._begun: set[str] = set()  # addresses of runs that were started in turn, on a cluster
        self._refused: set[str] = set()  # addresses of runs that the cluster failed to start when asked
        self._plain: dict[str, Any] = {}  # plain values that were fetched, by address
        self._judge: Judge | None = None  # None if nothing stops runs early
        try:
            early = self._jobs[0].info.stops_early if self._jobs else None
            self._judge = Judge(early) if early is not None else None
        except (DamagedError, SpecError) as exc:
            warnings.warn(f"early stopping of {name} is disabled: {exc}", stacklevel=3)
        self._asked_to_end: dict[str, float] = {}  # when, by address
        self._unheard: str | None = None  # metrics that are needed, but not reported; None while unknown
        self.drawn = False  # the cell whose value they are already shows their card

    @property
    def _at_once(self) -> int | None:
        """How many runs may be under way, if the others have to be started in turn; else None."""
        return self._jobs[0].info.at_once if self._jobs and isinstance(self._backend, Suspends) else None

    @property
    def needs_looks(self) -> bool:
        """Whether waiting for the runs also starts them in turn or stops some early."""
        return self.stops_early or self._at_once is not None

    @property
    def unstarted(self) -> bool:
        """Whether some runs start only once somebody waits for the group, because no tender starts them."""
        if self._at_once is None or len(self) <= self._at_once:
            return False
        tended = who_tends(self._backend, self._jobs[0].info)
        return tended is None or not tended.who

    @property
    def stops_early(self) -> bool:
        """Whether waiting for the runs stops some early, by what they report."""
        return self._judge is not None

    @property
    def unattended(self) -> str:
        """A sentence for users who stop waiting: nothing stops the runs early meanwhile; or ""."""
        return " Its runs are stopped early only while you wait for them." if self.stops_early else ""

    @overload
    def __getitem__(self, at: int) -> Job[T]: ...
    @overload
    def __getitem__(self, at: slice) -> list[Job[T]]: ...
    def __getitem__(self, at: int | slice) -> Job[T] | list[Job[T]]:
        """Return one run's job, or the jobs of several."""
        return self._jobs[at]

    def __len__(self) -> int:
        """Return how many runs there are."""
        return len(self._jobs)

    def states(self) -> list[JobState]:
        """Return each run's state now, without logs; for an ended run with all its reports."""
        left = {job.info.address: job.info for job in self._jobs if job.info.address not in self._ended}
        states = zip(left.items(), self._backend.several([*left]), strict=True)
        now = {address: naming.unreplaced(info, state) for (address, info), state in states}
        for address, state in now.items():
            if state.phase.terminal:
                self._ended[address] = _light(self._backend.snapshot(address))
        return [self._ended.get(job.info.address) or now[job.info.address] for job in self._jobs]

    def wait(self, timeout: float | None = None, *, first_failed: bool = False) -> bool:
        """Wait at most ``timeout`` seconds for all runs to end; return whether they did.

        With ``first_failed``, one failed run is enough; the others go on.
        """
        left = f"Stopped waiting for {self.name}: {hint('attach', self.name)} follows it.{self.unattended}"
        with interrupts.message(left):
            for states in self.looks(timeout):
                if all(state.phase.terminal for state in states):
                    return True
                if first_failed and any(state.phase is Phase.FAILED for state in states):
                    return True
        return False

    def looks(self, timeout: float | None = None) -> Iterator[list[JobState]]:
        """Yield the states of all runs, again and again, until all have ended or ``timeout`` has passed.

        Meanwhile runs are stopped early, and started in turn, if the group asks for that.
        """
        until = None if timeout is None else time.monotonic() + timeout
        # On a cluster, looking up states reads each run's logs every time; following reads them once.
        in_pool = any(job.info.of_lab for job in self._jobs)
        follows = in_pool or isinstance(self._backend, Suspends)
        states = [JobState(job.info) for job in self._jobs] if in_pool else self.states()
        while True:
            began = time.monotonic()
            states = self._followed(states) if follows else self.states()
            self._stop_early(states)
            # On a cluster, start runs that wait for their turn, up to the group's limit
            left = {state.info.address: runs.waits(state) for state in states if self._at_once}
            left |= {address: False for address in self._begun if left.get(address)}
            for address in runs.due(left, self._at_once or 0):
                try:
                    able(self._backend, Suspends, "begin", address).begin(address)
                    self._begun.add(address)
                except ClusterError as exc:  # the next look tries again
                    if address not in self._refused:
                        self._refused.add(address)
                        warnings.warn(f"{address} could not be started yet: {exc}", stacklevel=3)
            yield states
            if all(state.phase.terminal for state in states):
                return
            now = time.monotonic()
            if until is not None and now >= until:
                return
            pause = min(max(_LOOK_S, 2 * (now - began)), _LONGEST_S)
            time.sleep(pause if until is None else min(pause, until - now))

    def _followed(self, before: list[JobState]) -> list[JobState]:
        """Return the states of the jobs by following them: on a cluster with one watch, and their logs."""
        states = []
        for job, previous in zip(self._jobs, before, strict=True):
            if job.info.address not in self._ended:
                job.done()  # begins to follow it
                state = previous if job.state.phase is Phase.SUBMITTED else job.state
                if state.phase.terminal:
                    self._ended[job.info.address] = _light(state)
            states.append(self._ended.get(job.info.address) or state)
        return states

    def _stop_early(self, states: Sequence[JobState]) -> None:
        """Cancel the runs whose reports call for it; harmless if another process does so, too."""
        if self._judge is None:
            return
        if self._unheard is None and (unheard := self._judge.unheard(states)) is not None:
            self._unheard = unheard
            if unheard:
                warnings.warn(
                    f"early stopping of {self.name} needs metrics that no run reports, {unheard}",
                    stacklevel=4,
                )
        now = time.monotonic()
        for address, why in self._judge.stops(states).items():
            request_time = self._asked_to_end.get(address)
            if request_time is not None and now - request_time < _AGAIN_S:
                continue
            self._asked_to_end[address] = now
            try:
                self._backend.cancel(address, early=why)
            except NBTorchJobError as exc:
                if request_time is None:
                    warnings.warn(f"{address} could not be stopped early: {exc}", stacklevel=4)

    def results(
        self, timeout: float | None = None, *, errors: Literal["raise", "return"] = "raise"
    ) -> list[T | NBTorchJobError]:
        """Wait for all runs to end, and return their values, in order.

        For a job with ``all_ranks``, the value is the list of all ranks' values.
        The first error is raised once all have ended; with ``errors="return"`` an error takes its run's
        place. For a run that was stopped early, a ``JobStoppedError`` always does. Raises ``TimeoutError``
        after ``timeout`` seconds; the runs go on.
        """
        if errors not in ("raise", "return"):
            raise SpecError("errors", errors, '"raise" or "return"')
        if not self.wait(timeout):
            left = sum(not state.phase.terminal for state in self.states())
            raise TimeoutError(f"{left} of {len(self)} runs of {self.name} haven't ended after {timeout} s")
        outcomes: list[T | NBTorchJobError] = []
        for job in self._jobs:
            try:
                outcomes.append(job.returned())
            except (JobFailedError, ResultError) as exc:
                outcomes.append(exc)
        for outcome in outcomes if errors == "raise" else ():
            if isinstance(outcome, (JobFailedError, ResultError)) and not isinstance(
                outcome, JobStoppedError
            ):
                raise outcome
        return outcomes

    def best(self, metric: str, *, largest: bool = False) -> Job[T]:
        """Return the run whose last report of ``metric`` is the smallest, or the ``largest``.

        A run that failed, or was ended, counts only if no other run reported the metric. Raises
        ``ResultError`` if none did.
        """
        states = self.states()
        metrics = [runs.metrics(state) for state in states]
        metric_names = sorted({name for latest in metrics for name in latest})
        if metric not in metric_names:
            they = f"they report {', '.join(metric_names)}" if metric_names else "they report nothing"
            raise ResultError(f"no run of {self.name} has reported {metric!r}: {they}")
        reporting = [at for at, latest in enumerate(metrics) if math.isfinite(latest.get(metric, math.nan))]
        if not reporting:
            raise ResultError(f"no run of {self.name} has reported a finite {metric!r}")
        well = [
            at for at in reporting if states[at].phase not in (Phase.FAILED, Phase.CANCELLED)
        ] or reporting
        return self._jobs[(max if largest else min)(well, key=lambda at: metrics[at][metric])]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run: its parameters, phase, last metrics, value, seconds and attempts.

        The value is None unless it is plain data.
        """
        now, states = time.time(), self.states()
        rows = []
        for job, state in zip(self._jobs, states, strict=True):
            if not state.phase.terminal:
                value = None
            else:
                if job.info.address not in self._plain:
                    self._plain[job.info.address] = job.plain(_PLAIN_BYTES)
                value = self._plain[job.info.address]
            rows.append(runs.row(state, now, value))
        return rows

    def frame(self) -> Any:
        """Return :meth:`rows` as a pandas or polars ``DataFrame``.

        Raises ``NotInstalledError`` where neither is installed.
        """
        return tables.frame(self.rows())

    def plot(self, metric: str) -> Any:
        """Draw the runs' curves of ``metric`` over each other with matplotlib; return its ``Axes``.

        Raises ``ResultError`` where matplotlib isn't installed, or no run has reported the metric.
        """
        if find_spec("matplotlib") is None:
            raise ResultError("plot() needs matplotlib: run pip install matplotlib")
        states = self.states()
        along, curves = runs.curves(states, metric)
        if not curves:
            raise ResultError(f"no run of {self.name} has reported {metric!r}")
        from matplotlib import pyplot  # the user's own, and slow to import

        _, axes = pyplot.subplots()
        for state in states:
            if points := curves.get(state.info.id):
                label = ", ".join(f"{name}={state.info.given[name]}" for name in runs.varied(states))
                axes.plot(*zip(*points, strict=True), label=label)
        axes.set_xlabel(along)
        axes.set_ylabel(metric)
        if len(curves) <= _MOST_LABELS:
            axes.legend()
        return axes

    def cancel(self) -> None:
        """Request the end of all runs that haven't ended; those that wait for their turn never start."""
        # The last ones first: else each run that ends would let the next one start.
        for job, state in reversed([*zip(self._jobs, self.states(), strict=True)]):
            if not state.phase.terminal:
                job.cancel()

    def retry_failed(self) -> list[Job[T]]:
        """Retry the failed runs, each as a new job in its run's place; return those jobs."""
        retried = []
        for at, state in enumerate(self.states()):
            if state.phase is Phase.FAILED:
                self._jobs[at] = self._jobs[at].retry()
                retried.append(self._jobs[at])
        return retried

    def __repr__(self) -> str:
        return f"<Runs {self.name}: {len(self)} on {self._backend.where}>"

    def __str__(self) -> str:
        from nbtorchjob.ui import runs as render  # late: only runs that are shown are drawn

        return safe(render.text(self.name, self.states(), time.time()))

    def _repr_html_(self) -> str:
        from nbtorchjob.ui import runs as render  # late, as above

        return render.html(self.name, self.states(), time.time())

    def _ipython_display_(self) -> None:
        """Show nothing if the card is there already; on NotImplementedError, IPython displays as usual."""
        if not self.drawn:
            raise NotImplementedError
        self.drawn = False

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def as_completed(runs: Iterable[Job[T]], timeout: float | None = None) -> Iterator[Job[T]]:
    """Yield jobs as they end, whichever way; takes any jobs, not only those of one group.

    Meanwhile a group's runs are stopped early, and started in turn, if it asks for that. Raises
    ``TimeoutError`` if not all have ended after ``timeout`` seconds.
    """
    jobs = list(runs)
    ended: queue.SimpleQueue[Job[T]] = queue.SimpleQueue()
    for job in jobs:
        job.add_done_callback(ended.put)
    looks = runs.looks(timeout) if isinstance(runs, Runs) and runs.needs_looks else iter(())
    until = None if timeout is None else time.monotonic() + timeout
    left = len(jobs)
    for _ in looks:
        while not ended.empty():
            left -= 1
            yield ended.get()
    while left:
        try:
            job = ended.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{left} of {len(jobs)} jobs haven't ended after {timeout} s") from None
        left -= 1
        yield job
