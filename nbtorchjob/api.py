"""The public functions: submit, map, keep, attach, jobs, doctor, dry_run, and the decorator."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from nbtorchjob import backends, capture, submission
from nbtorchjob.backends import backend, backend_of, naming
from nbtorchjob.backends.base import Backend, Finding, Images, Leftover, Summary, TenderStatus, who_tends
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
_NAMED = 3  # job names in a warning


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
    ``CaptureError`` for what can't be sent, ``SpecError`` and ``SubmitError``; then nothing was started.
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

    Each function finds what earlier ones left in the ranks' globals. ``name`` is for :func:`lab`; ``idle`` is
    how long the lab may wait for a call before it ends, by default the spec's. Raises as :func:`submit` does,
    and ``NameTakenError`` if a lab or another job of that name runs.
    """
    chosen: dict[str, Any] = {k: v for k, v in (("name", name), ("idle", idle)) if v is not None}
    lab_spec = dataclasses.replace(JobSpec.of(spec), lab=True, **chosen)
    call = capture.from_cell("pass", {}, filename=turns.KEEP, root=working())
    call = dataclasses.replace(call, label="keep()")
    return submission.keep(submission.prepare(call, submission.check(lab_spec)))


def pool(
    spec: JobSpec | Launch | None = None, *, name: str | None = None, idle: float | str | None = None
) -> Lab:
    """Start a pool: pods that stay up on a cluster, with torch imported, for jobs to run in.

    A job whose spec names the pool (``JobSpec.pool``) starts there in fresh processes. It takes options that
    it leaves at their defaults from the pool. ``idle`` is how long the pool may wait for a job before it
    ends, by default the spec's. Raises as :func:`submit` does, ``NameTakenError`` if a pool or another job of
    that name runs, and ``SpecError`` for options that no pool can have.
    """
    from nbtorchjob import pools

    chosen: dict[str, Any] = {k: v for k, v in (("name", name), ("idle", idle)) if v is not None}
    pool_spec = pools.requested(dataclasses.replace(JobSpec.of(spec), **chosen))
    return submission.keep(submission.prepare(pools.call(), submission.check(pool_spec)))


def lab(name: str, *, trust: bool = False) -> Lab:
    """Return a handle on a lab, in any kernel, by its name or its id.

    Raises ``JobNotFoundError`` with similar names, and ``SpecError`` if that job isn't a lab.
    """
    from nbtorchjob.labs import Lab, newest  # late, as above

    job = attach(name, trust=trust)
    chosen = backend(job.info.backend)
    info = newest(chosen, job.info, _spelled(name))
    if info.lab is None:
        raise SpecError("on", name, "a lab, started with --keep NAME; this is an ordinary job")
    return Lab(chosen, info, trust=trust)


def attach(name: str, *, trust: bool = False) -> Job[Any]:
    """Return a new handle on a job, in any kernel, by its name or its id (``local:NAME``).

    The value of a job that wasn't submitted from here is loaded as data only: numbers, strings, containers,
    arrays, tensors. With ``trust`` it is unpickled if necessary, which runs any code that its submitter put
    there, as you.
    Raises ``JobNotFoundError`` with similar names.
    """
    from nbtorchjob.job import Job

    prefix, colon, address = name.partition(":")
    # All backends: an address may lead to one where this user never sent a job.
    doors = [(prefix, address)] if colon and prefix in BACKENDS else [(kind, name) for kind in BACKENDS]
    for kind, address_there in dict.fromkeys(
        [*doors, *((kind, _spelled(address_there)) for kind, address_there in doors)]
    ):
        try:
            candidate = backend_of(kind, address_there)
            info = candidate.info(address_there)
            if info.in_pool:
                from nbtorchjob.labs import Lab  # late, as above

                of = backend(info.backend)
                pool = Lab(of, of.info(info.address.rpartition(MARK)[0]), trust=trust)
                return pool.turn(info.address)
            return Job(candidate, info, trust=trust)
        except JobNotFoundError:
            continue
    import difflib  # late: only an unknown name needs it

    names = job_names()
    runs = [run for run in names if naming.is_in_group(run, _spelled(name))]
    if runs:
        text = f"{name!r} is a group of runs, not one job: name one of them, such as {runs[0]}"
        raise JobNotFoundError(text)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    newest = f"the newest are {', '.join(names[-3:])}." if names else "there are no jobs."
    others = f"did you mean {', '.join(near)}?" if near else newest
    if name in names:  # but not in the namespace of the settings
        others = "another namespace has one: use NAMESPACE/NAME."
    raise JobNotFoundError(f"there is no job named {name!r}; {others} See {hint('list')}")


