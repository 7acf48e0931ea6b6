"""Where the pieces meet: submit, attach, jobs, dry_run, and the decorator."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import itertools
import os
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from nbtorchjob import backends, capture
from nbtorchjob.backends import backend, backend_of, naming
from nbtorchjob.backends.base import Backend, Finding, Leftover, Summary, Tended
from nbtorchjob.capture import origin
from nbtorchjob.errors import (
    JobNotFoundError,
    LackingError,
    NameTakenError,
    NBTorchJobError,
    SpecError,
)
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.payload import identity, settings
from nbtorchjob.spec import grid, profiles, site
from nbtorchjob.spec.config import Launch
from nbtorchjob.spec.early import Early
from nbtorchjob.spec.jobspec import BACKENDS, JobSpec
from nbtorchjob.state import US, JobInfo, JobState, Origin, turns
from nbtorchjob.state.events import CheckoutTold
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.capture import Call, Need
    from nbtorchjob.environment.compare import Comparison
    from nbtorchjob.environment.images import Contents
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab
    from nbtorchjob.runs import Runs

P = ParamSpec("P")
T = TypeVar("T")
_TRIES = 5


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
    prepared = prepare(spec)
    for caution in prepared.cautions:
        warnings.warn(caution, stacklevel=3)
    with interrupts.told(interrupts.NOTHING):
        call = capture.from_function(fn, args, kwargs, root=working())
        call = with_files(call, prepared)
    for note in (*call.notes, *differences(call, prepared), *lacking(call, prepared.spec)):
        warnings.warn(note, stacklevel=3)
    return submit_call(call, prepared, origin.here(call.sources))


class Prepared(FrozenDataclass):
    """A spec as it is sent: what it left open the site has filled, and its backend has agreed to it.

    ``cautions`` say what will work, but not well.
    """

    spec: JobSpec
    backend: Backend
    cautions: tuple[str, ...]


def prepare(spec: JobSpec) -> Prepared:
    """Make a spec ready to be sent, once a submission; every way of submitting comes through here.

    Raises ``SpecError`` for what the site has locked or limited, and for what the backend can't honour.
    """
    spec = site.admitted(spec)
    if spec.package or spec.requirements:
        from nbtorchjob.capture import packages  # late: few jobs ask for any

        packages.check(spec)
    chosen = backend(spec.backend)
    return Prepared(spec, chosen, (*chosen.check(spec), *settings.cautions(spec)))


def _compared(needs: Sequence[Need], known: Contents | None, spec: JobSpec, text: str = "") -> Comparison:
    """Compare what is needed with what an image is known to have."""
    from nbtorchjob.capture import packages
    from nbtorchjob.environment import compare, here  # late: most of what the command does compares nothing

    there = known.environment if known is not None else None
    found = compare.compared(needs, here.environment(), there, [*packages.pinned(needs, spec, text)])
    if known is None or len(spec.images) == 1:
        return found
    return dataclasses.replace(found, image=f"the image {known.image}")


def differences(call: Call, prepared: Prepared) -> list[str]:
    """Note what its images lack, or have in other versions, as far as that is known.

    Raises ``LackingError`` where the call can't run there, or isn't to: nothing was sent.
    """
    from nbtorchjob.environment import compare  # late, as above

    spec, notes = prepared.spec, []
    for known in prepared.backend.there(spec):
        found = _compared(call.needs, known, spec, call.text)
        refusal = found.refusal(f"the image {known.image}", strict=bool(spec.strict))
        if not refusal and (why := compare.too_new(call.wanted.wheels, known.environment)):
            refusal = f"the image {known.image} {why}"
        if refusal:
            ago = words.about(max(0.0, time.time() - known.told))
            again = hint("doctor", "--probe")
            raise LackingError(f"{refusal} (it was asked {ago} ago: {again} asks it again)")
        notes += [f"{found.image} {found.line}"] if found.line else []
        if spec.cluster.gpu and found.cuda:
            notes.append(f"{found.image} {found.cuda}")
    return notes


def with_files(call: Call, prepared: Prepared) -> Call:
    """Return a call with the files that its spec names; one that has them is left as it is.

    Raises ``CaptureError`` for what can't go along.
    """
    spec = prepared.spec
    if not spec.ship or call.shipped:
        return call
    from nbtorchjob.capture import shipped  # late: most jobs ship nothing

    limit, far = prepared.backend.most_shipped(spec), spec.backend != "local"
    return call.with_files(shipped.collect(spec.ship, working(), limit=limit, hashed=far))


def lacking(call: Call, spec: JobSpec) -> tuple[str, ...]:
    """Return a note of the files beside the notebook that a call opens, and that its ranks won't find."""
    if spec.backend == "local":
        return ()
    from nbtorchjob.capture import opened  # late: on this machine they are there

    return opened.not_shipped(call, working(), spec.ship)


