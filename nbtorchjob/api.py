"""The public functions: submit, map, keep, attach, jobs, doctor, dry_run, and the decorator."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from nbtorchjob import backends, capture, submission
from nbtorchjob.backends import backend, backend_of, naming
from nbtorchjob.backends.base import Backend, Finding, Images, Leftover, Summary, Tended, who_tends
from nbtorchjob.capture import identity
from nbtorchjob.errors import JobNotFoundError, NBTorchJobError, SpecError
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.spec import profiles
from nbtorchjob.spec.config import Launch
from nbtorchjob.spec.grid import Early
from nbtorchjob.spec.jobspec import BACKENDS, JobSpec, job_name
from nbtorchjob.state import JobInfo, JobState, turns
from nbtorchjob.state.info import MARK
from nbtorchjob.tables import Jobs
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.capture import Need
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab
    from nbtorchjob.runs import Runs

P = ParamSpec("P")
T = TypeVar("T")
_NAMED = 3  # in a warning


@overload
def submit(
    fn: Callable[..., Coroutine[Any, Any, T]],
    /,
    *args: Any,
    spec: JobSpec | Launch | None = ...,
    **kwargs: Any,
) -> Job[T]: ...
@overload
def submit(
    fn: Callable[..., T], /, *args: Any, spec: JobSpec | Launch | None = ..., **kwargs: Any
) -> Job[T]: ...
def submit(
    fn: Callable[..., Any], /, *args: Any, spec: JobSpec | Launch | None = None, **kwargs: Any
) -> Job[Any]:
    """Run ``fn(*args, **kwargs)`` on every rank of a job; return its handle at once.

    ``spec`` is a :class:`JobSpec`, or a launch config (``Elastic``, ``PyTorch``) alone. Raises
    ``CaptureError`` for what can't travel, ``SpecError``, ``SubmitError``; then nothing was started.
    """
    return _submit(fn, args, kwargs, JobSpec.of(spec))


def _submit(fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], spec: JobSpec) -> Job[Any]:
    plan = submission.check(spec)
    with interrupts.message(interrupts.NOTHING):
        sub = submission.prepare(capture.from_function(fn, args, kwargs, root=working()), plan)
    _warn(sub, stacklevel=4)
    return submission.send(sub, identity.origin_here(sub.call.sources))


def _warn(sub: submission.Submission, stacklevel: int) -> None:
    for note in (*sub.cautions, *sub.notes):
        warnings.warn(note, stacklevel=stacklevel)


def keep(
    spec: JobSpec | Launch | None = None, *, name: str | None = None, idle: float | str | None = None
) -> Lab:
    """Start a lab: a job whose ranks stay, and run one function after the other (``Lab.run``).

    What one of them leaves in the ranks' globals the next one finds. ``name`` is what others take hold of it
    by; ``idle`` is how long it may wait for a call before it ends, by default as the spec has it. Raises as
    :func:`submit` does, and ``NameTakenError`` where a lab or another job of that name runs.
    """
    chosen: dict[str, Any] = {k: v for k, v in (("name", name), ("idle", idle)) if v is not None}
    asked = dataclasses.replace(JobSpec.of(spec), lab=True, **chosen)
    call = capture.from_cell("pass", {}, filename=turns.KEEP, root=working())
    call = dataclasses.replace(call, label="keep()")
    return submission.keep(submission.prepare(call, submission.check(asked)))


def pool(
    spec: JobSpec | Launch | None = None, *, name: str | None = None, idle: float | str | None = None
) -> Lab:
    """Start a pool: pods that stand on a cluster, with torch imported, in which jobs run one after the other.

    A job whose spec names it (``JobSpec.pool``) starts there in fresh processes. Options that such a job
    leaves at their defaults are the pool's. ``idle`` is how long the pool may wait for a job before it ends,
    by default as the spec has it. Raises as :func:`submit` does, ``NameTakenError`` where a pool or another
    job of that name runs, and ``SpecError`` for what no pool can have.
    """
    from nbtorchjob import pools

    chosen: dict[str, Any] = {k: v for k, v in (("name", name), ("idle", idle)) if v is not None}
    asked = pools.requested(dataclasses.replace(JobSpec.of(spec), **chosen))
    return submission.keep(submission.prepare(pools.call(), submission.check(asked)))


def lab(name: str, *, trust: bool = False) -> Lab:
    """Take hold of a lab, in any kernel, by its name or its id.

    Raises ``JobNotFoundError`` with near names, and ``SpecError`` where that job is no lab.
    """
    from nbtorchjob.labs import Lab, newest  # late, as above

    job = attach(name, trust=trust)
    chosen = backend(job.info.backend)
    info = newest(chosen, job.info, _spelled(name))
    if info.lab is None:
        raise SpecError("on", name, "a lab, started with --keep NAME; this is an ordinary job")
    return Lab(chosen, info, trust=trust)


def attach(name: str, *, trust: bool = False) -> Job[Any]:
    """Take hold of a job again, in any kernel, by its name or its id (``local:NAME``).

    Of a job that wasn't submitted from here the value is taken as data only: numbers, texts, containers,
    arrays, tensors. With ``trust`` it is unpickled where it must be, which runs whatever its submitter put
    there, as you.
    Raises ``JobNotFoundError`` with near names.
    """
    from nbtorchjob.job import Job

    asked, _, address = name.partition(":")
    # All of them: an address may lead where this user never sent a job.
    doors = [(asked, address)] if asked in BACKENDS else [(kind, name) for kind in BACKENDS]
    for kind, address_there in dict.fromkeys(
        [*doors, *((kind, _spelled(address_there)) for kind, address_there in doors)]
    ):
        try:
            there = backend_of(kind, address_there)
            info = there.info(address_there)
            if info.in_pool:
                from nbtorchjob.labs import Lab  # late, as above

                of = backend(info.backend)
                pool = Lab(of, of.info(info.address.rpartition(MARK)[0]), trust=trust)
                return pool.turn(info.address)
            return Job(there, info, trust=trust)
        except JobNotFoundError:
            continue
    import difflib  # late: a name that is known needs none

    known = job_names()
    runs = [run for run in known if naming.is_in_group(run, _spelled(name))]
    if runs:
        text = f"{name!r} is a group of runs, and this takes one job: name one of them, such as {runs[0]}"
        raise JobNotFoundError(text)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    newest = f"the newest are {', '.join(known[-3:])}." if known else "there are no jobs."
    others = f"did you mean {', '.join(near)}?" if near else newest
    if name in known:  # and not where the settings say
        others = "another namespace has one: use NAMESPACE/NAME."
    raise JobNotFoundError(f"there is no job named {name!r}; {others} See {hint('list')}")


def _spelled(address: str) -> str:
    """Return an address with the job's name as a spec would have it: ``l1`` for ``L1``."""
    where, slash, name = address.rpartition("/")
    try:
        return where + slash + job_name(name)
    except SpecError:
        return address