def _spelled(address: str) -> str:
    """Return an address with the job's name spelled as in a spec: ``l1`` for ``L1``."""
    where, slash, name = address.rpartition("/")
    try:
        return where + slash + job_name(name)
    except SpecError:
        return address


def retry(name: str) -> Job[Any]:
    """Run an ended job again, as a new job; raises as :func:`attach` and ``Job.retry`` do."""
    return attach(name).retry()


def snapshot(name: str) -> JobState:
    """Return one job's full state now; raises as :func:`attach` does."""
    job = attach(name)
    return backend_of(job.info.backend, job.info.address).snapshot(job.info.address)


def job_names() -> list[str]:
    """Return every job's name, oldest first on each backend; warns as :func:`jobs` does."""
    names: list[str] = []
    for candidate in backends.used():
        names += _ask_or_warn(candidate.names)
    return names


def jobs(*, everyone: bool = False) -> Jobs:
    """Return the state of every job now, oldest first; with ``everyone`` other users' too.

    A notebook shows the list as a table, and ``jobs().frame()`` is a data frame. A cluster that doesn't
    answer is only a warning; all other jobs are returned.
    """
    states: list[JobState] = []
    for candidate in backends.used():
        states += _ask_or_warn(candidate.jobs, everyone=everyone)
    return Jobs(sorted(states, key=lambda state: state.info.created))


def summaries(make: Callable[[JobState, float], Summary], *, everyone: bool = False) -> list[Summary]:
    """Return ``make(state, now)`` of every job, oldest first by "created"; warns as :func:`jobs` does.

    For an ended job it may be an earlier result (``Backend.summaries``).
    """
    records: list[Summary] = []
    for candidate in backends.used():
        records += _ask_or_warn(candidate.summaries, make, everyone=everyone)
    return sorted(records, key=lambda summary: summary["created"])


