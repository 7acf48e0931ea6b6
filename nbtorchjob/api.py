"""Where the pieces meet: submit, attach, jobs, dry_run, and the decorator."""

from __future__ import annotations

import difflib
import functools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

from nbtorchjob import capture, names, origin, profiles, settings, site
from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Backend, Finding, Leftover
from nbtorchjob.capture import Call
from nbtorchjob.config import Launch
from nbtorchjob.errors import JobNotFoundError, NameTakenError, NBTorchJobError
from nbtorchjob.folders import working
from nbtorchjob.job import Job
from nbtorchjob.spec import BACKENDS, JobSpec
from nbtorchjob.state import US, JobInfo, JobState, Origin

P = ParamSpec("P")
T = TypeVar("T")
_TRIES = 5


def submit(fn: Callable[..., Any], /, *args: Any, spec: JobSpec | Launch | None = None, **kwargs: Any) -> Job:
    """Run ``fn(*args, **kwargs)`` on every rank of a job; give its handle at once.

    ``spec`` is a :class:`JobSpec`, or a launch config (``Elastic``, ``PyTorch``) alone. Raises
    ``CaptureError`` for what can't travel, ``SpecError``, ``SubmitError``; then nothing was started.
    """
    return _submit(fn, args, kwargs, JobSpec.of(spec))


def _submit(fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], spec: JobSpec) -> Job:
    for caution in cautions(spec):
        warnings.warn(caution, stacklevel=3)
    call = capture.from_function(fn, args, kwargs, root=working())
    for note in call.notes:
        warnings.warn(note, stacklevel=3)
    return submit_call(call, spec, origin.here(call.sources))


def submit_call(call: Call, spec: JobSpec, written: Origin | None = None) -> Job:
    """Submit a captured call; ``written`` says in which notebook and cell."""
    spec = site.settled(spec)
    place = backend(spec.backend)
    place.check(spec)
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            return Job(place, place.submit(call, spec, describe(call, spec, written)))
        except NameTakenError:
            # A made-up name is taken once in half a million: make up another one.
            if spec.name is not None or last:
                raise
    raise AssertionError("unreachable")


def describe(call: Call, spec: JobSpec, written: Origin | None = None) -> JobInfo:
    """Give what is written down of a job at submission."""
    written = written or Origin()
    launch = spec.launch
    policy = launch.run_policy
    return JobInfo(
        name=spec.name or names.generate(call.label),
        backend=spec.backend,
        created=time.time(),
        label=call.label,
        nodes=(launch.min_nodes, launch.max_nodes),
        nproc_per_node=launch.nproc_per_node,
        max_restarts=launch.max_restarts,
        ships=capture.ships_line(call),
        all_ranks=spec.all_ranks,
        ttl_s=policy.ttl_seconds_after_finished if policy else None,
        deadline_s=policy.active_deadline_seconds if policy else None,
        start_within_s=policy.patience_s if policy else None,
        keeper=US if spec.retry else "",
        sources={name: (written.labels.get(name, name), text) for name, text in call.sources.items()},
        spec=spec.to_json(),
        notebook=written.notebook,
        cell=written.cell,
    )


def cautions(spec: JobSpec) -> list[str]:
    """Say what will work, but not well; raise ``SpecError`` for what the backend can't honour."""
    spec = site.settled(spec)
    return [*backend(spec.backend).check(spec), *settings.cautions(spec)]


def attach(name: str, *, trust: bool = False) -> Job:
    """Take hold of a job again, in any kernel, by its name or its id (``local:NAME``).

    Of a job that wasn't submitted from here the value is taken as data only: numbers, texts, containers,
    arrays, tensors. With ``trust`` it is unpickled where it must be, which runs whatever its submitter put
    there, as you.
    Raises ``JobNotFoundError`` with near names.
    """
    asked, _, address = name.partition(":")
    for place, known_as in [(asked, address)] if asked in BACKENDS else [(each, name) for each in BACKENDS]:
        try:
            return Job(backend(place), backend(place).info(known_as), trust=trust)
        except JobNotFoundError:
            continue
    known = job_names()
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[-3:]
    hint = f"did you mean {', '.join(near)}?" if near else "there are no jobs."
    raise JobNotFoundError(f"there is no job named {name!r}; {hint} See %torchjob list")