def submit_call(call: Call, spec: JobSpec | Prepared, written: Origin | None = None) -> Job[Any]:
    """Submit a captured call; ``written`` says in which notebook and cell."""
    from nbtorchjob.job import Job  # late, here and below: a list of jobs has no use for a handle

    prepared = spec if isinstance(spec, Prepared) else prepare(spec)
    call = with_files(call, prepared)
    spec, chosen = prepared.spec, prepared.backend
    differences(call, prepared)  # whoever shows them has done so
    if spec.lab:
        call = dataclasses.replace(call, by=identity.whose(call, written or Origin()))
    with interrupts.told(interrupts.NOTHING):
        call = provided(call, spec)
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            info = describe(call, spec, written)
            with interrupts.told(interrupts.NOTHING):  # which a backend that was interrupted has seen to
                sent = chosen.submit(call, spec, info)
            if sent.run == info.run:
                _look_at_checkout(chosen, sent)
            return Job(chosen, sent, joined=sent.run != info.run)
        except NameTakenError:
            # A made-up name is taken once in half a million: make up another one.
            if spec.name is not None or last:
                raise
    raise AssertionError("unreachable")


def provided(call: Call, spec: JobSpec) -> Call:
    """Return a call with what its nodes are to install; raises as :func:`submit` does."""
    from nbtorchjob.capture import packages  # late, as above

    return packages.provided(call, spec)


def _look_at_checkout(chosen: Backend, info: JobInfo) -> None:
    """Have it noted what git says of the notebook's folder, beside the job, which waits for nothing."""
    from nbtorchjob.environment import git  # late, as above

    folder = Path(info.notebook).parent if os.path.isabs(info.notebook) else working()

    def note(found: git.Checkout) -> None:
        chosen.note(info, CheckoutTold(time.time(), **vars(found)))

    git.looker.look(folder, note)


def describe(call: Call, spec: JobSpec, written: Origin | None = None) -> JobInfo:
    """Return what is written down of a job at submission."""
    written = written or Origin()
    launch = spec.launch
    policy = launch.run_policy
    return JobInfo(
        name=spec.name or naming.generate(call.label),
        backend=spec.backend,
        created=time.time(),
        label=call.label,
        nodes=(launch.min_nodes, launch.max_nodes),
        nproc_per_node=launch.nproc_per_node,
        max_restarts=launch.max_restarts,
        ships=capture.ships_line(call),
        all_ranks=spec.all_ranks,
        ttl_s=policy.ttl_seconds_after_finished if policy else None,
        grace_s=spec.grace,
        deadline_s=policy.active_deadline_seconds if policy else None,
        leave_before_s=policy.leave_before if policy else None,
        start_within_s=policy.patience_s if policy else None,
        retry_owner=US if spec.retry else "",
        sources={name: (written.labels.get(name, name), text) for name, text in call.sources.items()},
        captured=capture.captured(call),
        spec=spec.to_json(),
        notebook=written.notebook,
        cell=written.cell,
        began=call.began,
        lab=spec.idle_s if spec.lab else None,
        python=capture.PYTHON,
        promoted=call.promoted,
    )


def keep(
    spec: JobSpec | Launch | None = None, *, name: str | None = None, idle: float | str | None = None
) -> Lab:
    """Start a lab: a job whose ranks stay, and run one function after the other (``Lab.run``).

    What one of them leaves in the ranks' globals the next one finds. ``name`` is what others take hold of it
    by; ``idle`` is how long it may wait for a call before it ends, by default as the spec has it. Raises as
    :func:`submit` does, and ``NameTakenError`` where a lab or another job of that name runs.
    """
    asked = dataclasses.replace(JobSpec.of(spec), lab=True)
    if name is not None:
        asked = dataclasses.replace(asked, name=name)
    if idle is not None:
        asked = dataclasses.replace(asked, idle=idle)
    call = capture.from_cell("pass", {}, filename=turns.KEEP, root=working())
    call = dataclasses.replace(call, label="keep()")
    return keep_call(call, prepare(asked))


def keep_call(call: Call, prepared: Prepared, written: Origin | None = None) -> Lab:
    """Start a lab that begins with a captured call."""
    from nbtorchjob.labs import Lab  # late, as above

    if prepared.spec.name is not None:
        _refuse_running(prepared)
    job = submit_call(call, prepared, written)
    return Lab(prepared.backend, job.info)