def retry(name: str) -> Job[Any]:
    """Run what an ended job ran once more; raises as :func:`attach` and ``Job.retry`` do."""
    return attach(name).retry()


def snapshot(name: str) -> JobState:
    """Return all that is known of one job now; raises as :func:`attach` does."""
    job = attach(name)
    return backend_of(job.info.backend, job.info.address).snapshot(job.info.address)


def job_names() -> list[str]:
    """Return every job's name, oldest first on each backend; warns as :func:`jobs` does."""
    names: list[str] = []
    for candidate in backends.used():
        names += _asked(candidate.names)
    return names


def jobs(*, everyone: bool = False) -> Jobs:
    """Return what is known of every job now, oldest first; with ``everyone`` other users' too.

    The list shows as a table, and ``jobs().frame()`` is a data frame. A cluster that doesn't answer is a
    warning: what is known of the rest is given all the same.
    """
    states: list[JobState] = []
    for candidate in backends.used():
        states += _asked(candidate.jobs, everyone=everyone)
    return Jobs(sorted(states, key=lambda state: state.info.created))


def summaries(make: Callable[[JobState, float], Summary], *, everyone: bool = False) -> list[Summary]:
    """Return what ``make`` makes of every job now, oldest first by "created"; warns as :func:`jobs` does.

    Of jobs that have ended it may be what was made before (``Backend.summaries``).
    """
    records: list[Summary] = []
    for candidate in backends.used():
        records += _asked(candidate.summaries, make, everyone=everyone)
    return sorted(records, key=lambda summary: summary["created"])