def _ask_or_warn(ask: Callable[P, list[T]], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    try:
        return ask(*args, **kwargs)
    except NBTorchJobError as exc:
        warnings.warn(str(exc), stacklevel=3)
        return []


def profile(name: str) -> JobSpec:
    """Return the spec that the profile of that name makes, as ``-p NAME`` does; raises ``SpecError``."""
    return profiles.load(name)


def leftovers() -> list[tuple[Backend, Leftover]]:
    """Return ended jobs and whatever belongs to no job, each with the backend that can remove it."""
    return [(candidate, left) for candidate in backends.used() for left in candidate.leftovers()]


def enforcement(info: JobInfo) -> Mapping[str, str]:
    """Return who enforces each policy and budget of a job, by field name."""
    return backend(info.backend).enforcement(info)


def tended(info: JobInfo) -> TenderStatus | None:
    """Return who tends a job; None if it needs no tending, or if that is unknown."""
    return who_tends(backend(info.backend), info)


def doctor(spec: JobSpec | Launch | None = None, needs: Sequence[Need] = ()) -> list[Finding]:
    """Check everything that a job of ``spec`` would need, and report what is missing.

    ``needs`` are what the user's code imports; it is no fault if the image lacks some of them.
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
    """Inspect the images of a job of ``spec`` with a job that takes seconds; ``doctor`` uses the result.

    Raises ``SpecError`` on a backend without images, and ``NBTorchJobError`` if an image can't be inspected.
    """
    from nbtorchjob.backends import probing  # late: most commands follow no job

    job_spec = JobSpec.of(spec)
    if not isinstance(backend(job_spec.backend), Images):
        raise SpecError("probe", job_spec.backend, "a backend with images; local jobs use this Python")
    call = dataclasses.replace(capture.from_cell("None", {}), label="doctor --probe")
    for image in job_spec.images:
        plan = submission.check(probing.small(job_spec, image))
        probing.ask(plan.backend, submission.send(submission.prepare(call, plan)).info)


def dry_run(
    fn: Callable[..., Any], /, *args: Any, spec: JobSpec | Launch | None = None, **kwargs: Any
) -> str:
    """Describe what ``submit`` would send and start, without sending it; raises as ``submit`` does."""
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

    The jobs share one payload, and so everything that ``fn`` takes along; the arguments have to be small. At
    most ``at_once`` of them run at a time; by default, this machine runs as many as it has room for, and a
    cluster gets all of them. On a cluster, a process that waits for the group starts the next one, or a
    tender does. ``spec.name`` is the group's. Raises as ``submit`` does; then nothing was started.

    While somebody waits for them, runs are stopped early: those that meet the condition ``stop_when``, as in
    ``"loss > 2 * best_loss"``; and with ``halve="loss"``, all but the best ``1/factor`` when the metric
    ``by`` reaches ``at_least``, ``factor`` times that, and so on. ``largest`` names the metrics for which
    larger is better.
    """
    largest = (largest,) if isinstance(largest, str) else tuple(largest)
    early = Early(stop_when=stop_when, halve=halve, by=by, factor=factor, at_least=at_least, largest=largest)
    plan = submission.check(JobSpec.of(spec), runs=True)
    rows = submission.checked_rows(parameters, at_once)
    with interrupts.message(interrupts.NOTHING):
        call = capture.from_function(fn, root=working(), run_values=rows[0])
        sub = submission.prepare(call, plan)
    _warn(sub, stacklevel=3)
    return submission.send_runs(sub, rows, identity.origin_here(call.sources), at_once=at_once, early=early)


def group(name: str, *, trust: bool = False) -> Runs[Any]:
    """Return the runs of a group, in any kernel, by its name; raises ``JobNotFoundError``."""
    from nbtorchjob.runs import Runs  # late, as above

    jobs = grouped(name, trust=trust)
    name = jobs[0].info.group
    newest = {job.info.number: job for job in sorted(jobs, key=lambda job: job.info.created)}
    first = jobs[0].info
    chosen = backends.turns_of(first) if first.of_lab else backend(first.backend)
    return Runs(name, chosen, [newest[number] for number in sorted(newest)])


def grouped(name: str, *, trust: bool = False) -> list[Job[Any]]:
    """Return all jobs of a group, including those that were retried since; raises ``JobNotFoundError``.

    If jobs of the group were submitted from here, those that weren't are left out with a warning, unless
    ``trust`` is set: anybody on the cluster may give a job the labels of a run.
    """
    from nbtorchjob import pools  # late, as above
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab

    name = _spelled(name)
    for candidate in backends.used():
        infos = [candidate.info(run) for run in candidate.names() if naming.is_in_group(run, name)]
        members: list[Job[Any]] = [Job(candidate, info, trust=trust) for info in infos if info.group == name]
        trusted = [job for job in members if trust or candidate.ours(job.info.address)]
        if trusted and len(trusted) < len(members):
            others = ", ".join(sorted({job.name for job in members} - {job.name for job in trusted})[:_NAMED])
            text = f"{others}: not submitted from here, so omitted from {name}; --trust includes them"
            warnings.warn(text, stacklevel=3)
        if members:
            return trusted or members
    # The group's runs that this user has sent to a pool
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

    def __get__(self, instance: object, owner: type | None = None) -> TorchJobFunction[..., T]:
        """Return the method of an object."""
        return self if instance is None else TorchJobFunction(MethodType(self.fn, instance), self.spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.fn,)  # the function itself, with nothing that an image may lack

    def __repr__(self) -> str:
        return f"<torchjob {self.fn.__name__} as {self.spec!r}>"


class Decorator(Protocol):
    """What ``torchjob(spec)`` returns: the function keeps its signature, and an ``async`` one is awaited."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> TorchJobFunction[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> TorchJobFunction[P, T]: ...


@overload
def torchjob(fn: Callable[P, Coroutine[Any, Any, T]], /) -> TorchJobFunction[P, T]: ...
@overload
def torchjob(fn: Callable[P, T], /) -> TorchJobFunction[P, T]: ...
@overload
def torchjob(spec: JobSpec | Launch | None = None) -> Decorator: ...
def torchjob(spec: Any = None) -> Any:
    """Decorate a function: a call runs it as a job. ``@torchjob``, or ``@torchjob(Elastic(nnodes=2))``."""
    if isinstance(spec, FunctionType):
        return TorchJobFunction(spec, JobSpec())
    return functools.partial(TorchJobFunction, spec=JobSpec.of(spec))