def _refuse_running(prepared: Prepared) -> None:
    name = prepared.spec.name
    assert name is not None
    with contextlib.suppress(JobNotFoundError):
        found = newest_run(prepared.backend, name)
        if not found.phase.terminal:
            what = "a lab" if found.info.lab is not None else "a job"
            use = f"--on {name} runs a cell on it, {hint('end', name)} ends it"
            more = use if found.info.lab is not None else f"choose another name, or {hint('cancel', name)}"
            raise NameTakenError(f"there is {what} named {name}, which is {found.phase.value}: {more}")


def newest_run(chosen: Backend, name: str) -> JobState:
    """Return what is known of a job of a given name: of several runs the one that goes on, or the last."""
    runs = [each for each in chosen.names() if naming.is_run(each, name)] or [name]
    states = [chosen.known(each) for each in runs]
    return next((state for state in reversed(states) if not state.phase.terminal), states[-1])


def lab(name: str, *, trust: bool = False) -> Lab:
    """Take hold of a lab, in any kernel, by its name or its id.

    Raises ``JobNotFoundError`` with near names, and ``SpecError`` where that job is no lab.
    """
    from nbtorchjob.labs import Lab  # late, as above

    job = attach(name, trust=trust)
    chosen, info = backend(job.info.backend), job.info
    if info.name == name and (info.lab is None or Lab(chosen, info).state.phase.terminal):
        info = chosen.info(newest_run(chosen, name).info.address)
    if info.lab is None:
        raise SpecError("on", name, "a lab, as --keep NAME starts it: this job's ranks don't stay")
    return Lab(chosen, info, trust=trust)


def cautions(spec: JobSpec) -> list[str]:
    """Return what will work, but not well; raise ``SpecError`` for what the backend can't honour."""
    return [*prepare(spec).cautions]


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
    for each, known_as in [(asked, address)] if asked in BACKENDS else [(each, name) for each in BACKENDS]:
        try:
            there = backend_of(each, known_as)
            return Job(there, there.info(known_as), trust=trust)
        except JobNotFoundError:
            continue
    import difflib  # late: a name that is known needs none

    known = job_names()
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[-3:]
    others = f"did you mean {', '.join(near)}?" if near else "there are no jobs."
    if name in known:  # and not where the settings say
        others = "there is one in another namespace than that of the settings, called NAMESPACE/NAME."
    raise JobNotFoundError(f"there is no job named {name!r}; {others} See {hint('list')}")


def retry(name: str) -> Job[Any]:
    """Run what an ended job ran once more; raises as :func:`attach` and ``Job.retry`` do."""
    return attach(name).retry()


def snapshot(name: str) -> JobState:
    """Return all that is known of one job now; raises as :func:`attach` does."""
    job = attach(name)
    return backend_of(job.info.backend, job.info.address).snapshot(job.info.address)


def job_names() -> list[str]:
    """Return every job's name, oldest first on each backend; warns as :func:`jobs` does."""
    found: list[str] = []
    for each in backends.used():
        found += _asked(each.names)
    return found


def jobs(*, everyone: bool = False) -> list[JobState]:
    """Return what is known of every job now, oldest first; with ``everyone`` other users' too.

    A cluster that doesn't answer is a warning: what is known of the rest is given all the same.
    """
    found: list[JobState] = []
    for each in backends.used():
        found += _asked(each.jobs, everyone=everyone)
    return sorted(found, key=lambda state: state.info.created)


def summaries(make: Callable[[JobState, float], Summary], *, everyone: bool = False) -> list[Summary]:
    """Return what ``make`` makes of every job now, oldest first by "created"; warns as :func:`jobs` does.

    Of jobs that have ended it may be what was made before (``Backend.summaries``).
    """
    found: list[Summary] = []
    for each in backends.used():
        found += _asked(each.summaries, make, everyone=everyone)
    return sorted(found, key=lambda summary: summary["created"])


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
    return [(each, left) for each in backends.used() for left in each.leftovers()]


def enforcement(info: JobInfo) -> Mapping[str, str]:
    """Return who enforces each policy and budget of a job, by the name of its field."""
    return backend(info.backend).enforcement(info)


def tended(info: JobInfo) -> Tended | None:
    """Return who looks after a job; None where nobody need, or it can't be told."""
    return backend(info.backend).tended(info)


def doctor(spec: JobSpec | Launch | None = None, needs: Sequence[Need] = ()) -> list[Finding]:
    """Look at all that a job of ``spec`` would need, and say what is missing.

    ``needs`` are what the code of its user imports; those that the image lacks are no fault.
    """
    checked = site.admitted(JobSpec.of(spec))
    chosen = backend(checked.backend)
    found = chosen.doctor(checked)
    for rows in images_of(checked, needs):
        if rows.rows:
            found.append(Finding(True, f"what is imported here: {rows.summary}", "\n".join(rows.lines())))
    return found