def _asked(ask: Callable[P, list[T]], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    try:
        return ask(*args, **kwargs)
    except NBTorchJobError as exc:
        warnings.warn(str(exc), stacklevel=3)
        return []


def profile(name: str) -> JobSpec:
    """Return the spec that a profile of that name makes, as ``-p NAME`` does; raises ``SpecError``."""
    return profiles.load(name)


def leftovers() -> list[tuple[Backend, Leftover]]:
    """Return the jobs that have ended and what belongs to no job, with the backend that can clear it."""
    return [(candidate, left) for candidate in backends.used() for left in candidate.leftovers()]


def enforcement(info: JobInfo) -> Mapping[str, str]:
    """Return who enforces each policy and budget of a job, by the name of its field."""
    return backend(info.backend).enforcement(info)


def tended(info: JobInfo) -> Tended | None:
    """Return who looks after a job; None where nobody need, or it can't be told."""
    return who_tends(backend(info.backend), info)


def doctor(spec: JobSpec | Launch | None = None, needs: Sequence[Need] = ()) -> list[Finding]:
    """Look at all that a job of ``spec`` would need, and say what is missing.

    ``needs`` are what the code of its user imports; those that the image lacks are no fault.
    """
    checked = profiles.admitted(JobSpec.of(spec))
    chosen = backend(checked.backend)
    findings = chosen.doctor(checked)
    if checked.data:
        from nbtorchjob.backends import probing  # late: few jobs have any

        findings += probing.data_findings(checked)
    for rows in submission.images_of(checked, needs):
        if rows.rows:
            findings.append(Finding(True, f"what is imported here: {rows.summary}", "\n".join(rows.lines())))
    return findings


def probe(spec: JobSpec | Launch | None = None) -> None:
    """Ask the image of a job of ``spec`` what it has, by a job of seconds: ``doctor`` knows it from then on.

    Raises ``SpecError`` on a backend that has no images, and ``NBTorchJobError`` where it can't be asked.
    """
    from nbtorchjob.backends import probing  # late: most of what the command does follows nothing

    asked = JobSpec.of(spec)
    if not isinstance(backend(asked.backend), Images):
        raise SpecError("probe", asked.backend, "a backend with images; local jobs use this Python")
    call = dataclasses.replace(capture.from_cell("None", {}), label="doctor --probe")
    for image in asked.images:
        plan = submission.check(probing.small(asked, image))
        probing.ask(plan.backend, submission.send(submission.prepare(call, plan)).info)


def dry_run(
    fn: Callable[..., Any], /, *args: Any, spec: JobSpec | Launch | None = None, **kwargs: Any
) -> str:
    """Describe what ``submit`` would send and start, and send nothing. Raises as ``submit`` does."""
    call = capture.from_function(fn, args, kwargs, root=working())
    return submission.dry_run(call, JobSpec.of(spec))


def map(
    fn: Callable[..., T],
    parameters: Iterable[Mapping[str, Any]],
    /,
    *,
    spec: JobSpec | Launch | None = None,
    at_once: int | None = None,
    stop_when: str | None = None,
    halve: str | None = None,
    by: str | None = None,
    factor: int = 3,
    at_least: int = 1,
    largest: str | Sequence[str] = (),
) -> Runs[T]:
    """Run ``fn(**arguments)`` as a job for each mapping in ``parameters``; return their handles at once.

    They share one payload, and so all that ``fn`` takes along; what differs has to be small. At most
    ``at_once`` of them run at a time; without it this machine runs as many as it has room for, and a cluster
    has all of them. There, who waits for the group starts the next one, or a tender does. ``spec.name`` is
    the group's. Raises as ``submit`` does; then nothing was started.

    While somebody waits for them, runs are stopped early: one of which the condition ``stop_when`` holds, as
    in ``"loss > 2 * best_loss"``; and with ``halve="loss"``, at ``at_least``, ``factor`` times that and so on
    in the metric ``by``, all but the best ``1/factor``. ``largest`` names the metrics of which the largest is
    best.
    """
    largest = (largest,) if isinstance(largest, str) else tuple(largest)
    early = Early(stop_when=stop_when, halve=halve, by=by, factor=factor, at_least=at_least, largest=largest)
    plan = submission.check(JobSpec.of(spec), runs=True)
    rows = submission.checked_rows(parameters, at_once)
    with interrupts.message(interrupts.NOTHING):
        call = capture.from_function(fn, root=working(), given=rows[0])
        sub = submission.prepare(call, plan)
    _warn(sub, stacklevel=3)
    return submission.send_runs(sub, rows, identity.origin_here(call.sources), at_once=at_once, early=early)


def group(name: str, *, trust: bool = False) -> Runs[Any]:
    """Take hold of a group of runs again, in any kernel, by its name; raises ``JobNotFoundError``."""
    from nbtorchjob.runs import Runs  # late, as above

    jobs = grouped(name, trust=trust)
    name = jobs[0].info.group
    newest = {job.info.number: job for job in sorted(jobs, key=lambda job: job.info.created)}
    first = jobs[0].info
    chosen = backends.turns_of(first) if first.of_lab else backend(first.backend)
    return Runs(name, chosen, [newest[number] for number in sorted(newest)])


def grouped(name: str, *, trust: bool = False) -> list[Job[Any]]:
    """Return all jobs of a group, also those that were retried since; raises ``JobNotFoundError``.

    Of a group that was submitted from here, jobs that weren't are left out with a warning, unless with
    ``trust``: anybody on the cluster may give a job the labels of a run.
    """
    from nbtorchjob import pools  # late, as above
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab

    name = _spelled(name)
    for candidate in backends.used():
        infos = [candidate.info(known) for known in candidate.names() if naming.is_in_group(known, name)]
        members: list[Job[Any]] = [Job(candidate, info, trust=trust) for info in infos if info.group == name]
        ours = [job for job in members if trust or candidate.ours(job.info.address)]
        if ours and len(ours) < len(members):
            others = ", ".join(sorted({job.name for job in members} - {job.name for job in ours})[:_NAMED])
            text = f"{others}: not submitted from here, so omitted from {name}; --trust includes them"
            warnings.warn(text, stacklevel=3)
        if members:
            return ours or members
    # Its runs that this user has sent to a pool
    members = [
        Lab(backend(pool.backend), pool, trust=trust).turn(f"{pool.address}{MARK}{turn.number}")
        for pool, turn in pools.runs()
        if turn.group == name
    ]
    if members:
        return members
    raise JobNotFoundError(f"there is no group of runs named {name!r}; see {hint('list')}")


class TorchJobFunction(Generic[P, T]):
    """A function that runs as a job when it is called. On a rank it is the plain function again."""

    def __init__(self, fn: Callable[P, Any], spec: JobSpec) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.spec = spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run as a job, wait, and return rank 0's value; raises as ``Job.result`` does."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Run as a job and return its handle at once."""
        return _submit(self.fn, args, kwargs, self.spec)

    def map(self, parameters: Iterable[Mapping[str, Any]], **more: Any) -> Runs[T]:
        """Run as a job for each mapping in ``parameters``; takes what :func:`nbtorchjob.map` takes."""
        return map(self.fn, parameters, spec=self.spec, **more)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self.fn,)

    def __repr__(self) -> str:
        return f"<torchjob {self.fn.__name__} as {self.spec!r}>"


class Decorator(Protocol):
    """What :func:`torchjob` gives: the function keeps its signature, and an ``async`` one is awaited."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> TorchJobFunction[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> TorchJobFunction[P, T]: ...


def torchjob(spec: JobSpec | Launch | None = None) -> Decorator:
    """Decorate a function so that calling it runs it as a job: ``@torchjob(Elastic(nnodes=2))``."""
    checked = JobSpec.of(spec)

    def decorate(fn: Callable[P, Any]) -> TorchJobFunction[P, Any]:
        return TorchJobFunction(fn, checked)

    return decorate