def retry(name: str) -> Job:
    """Run what an ended job ran once more; raises as :func:`attach` and ``Job.retry`` do."""
    return attach(name).retry()


def snapshot(name: str) -> JobState:
    """Give all that is known of one job now; raises as :func:`attach` does."""
    job = attach(name)
    return backend(job.info.backend).snapshot(job.info.address)


def job_names() -> list[str]:
    """Give every job's name, oldest first in each place; warns as :func:`jobs` does."""
    found: list[str] = []
    for place in BACKENDS:
        found += _asked(backend(place).names)
    return found


def jobs(*, everyone: bool = False) -> list[JobState]:
    """Give what is known of every job now, oldest first; with ``everyone`` other users' too.

    A cluster that doesn't answer is a warning: what is known of the rest is given all the same.
    """
    found: list[JobState] = []
    for place in BACKENDS:
        found += _asked(backend(place).jobs, everyone=everyone)
    return sorted(found, key=lambda state: state.info.created)


def _asked(ask: Callable[P, list[T]], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    try:
        return ask(*args, **kwargs)
    except NBTorchJobError as exc:
        warnings.warn(str(exc), stacklevel=3)
        return []


def profile(name: str) -> JobSpec:
    """Give the spec that a profile of that name makes, as ``-p NAME`` does; raises ``SpecError``."""
    return profiles.load(name)


def leftovers() -> list[tuple[Backend, Leftover]]:
    """Give the jobs that have ended and what belongs to no job, with the backend that can clear it."""
    return [(backend(place), left) for place in BACKENDS for left in backend(place).leftovers()]


def enforcement(info: JobInfo) -> Mapping[str, str]:
    """Say who sees to each policy and budget of a job, by the name of its field."""
    return backend(info.backend).enforcement(info)


def doctor(spec: JobSpec | Launch | None = None) -> list[Finding]:
    """Look at all that a job of ``spec`` would need, and say what is missing."""
    checked = site.settled(JobSpec.of(spec))
    return backend(checked.backend).doctor(checked)


def dry_run(
    fn: Callable[..., Any], /, *args: Any, spec: JobSpec | Launch | None = None, **kwargs: Any
) -> str:
    """Say what ``submit`` would send and start, and send nothing. Raises as ``submit`` does."""
    call = capture.from_function(fn, args, kwargs, root=working())
    return dry_run_call(call, JobSpec.of(spec))


def dry_run_call(call: Call, spec: JobSpec) -> str:
    """Say what ``submit_call`` would send and start, and send nothing."""
    spec, notes = site.settled(spec), cautions(spec)
    # Comments, so that manifests can be pasted with what is said of them.
    lines = [f"# {call.label}", backend(spec.backend).dry_run(call, spec, describe(call, spec))]
    lines += [f"# note: {caution}" for caution in notes]
    lines += ["# ships:"] if call.ships or call.files else []
    lines += [f"#   {ship.name:<20} {ship.kind:<32} {ship.human}" for ship in call.ships]
    lines += [f"#   {file.path:<20} {'file':<32} {file.human}" for file in call.files]
    lines += ["# differs on ranks:"] if call.notes else []
    lines += [f"#   {note}" for note in call.notes]
    lines += [f"# not taken along: {each}" for each in settings.others()]
    return "\n".join(lines)


class TorchJobFunction(Generic[P, T]):
    """A function that runs as a job when it is called. On a rank it is the plain function again."""

    def __init__(self, fn: Callable[P, T], spec: JobSpec) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.spec = spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run as a job, wait, and give rank 0's value; raises as ``Job.result`` does."""
        found: T = self.submit(*args, **kwargs).result()
        return found

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Run as a job and give its handle at once."""
        return _submit(self.fn, args, kwargs, self.spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self.fn,)


def torchjob(
    spec: JobSpec | Launch | None = None,
) -> Callable[[Callable[P, T]], TorchJobFunction[P, T]]:
    """Decorate a function so that calling it runs it as a job: ``@torchjob(Elastic(nnodes=2))``."""
    checked = JobSpec.of(spec)
    return lambda fn: TorchJobFunction(fn, checked)