def images_of(spec: JobSpec, needs: Sequence[Need], text: str = "") -> list[Comparison]:
    """Compare needs with what each image of a spec is known to have; none on a backend that has no images.

    ``text`` is the cell's, which may ask for packages.
    """
    chosen = backend(spec.backend)
    known = chosen.there(spec) or (None,)
    return [_compared(needs, each, spec, text) for each in known] if chosen.has_images else []


def probe(spec: JobSpec | Launch | None = None) -> None:
    """Ask the image of a job of ``spec`` what it has, by a job of seconds: ``doctor`` knows it from then on.

    Raises ``SpecError`` on a backend that has no images, and ``NBTorchJobError`` where it can't be asked.
    """
    from nbtorchjob.backends import probing  # late: most of what the command does follows nothing

    asked = JobSpec.of(spec)
    if not backend(asked.backend).has_images:
        raise SpecError("probe", asked.backend, "a backend with images: jobs here run this very Python")
    call = dataclasses.replace(capture.from_cell("None", {}), label="doctor --probe")
    for image in asked.images:
        prepared = prepare(probing.small(asked, image))
        probing.ask(prepared.backend, submit_call(call, prepared).info)


def dry_run(
    fn: Callable[..., Any], /, *args: Any, spec: JobSpec | Launch | None = None, **kwargs: Any
) -> str:
    """Describe what ``submit`` would send and start, and send nothing. Raises as ``submit`` does."""
    call = capture.from_function(fn, args, kwargs, root=working())
    return dry_run_call(call, JobSpec.of(spec))


def dry_run_call(call: Call, spec: JobSpec) -> str:
    """Describe what ``submit_call`` would send and start, and send nothing."""
    prepared = prepare(spec)
    call = provided(with_files(call, prepared), prepared.spec)
    told = prepared.backend.dry_run(call, prepared.spec, describe(call, prepared.spec))
    # Comments, so that manifests can be pasted with what is said of them.
    lines = [f"# {call.label}", told]
    lines += [f"# note: {caution}" for caution in prepared.cautions]
    lines += ["# ships:"] if call.ships or call.files else []
    lines += [f"#   {ship.name:<20} {ship.type:<32} {ship.human}" for ship in call.ships]
    lines += [f"#   {file.path:<20} {'file':<32} {file.human}" for file in call.files]
    lines += _needs(call, prepared)
    lines += ["# installs:"] if call.wanted else []
    lines += [f"#   {line}" for line in (*call.wanted.requirements, *call.wanted.exactly)]
    lines += [f"#   {wheel.name:<53} {wheel.human}" for wheel in call.wanted.wheels]
    notes = (*call.notes, *lacking(call, prepared.spec))
    lines += ["# differs on ranks:"] if notes else []
    lines += [f"#   {note}" for note in notes]
    lines += [f"# not taken along: {each}" for each in settings.others()]
    return "\n".join(lines)


def _needs(call: Call, prepared: Prepared) -> list[str]:
    """Return the table of what a call needs; of a job on this machine there is nothing to compare."""
    lines = []
    for found in images_of(prepared.spec, call.needs, call.text):
        unknown = f"; what the image has isn't known: its first job tells, or {hint('doctor', '--probe')}"
        if found.rows:
            lines.append(f"# needs{unknown if found.there is None else ':'}")
        lines += [f"#   {row}" for row in found.lines()]
        refusal = found.refusal(found.image, strict=bool(prepared.spec.strict))
        lines += [f"# wouldn't be sent: {refusal}"] if refusal else []
    return lines


