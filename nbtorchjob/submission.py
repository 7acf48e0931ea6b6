"""The one way to send a captured call: check → prepare → say the notes → send.

    plan = check(spec)               the site and the backend accept the spec; raises SpecError
    sub = prepare(call, plan)        files, packages, images compared; raises CaptureError, LackingError
    sub.cautions, sub.notes          said by each front in its own way, once
    send(sub), keep(sub), send_runs(sub, rows)

Nothing is created anywhere before the last step. A dry run takes the same steps and describes their result.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob import capture
from nbtorchjob.backends import backend, naming, turns_of
from nbtorchjob.backends.base import Backend, Images, known_images
from nbtorchjob.capture import identity
from nbtorchjob.errors import JobNotFoundError, LackingError, NameTakenError, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.spec import grid, profiles
from nbtorchjob.spec.grid import Early
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import US, JobInfo, Origin, turns
from nbtorchjob.state.facts.events import CheckoutTold
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

# Imported late, here and below: capture's packages, files and comparisons, and the handles. A list of jobs
# needs none of them.
if TYPE_CHECKING:
    from nbtorchjob.capture import Call, Need
    from nbtorchjob.environment.images import Comparison, Contents
    from nbtorchjob.job import Job
    from nbtorchjob.labs import Lab
    from nbtorchjob.runs import Runs

_TRIES = 5
_MOST_TO_POOLS = 1 << 26  # bytes of shipped files


class Plan(FrozenDataclass):
    """A spec completed by the site and accepted by its backend.

    ``cautions`` name what will work, but not well. ``pool`` is the pool that the job will run in, if any.
    """

    spec: JobSpec
    backend: Backend
    cautions: tuple[str, ...]
    pool: Lab | None = None


class Submission(FrozenDataclass):
    """A call that is ready to be sent as its plan says; ``notes`` name what differs on the ranks."""

    call: Call
    plan: Plan
    notes: tuple[str, ...]

    @property
    def cautions(self) -> tuple[str, ...]:
        """What will work, but not well."""
        return self.plan.cautions


def check(spec: JobSpec, *, runs: bool = False) -> Plan:
    """Check a spec against the site's settings and its backend, before anything is captured.

    ``runs`` says that the spec is for the runs of a group. Raises ``SpecError`` for what the site has locked
    or limited, and for what the backend can't honour.
    """
    pool: Lab | None = None
    named = spec.name
    if spec.pool is not None:
        from nbtorchjob import pools

        # For runs, the name is their group's.
        spec, pool = pools.placed(dataclasses.replace(spec, name=None) if runs else spec)
        spec = dataclasses.replace(spec, name=named) if runs else spec
    spec = profiles.admitted(spec)
    if spec.package or spec.requirements:
        from nbtorchjob.capture import packages

        packages.check(spec)
    spec.secrets()
    chosen = backend(spec.backend)
    accepted = chosen.check(spec) if pool is None else ()  # the backend accepted the pool's options already
    return Plan(spec, chosen, (*accepted, *identity.cautions(spec)), pool)


def cautions(spec: JobSpec) -> tuple[str, ...]:
    """Return what will work, but not well; raises as :func:`check` does.

    Empty for a job in a pool, which would have to be looked up: a panel calls this at each change of a field.
    """
    return check(spec).cautions if spec.pool is None else ()


def prepare(call: Call, plan: Plan) -> Submission:
    """Add the files and packages that the spec names to a call, and compare what it needs with its images.

    Raises ``CaptureError`` for a file that can't be sent, ``SubmitError`` for a project that can't be built,
    and ``LackingError`` for a call that can't run in one of the images, or that ``strict`` refuses.
    """
    call = _with_files(call, plan)
    if plan.pool is None:  # a pool has its packages already
        with interrupts.message(interrupts.NOTHING):  # a build takes seconds
            call = _provided(call, plan.spec)
    # Note what the images lack, or have in other versions, as far as that is known
    from nbtorchjob.environment import images

    spec, differences = plan.spec, []
    for contents in known_images(plan.backend, spec):
        comparison = _compared(call.needs, contents, spec, call.text, call.packages.names)
        refusal = comparison.refusal(
            f"the image {contents.image}", strict=bool(spec.strict), uncompilable=call.uncompilable
        )
        if not refusal and (why := images.too_new(call.packages.wheels, contents.environment)):
            refusal = f"the image {contents.image} {why}"
        if refusal:
            ago = words.about(max(0.0, time.time() - contents.time))
            again = hint("doctor", "--probe")
            raise LackingError(f"{refusal} (inspected {ago} ago: {again} inspects it again)")
        differences += [f"{comparison.image} {comparison.line}"] if comparison.line else []
        if spec.cluster.gpu and comparison.cuda:
            differences.append(f"{comparison.image} {comparison.cuda}")
    versions = [contents.environment.minor for contents in known_images(plan.backend, plan.spec)]
    # If every image has this Python, its bytecode is enough.
    same = len(versions) == len(plan.spec.images) and set(versions) == {capture.PYTHON}
    call = dataclasses.replace(call, sourced=not same)
    shipped = (*plan.spec.ship, *(plan.pool.info.jobspec.ship if plan.pool is not None else ()))
    missing = missing_files(call, dataclasses.replace(plan.spec, ship=shipped))
    return Submission(call, plan, (*call.notes_on(plan.spec.max_ranks), *differences, *missing))


def send(
    sub: Submission, origin: Origin | None = None, say: Callable[[str], object] = lambda text: None
) -> Job[Any]:
    """Send a call as a job; ``origin`` is the notebook and cell that it comes from.

    ``say`` is called with the reason if the call has to wait for its pool.

    Raises ``SubmitError``, and ``NameTakenError`` if another job of the given name runs; either way, nothing
    is left behind.
    """
    from nbtorchjob.job import Job

    call, spec, chosen = sub.call, sub.plan.spec, sub.plan.backend
    if spec.lab or sub.plan.pool is not None:
        call = dataclasses.replace(call, by=identity.owner(call, origin or Origin()))
    if sub.plan.pool is not None:
        return sub.plan.pool.send_job(call, spec, origin or Origin(), say=say)
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            info = describe(call, spec, origin)
            with interrupts.message(interrupts.NOTHING):  # an interrupted backend undoes what it made
                sent = chosen.submit(call, spec, info)
            if sent.run == info.run:
                _record_checkout(chosen, sent)
            return Job(chosen, sent, joined=sent.run != info.run)
        except NameTakenError:
            # A generated name is taken once in half a million: generate another one.
            if spec.name is not None or last:
                raise
    raise AssertionError("unreachable")


def _record_checkout(chosen: Backend, sent: JobInfo) -> None:
    """Record the git state of the notebook's folder, in the background."""
    from nbtorchjob.environment import git

    folder = Path(sent.notebook).parent if os.path.isabs(sent.notebook) else working()

    def note(checkout: git.Checkout) -> None:
        chosen.note(sent, CheckoutTold(time.time(), **vars(checkout)))

    git.looker.look(folder, note)