def map(
    fn: Callable[..., T],
    given: Iterable[Mapping[str, Any]],
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
    """Run ``fn(**each)`` as a job for each of ``given``; return their handles at once.

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
    prepared = prepare(JobSpec.of(spec))
    rows = checked_rows(given, at_once)
    for caution in prepared.cautions:
        warnings.warn(caution, stacklevel=2)
    with interrupts.told(interrupts.NOTHING):
        call = capture.from_function(fn, root=working(), given=rows[0])
        call = with_files(call, prepared)
    for note in (*call.notes, *differences(call, prepared), *lacking(call, prepared.spec)):
        warnings.warn(note, stacklevel=2)
    return submit_runs(call, rows, prepared, origin.here(call.sources), at_once=at_once, early=early)


def checked_rows(given: Iterable[Mapping[str, Any]], at_once: int | None = None) -> list[dict[str, Any]]:
    """Return what runs are given, each with the same names; raises ``SpecError``."""
    rows = [dict(row) for row in given]
    if not rows:
        raise SpecError("given", rows, "one mapping of names to values for each run: there are none")
    if not all(rows):
        raise SpecError("given", {}, "at least one name with its value for each run")
    for row in rows:
        if row.keys() != rows[0].keys():
            raise SpecError("given", [*row], f"the same names for each run: {', '.join(rows[0])}")
    if len(rows) > grid.MOST:
        raise SpecError("given", len(rows), f"at most {grid.MOST:,} runs")
    if at_once is not None and (not isinstance(at_once, int) or at_once < 1):
        raise SpecError("at_once", at_once, "a number of runs, 1 or more")
    return rows


def submit_runs(
    call: capture.Call,
    given: Sequence[Mapping[str, Any]],
    prepared: Prepared,
    written: Origin | None = None,
    *,
    at_once: int | None = None,
    early: Early | None = None,
) -> Runs[Any]:
    """Submit a captured call as the runs of a group, one for each of ``given``."""
    from nbtorchjob.job import Job  # late, as above
    from nbtorchjob.runs import Runs

    spec, chosen = prepared.spec, prepared.backend
    call = with_files(call, prepared)
    differences(call, prepared)  # whoever shows them has done so
    with interrupts.told(interrupts.NOTHING):
        call = provided(call, spec)
        from nbtorchjob.capture import given as varying  # late: who lists jobs captures nothing

        pickles = [varying.pickled(row) for row in given]
        own = call.given
        shared = tuple(ship for ship in call.ships if ship.name not in own)
        first = describe(dataclasses.replace(call, ships=shared), spec, written)
        group = _free(chosen, spec.name) if spec.name is not None else first.name
        what = call.label.partition("(")[0]
        infos = []
        for number, (row, pickle) in enumerate(zip(given, pickles, strict=True), 1):
            name, shown = naming.in_group(group, number), varying.shown(row)
            infos.append(
                dataclasses.replace(
                    first,
                    name=name,
                    spec={**first.spec, "name": name},
                    # What tells them apart who have one key: no two of them were sent at the same moment.
                    created=first.created + number * 1e-5,
                    label=f"{what}({varying.said(shown)})",
                    captured={**(first.captured or {}), **{name: (str(shown[name]), "") for name in own}},
                    group=group,
                    number=number,
                    given=shown,
                    variant=base64.b64encode(pickle).decode(),
                    at_once=at_once,
                    early=early.record() if early is not None else {},
                )
            )
        sent = chosen.submit_runs(call, spec, infos)
    return Runs(group, chosen, [Job(chosen, info) for info in sent])


def _free(chosen: Backend, asked: str) -> str:
    """Return the name of a new group: the one that is asked for, or with a number if it has ended already."""
    naming.in_group(asked, 1)
    taken = set(chosen.names())
    for number in itertools.count(1):
        group = asked if number == 1 else f"{asked[: naming.MOST_GROUP - 6]}-{number}"
        before = [name for name in taken if naming.is_in_group(name, group)]
        if not before:
            return group
        going = sum(not state.phase.terminal for state in chosen.several(before))
        if going:
            told = f"{words.count(going, 'run')} of {group} {'has' if going == 1 else 'have'}n't ended"
            raise NameTakenError(f"{told}: {hint('cancel', group)} ends them, or choose another --name")
    raise AssertionError("unreachable")


def group(name: str, *, trust: bool = False) -> Runs[Any]:
    """Take hold of a group of runs again, in any kernel, by its name; raises ``JobNotFoundError``."""
    from nbtorchjob.runs import Runs  # late, as above

    jobs = grouped(name, trust=trust)
    newest = {job.info.number: job for job in sorted(jobs, key=lambda job: job.info.created)}
    return Runs(name, backend(jobs[0].info.backend), [newest[number] for number in sorted(newest)])


def grouped(name: str, *, trust: bool = False) -> list[Job[Any]]:
    """Return all jobs of a group, also those that were retried since; raises ``JobNotFoundError``."""
    from nbtorchjob.job import Job  # late, as above

    for each in backends.used():
        infos = [each.info(known) for known in each.names() if naming.is_in_group(known, name)]
        found: list[Job[Any]] = [Job(each, info, trust=trust) for info in infos if info.group == name]
        if found:
            return found
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

    def map(self, given: Iterable[Mapping[str, Any]], **more: Any) -> Runs[T]:
        """Run as a job for each of ``given``, as :func:`nbtorchjob.map` does, which takes the same."""
        return map(self.fn, given, spec=self.spec, **more)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (self.fn,)


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