def submit(call: Call, spec: JobSpec, origin: Origin | None = None) -> Job[Any]:
    """Check, prepare and send a captured call; its notes are dropped."""
    return send(prepare(call, check(spec)), origin)


def keep(sub: Submission, origin: Origin | None = None) -> Lab:
    """Start a lab whose first turn is the call; raises as :func:`send` does."""
    from nbtorchjob.job import newest_run
    from nbtorchjob.labs import Lab

    chosen, name = sub.plan.backend, sub.plan.spec.name
    if name is not None:
        with contextlib.suppress(JobNotFoundError):
            state = newest_run(chosen, name)
            if not state.phase.terminal:
                if state.info.is_pool:
                    noun, more = "a pool", f"--pool {name} runs a job there, {hint('end', name)} ends it"
                elif state.info.lab is not None:
                    noun, more = "a lab", f"--on {name} runs a cell on it, {hint('end', name)} ends it"
                else:
                    noun, more = "a job", f"choose another name, or {hint('cancel', name)}"
                raise NameTakenError(f"there is {noun} named {name}, which is {state.phase.word}: {more}")
    return Lab(chosen, send(sub, origin).info)


def send_runs(
    sub: Submission,
    rows: Sequence[Mapping[str, Any]],
    origin: Origin | None = None,
    *,
    at_once: int | None = None,
    early: Early | None = None,
) -> Runs[Any]:
    """Send a call as the runs of a group, one for each of ``rows``, which :func:`checked_rows` has checked.

    They share one payload; in a pool each run has its own. Raises as :func:`send` does, and then
    leaves nothing behind.
    """
    from nbtorchjob.capture import arguments as varying
    from nbtorchjob.job import Job
    from nbtorchjob.runs import Runs

    if sub.plan.pool is not None:
        return _send_runs_to(sub.plan.pool, sub, rows, origin, at_once, early)
    spec, chosen = sub.plan.spec, sub.plan.backend
    call = sub.call
    with interrupts.message(interrupts.NOTHING):
        sourced = call.sourced and spec.remote
        pickles = [varying.pickled(row, sourced=sourced) for row in rows]
        own = call.parameters
        shared = tuple(ship for ship in call.ships if ship.name not in own)
        first = describe(dataclasses.replace(call, ships=shared), spec, origin)
        group = _free_group(chosen, spec.name) if spec.name is not None else first.name
        label = call.label.partition("(")[0]
        infos = []
        for number, (row, pickle) in enumerate(zip(rows, pickles, strict=True), 1):
            name, shown = naming.in_group(group, number), varying.shown(row)
            infos.append(
                dataclasses.replace(
                    first,
                    name=name,
                    spec={**first.spec, "name": name},
                    # Runs that share a key are distinguished by their creation time.
                    created=first.created + number * 1e-5,
                    label=f"{label}({varying.as_text(shown)})",
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


def _send_runs_to(
    pool: Lab,
    sub: Submission,
    rows: Sequence[Mapping[str, Any]],
    origin: Origin | None,
    at_once: int | None,
    early: Early | None,
) -> Runs[Any]:
    """Send a call to a pool as the runs of a group."""
    from nbtorchjob.capture import arguments as varying
    from nbtorchjob.runs import Runs

    call, spec, origin = sub.call, sub.plan.spec, origin or Origin()
    by, label = identity.owner(call, origin), call.label.partition("(")[0]
    pickles = [varying.pickled(row, sourced=call.sourced) for row in rows]
    if spec.name is not None:
        from nbtorchjob import pools

        group = _free_group(sub.plan.backend, spec.name, [turn for _, turn in pools.runs()])
    else:
        cell_label = origin.labels.get(call.filename, "")
        group = naming.generate(naming.title(call.label, origin.notebook, cell_label))
    early_ = early.record() if early is not None else {}
    jobs: list[Job[Any]] = []
    try:
        for number, (row, pickle) in enumerate(zip(rows, pickles, strict=True), 1):
            shown = varying.shown(row)
            run = {"group": group, "number": number, "given": shown, "at_once": at_once, "early": early_}
            called = dataclasses.replace(call, label=f"{label}({varying.as_text(shown)})", by=by)
            jobs.append(
                pool.send_job(called, dataclasses.replace(spec, name=None), origin, run=run, variant=pickle)
            )
    except BaseException:
        for job in reversed(jobs):
            job.cancel()
        raise
    return Runs(group, turns_of(pool.info), jobs)


def checked_rows(values: Iterable[Mapping[str, Any]], at_once: int | None = None) -> list[dict[str, Any]]:
    """Return the values of each run of a group, all with the same names; raises ``SpecError``."""
    rows: list[dict[str, Any]] = []
    for row in values:
        try:
            rows.append(dict(row))
        except (TypeError, ValueError):
            raise SpecError("given", row, "a mapping of names to values for each run") from None
    if not rows:
        raise SpecError("given", rows, "one mapping of names to values per run")
    if not all(rows):
        raise SpecError("given", {}, "at least one name with a value per run")
    for row in rows:
        if row.keys() != rows[0].keys():
            raise SpecError("given", [*row], f"the same names in each run: {', '.join(rows[0])}")
    if len(rows) > grid.MOST:
        raise SpecError("given", len(rows), f"at most {grid.MOST:,} runs")
    if at_once is not None and (not isinstance(at_once, int) or at_once < 1):
        raise SpecError("at_once", at_once, "a number of runs, 1 or more")
    return rows


def _free_group(chosen: Backend, name: str, in_pools: Sequence[turns.Turn] = ()) -> str:
    """Return a name for a new group: the given one, with a number appended if an ended group has it.

    Raises ``NameTakenError`` while runs of that group are still going on.
    """
    naming.in_group(name, 1)
    job_names = set(chosen.names())
    for number in itertools.count(1):
        group = name if number == 1 else f"{name[: naming.MOST_GROUP - 6]}-{number}"
        before = [job for job in job_names if naming.is_in_group(job, group)]
        over = [turn.over for turn in in_pools if turn.group == group]
        if not before and not over:
            return group
        running = over.count(False) + sum(not state.phase.terminal for state in chosen.several(before))
        if running:
            count = f"{words.count(running, 'run')} of {group} {'has' if running == 1 else 'have'}n't ended"
            raise NameTakenError(f"{count}: {hint('cancel', group)} ends them, or choose another --name")
    raise AssertionError("unreachable")


def describe(call: Call, spec: JobSpec, origin: Origin | None = None) -> JobInfo:
    """Return the record of a job, as it stands at submission."""
    origin = origin or Origin()
    launch = spec.launch
    policy = launch.run_policy
    cell_label = origin.labels.get(call.filename, "")
    return JobInfo(
        name=spec.name or naming.generate(naming.title(call.label, origin.notebook, cell_label)),
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
        sources={name: (origin.labels.get(name, name), text) for name, text in call.sources.items()},
        captured=capture.captured(call),
        spec=spec.to_json(),
        notebook=origin.notebook,
        cell=origin.cell,
        began=call.began,
        lab=spec.idle_s if spec.lab else None,
        python=capture.PYTHON,
        promoted=call.promoted,
    )


def dry_run(call: Call, spec: JobSpec, *, runs: bool = False) -> str:
    """Describe what :func:`send`, or :func:`send_runs` for one run, would send and start; send nothing."""
    plan = check(spec, runs=runs)
    call = _provided(_with_files(call, plan), plan.spec)
    if plan.pool is not None:
        return f"# {call.label}\non the pool {plan.pool.name}: {words.ranks(turns.ranks(plan.pool.state))}"
    manifests = plan.backend.dry_run(call, plan.spec, describe(call, plan.spec))
    # The rest as comments, so that the text can be pasted as manifests.
    lines = [f"# {call.label}", manifests]
    lines += [f"# note: {caution}" for caution in plan.cautions]
    lines += ["# ships:"] if call.ships or call.files else []
    lines += [f"#   {ship.name:<20} {ship.type:<32} {ship.human}" for ship in call.ships]
    lines += [f"#   {file.path:<20} {'file':<32} {file.human}" for file in call.files]
    # The table of what a call needs; for a job on this machine there is nothing to compare
    for comparison in images_of(plan.spec, call.needs, call.text, call.packages.names):
        unknown = f"; the image's packages are unknown until its first job, or {hint('doctor', '--probe')}"
        if comparison.rows:
            lines.append(f"# needs{unknown if comparison.target is None else ':'}")
        lines += [f"#   {row}" for row in comparison.lines()]
        refusal = comparison.refusal(
            comparison.image, strict=bool(plan.spec.strict), uncompilable=call.uncompilable
        )
        lines += [f"# would be refused: {refusal}"] if refusal else []
    lines += ["# installs:"] if call.packages else []
    lines += [f"#   {line}" for line in (*call.packages.requirements, *call.packages.exactly)]
    lines += [f"#   {wheel.name:<53} {wheel.human}" for wheel in call.packages.wheels]
    notes = (*call.notes_on(plan.spec.max_ranks), *missing_files(call, plan.spec))
    lines += ["# differs on ranks:"] if notes else []
    lines += [f"#   {note}" for note in notes]
    return "\n".join(lines)


def images_of(
    spec: JobSpec, needs: Sequence[Need], text: str = "", package_names: Collection[str] = ()
) -> list[Comparison]:
    """Compare needs with the known contents of each image of a spec; empty on a backend without images.

    ``text`` is the cell's text, which may request packages; ``package_names`` are those that a call brings.
    """
    chosen = backend(spec.backend)
    if not isinstance(chosen, Images):
        return []
    all_contents = known_images(chosen, spec) or (None,)
    return [_compared(needs, contents, spec, text, package_names) for contents in all_contents]


def _compared(
    needs: Sequence[Need], contents: Contents | None, spec: JobSpec, text: str, package_names: Collection[str]
) -> Comparison:
    """Compare needs with the known contents of one image."""
    from nbtorchjob.capture import packages
    from nbtorchjob.environment import images, interpreter

    environment = contents.environment if contents is not None else None
    pinned = packages.pinned(needs, spec, text).union(package_names)
    comparison = images.compared(needs, interpreter.environment(), environment, [*pinned])
    if contents is None or len(spec.images) == 1:
        return comparison
    return dataclasses.replace(comparison, image=f"the image {contents.image}")


def _with_files(call: Call, plan: Plan) -> Call:
    """Return a call with the files and data that its spec names; unchanged if it has them already."""
    spec = plan.spec
    if spec.data and not call.data and plan.pool is None:  # a pool has its data already
        from nbtorchjob.capture import shipped

        shipped.check_data(spec, working())
        call = dataclasses.replace(call, data=shipped.collect_data(spec, working()))
    if not spec.ship or call.shipped:
        return call
    from nbtorchjob.capture import shipped

    # Files for a pool are sent to its nodes, not through a store.
    limit = plan.backend.most_shipped(spec) if plan.pool is None else _MOST_TO_POOLS
    return call.with_files(shipped.collect(spec.ship, working(), limit=limit, hashed=spec.remote))


def missing_files(call: Call, spec: JobSpec) -> tuple[str, ...]:
    """Return a note on the files beside the notebook that a call opens and its ranks won't have."""
    if not spec.remote:
        return ()
    from nbtorchjob.capture import imported

    return imported.not_shipped(call, working(), spec.ship)


def _provided(call: Call, spec: JobSpec) -> Call:
    """Return a call with the packages that its nodes will install."""
    from nbtorchjob.capture import packages

    return packages.provided(call, spec)
