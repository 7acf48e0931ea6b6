"""The verbs that wait for a job or return its value: ``run``, ``attach``, ``retry``, ``result``, ``logs``.

A cell may make many jobs: they are sent and followed together, and found again by their group's name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from nbtorchjob import api, submission
from nbtorchjob.commands import swapping
from nbtorchjob.commands.front import (
    Answer,
    EditedCell,
    Find,
    Front,
    LogRequest,
    OnLab,
    ParsedArgs,
    RunRequest,
    of_cell,
    remember,
)
from nbtorchjob.errors import (
    ClusterError,
    JobNotFoundError,
    LackingError,
    LineError,
    NBTorchJobError,
    SpecError,
)
from nbtorchjob.machine import interrupts
from nbtorchjob.spec import grid
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, where
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import Phase, turns
from nbtorchjob.state.facts.logs import LineFilter, Stream, compiled
from nbtorchjob.state.info import MARK
from nbtorchjob.state.text import attempts, swaps
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.capture import Call
    from nbtorchjob.job import Job
    from nbtorchjob.runs import Runs
    from nbtorchjob.ui.card.sending import Output

_MOST_SHOWN = 8


def rows(options: CellOptions, look_up: Callable[[str], Any], front: Front) -> list[dict[str, Any]]:
    """Return the parameters of each run; empty if the line requests no group.

    Raises ``SpecError``, and ``LineError`` for many runs without confirmation.
    """
    if options.many is None:
        return []
    parameters = grid.rows(options.many, look_up)
    if len(parameters) > grid.ASKED_BACK and not options.many.yes and not options.dry_run:
        many = f"{len(parameters):,} jobs"
        if not front.asks(f"Submit {many}?"):
            raise LineError(
                f"{many} were not submitted: confirm with --yes, or choose a random subset with --sample N"
            )
    return parameters


def submit_runs(request: RunRequest, front: Front) -> Any:
    """Send a call as the runs of a group, and follow them unless they are detached."""
    options, many = request.options, request.options.many
    assert many is not None
    with interrupts.message(interrupts.NOTHING):
        if options.dry_run:
            from nbtorchjob.capture import arguments  # late, as above

            shown = [arguments.as_text(arguments.shown(row)) for row in request.rows[:_MOST_SHOWN]]
            more = len(request.rows) - len(shown)
            lines = [
                f"# {words.count(len(request.rows), 'run')} of:",
                submission.dry_run(request.call, request.spec, runs=True),
            ]
            lines += [f"# run {number}: {words.clean(row)}" for number, row in enumerate(shown, 1)]
            dry_run_all = "\n".join([*lines, *([f"# and {words.count(more, 'more run')}"] if more else [])])
            front.show(Answer(dry_run_all))
            return None
        plan = submission.check(request.spec, runs=True)
        with front.sending(request) as sending:
            sub = submission.prepare(request.call, plan)
            sending.prepared(sub.call)
            for note in dict.fromkeys((*sub.cautions, *sub.notes)):
                front.say(f"Note: {note}")
            runs = submission.send_runs(
                sub, request.rows, request.origin, at_once=many.at_once, early=many.early
            )
    return _watch_runs(runs, options, front, sending.output)


def matching(name: str, find: Find) -> list[Job[Any]]:
    """Return the job of that name, or a group's runs; raises ``JobNotFoundError`` and ``ClusterError``."""
    try:
        return [find(name)]
    except (JobNotFoundError, ClusterError) as exc:  # a group on this machine needs no cluster
        try:  # the last one first: otherwise each run that ends would let the next one start
            return [*reversed(api.grouped(name))]
        except (JobNotFoundError, ClusterError):
            raise exc from None


def _watch_runs(runs: Runs[Any], options: CellOptions, front: Front, output: Output) -> Any:
    with interrupts.message(f"Stopped waiting for {runs.name}: {hint('attach', runs.name)} follows it."):
        if options.detach:
            only = f"only while you follow the group: {hint('attach', runs.name)}"
            if runs.unstarted:
                front.say(f"Note: the next runs start {only}")
            if runs.stops_early:
                front.say(f"Note: runs are stopped early {only}")
            return front.give_runs(runs, options.out, ended=False)
        from nbtorchjob.ui.runs import view as runs_view  # late: most of what the command does draws no runs

        runs_view.watch(runs, front.view_runs(runs, options, output), say=front.say)
        return front.give_runs(runs, options.out, ended=True)


_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read(name: str, text: str, now: float) -> float:
    """Read "10m" (before ``now``) or an ISO 8601 time, by default in local time; raises ``SpecError``."""
    if ago := _AGO.fullmatch(text):
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        # Python 3.10 doesn't read "Z".
        return datetime.fromisoformat(re.sub("Z$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise SpecError(name, text, "an age such as 10m or 2h, or a time such as 2026-03-01T14:30") from exc


_WHEN = ("since", "until")

_said_notes: set[str] = set()


def run(args: ParsedArgs, front: Front) -> Any:
    """Run a call as a job."""
    with interrupts.message(interrupts.NOTHING):
        request = front.called(args.words)
    return submit(request, front)


def map_(args: ParsedArgs, front: Front) -> Any:
    """Run a call once for each value that the line names; raises ``LineError`` if it names none."""
    with interrupts.message(interrupts.NOTHING):
        request = front.called(args.words)
        if not request.rows:
            raise LineError(f"{hint('map')} expects --each NAME=VALUES; {hint('run')} runs one job")
    return submit(request, front)


def submit(request: RunRequest, front: Front) -> Any:
    """Run a call as its options request: a dry run, or a job that is followed unless it is detached."""
    if request.rows:
        return submit_runs(request, front)
    with interrupts.message(interrupts.NOTHING):
        if request.options.dry_run:
            on, call = request.on, request.call
            front.show(Answer(submission.dry_run(call, request.spec) if on is None else _on_lab(on, call)))
            return None
        if request.options.rehearse:
            _rehearse(request, front)
        if request.on is None:
            job, output = _submitted(request, front)
        else:
            # Send the call to a lab, after any notes about it
            on = request.on
            _note(on.lab.notes(request.call, on.answer), front)
            with front.sending(request) as sending:
                output = sending.output
                job = on.lab.send(
                    request.call,
                    on.answer,
                    request.origin,
                    ranks=on.ranks,
                    all_ranks=request.spec.all_ranks,
                    say=front.say,
                )
    return _hold(job, request.options, front, output, request.on)


def _on_lab(on: OnLab, call: Call) -> str:
    """Say what would be sent to a lab."""
    ranks = words.ranks(on.ranks or turns.ranks(on.lab.state))
    lines = [f"# {call.label}", f"on the lab {on.lab.name}: {ranks}"]
    try:
        lines += [f"# note: {note}" for note in on.lab.notes(call, on.answer)]
    except LackingError as exc:
        lines.append(f"# would be refused: {exc}")
    lines += ["# ships:"] if call.ships else []
    lines += [f"#   {ship.name:<20} {ship.type:<32} {ship.human}" for ship in call.ships]
    return "\n".join(lines)


def ask_lab(options: CellOptions, names: Callable[[], list[str]], front: Front) -> OnLab | None:
    """Ask the lab that a line names which of a call's names it has; None if the line names no lab."""
    if options.on is None:
        return None
    from nbtorchjob.labs import ranks_of  # late: most lines name no lab

    lab, ranks = api.lab(options.on), ranks_of(options.rank)
    answer = lab.asked(names(), front.namespace(), ranks=ranks, push=options.push, say=front.say)
    return OnLab(lab, answer, ranks)


def attach(args: ParsedArgs, front: Front) -> Any:
    """Follow a job from its first log line on, or a group's runs; for a lab, its newest cell."""
    try:
        job, options = _trusted(args, front)
    except (JobNotFoundError, ClusterError) as exc:  # a group on this machine needs no cluster
        from nbtorchjob.ui.card.sending import Output  # late: most of what the command does draws nothing

        of_runs = dict(args.options)
        try:
            runs = api.group(args.name, trust=of_runs.pop("trust", False))
        except JobNotFoundError:
            raise exc from None
        return _watch_runs(runs, CellOptions(**of_runs), front, Output())
    if job.info.lab is not None:
        lab = api.lab(job.info.id)
        state = lab.state
        turn = turns.newest(state)
        if turn is not None and turn.over and not state.phase.terminal:
            newest, doing = f"{lab.name}{MARK}{turn.number}", attempts.doing(state, time.time())
            front.say(f"{lab.name} is {doing}; {hint('attach', newest)} shows its newest {turn.word}")
            return None
        job = lab.newest
    return _hold(job, options, front)


def retry(args: ParsedArgs, front: Front, *, resume: bool = False) -> Any:
    """Run an ended job's payload again, as a new job."""
    job, options = _trusted(args, front)
    if job.info.cluster and (left := swaps.left_out(job.state)):
        front.say(f"Note: the new job runs {left}")
    return _hold(job.retry(resume=resume), options, front)


def continue_(args: ParsedArgs, front: Front) -> Any:
    """Run an ended job's payload again, as a new job that finds the old one's checkpoints."""
    return retry(args, front, resume=True)


def result(args: ParsedArgs, front: Front) -> Any:
    """Return the value of an ended job, or of a lab's newest cell; raises ``LineError`` before its end."""
    job, options = _trusted(args, front)
    if job.info.lab is not None:
        job = api.lab(job.info.id, trust=job.trust).newest
    with front.failing(job):
        phase = job.state.phase
        if not phase.terminal:
            raise LineError(f"{job.name} is {phase.word}: wait for it with {hint('attach', job.name)}")
        value = job.returned()
    return front.give(job, value, options.out)


def logs(args: ParsedArgs, front: Front) -> None:
    """Show a rank's log, or all ranks'; raises ``SpecError`` if the job can have no such rank."""
    job, options = front.find(args.name), args.options
    rank, tail, follow = options.get("rank", 0), options.get("tail"), options.get("follow", False)
    selectors = [f"--{key}" for key in ("rank", "node", "all-ranks") if key in options]
    streams: list[Stream] = [key for key in get_args(Stream) if key in options]
    for exclusive in (selectors, [f"--{stream}" for stream in streams]):
        if len(exclusive) > 1:
            raise LineError(f"{hint('logs')}: {' and '.join(exclusive)} are mutually exclusive")
    if tail is not None and tail < 0:
        raise SpecError("tail", tail, "0 or more lines")
    job.check_rank(rank)
    node = options.get("node")
    if node is not None:
        job.check_node(node)
    if "zip" in options:
        # Write all ranks' logs to a file
        path, others = Path(options["zip"]), sorted(options.keys() - {"zip", "timestamps"})
        if others:
            raise LineError(f"{hint('logs')}: --zip and --{others[0]} are mutually exclusive")
        pieces = job.archive(times=options.get("timestamps", False))
        try:
            with open(path, "xb") as file:
                try:
                    file.writelines(pieces)
                except BaseException:
                    path.unlink()
                    raise
        except OSError as exc:
            raise LineError(f"{hint('logs')}: {path} can't be written ({exc.strerror})") from exc
        front.show(Answer(f"{path}: {words.size(path.stat().st_size)}", {"file": str(path)}))
        return
    if follow and tail is not None:
        raise LineError("nbtorchjob logs: --follow and --tail are mutually exclusive")
    now = time.time()
    since, until = (read(f"--{key}", options[key], now) if key in options else None for key in _WHEN)
    pattern = compiled(options["grep"], "--grep") if "grep" in options else None
    line_filter = LineFilter(since, until, pattern)
    timestamps = options.get("timestamps", False)
    alone = selectors in ([], ["--rank"])
    stream = streams[0] if streams else None
    front.log(job, LogRequest(rank if alone else None, node, tail, follow, timestamps, line_filter, stream))


def _submitted(request: RunRequest, front: Front) -> tuple[Job[Any], Output]:
    """Submit the call, after any notes about it; return also the output in which that was shown."""
    plan = submission.check(request.spec)
    spec = plan.spec
    with front.sending(request) as sending:
        sub, output = submission.prepare(request.call, plan), sending.output
        sending.prepared(sub.call)
        for caution in sub.cautions:
            front.say(f"Note: {caution}")
        _note(sub.notes, front)
        if spec.lab:
            lab = submission.keep(sub, request.origin)
            lab.shipped(sub.call, front.namespace())
            return lab.first, output
        earlier = of_cell(request.origin.cell) if spec.name is None else None
        job = submission.send(sub, request.origin, front.say)
    if earlier is not None and earlier.name != job.name and earlier.state.phase is Phase.RUNNING:
        front.show(swapping.choice(earlier, EditedCell(request.call.text, request.call.filename, front), ""))
    if job.joined:
        front.say(f"Note: {job.name} already runs this cell: attached to it")
    elif spec.name not in (None, job.name):
        front.say(f"Note: a job named {spec.name} has already ended; this run is named {job.name}")
    return job, output


def _note(notes: Iterable[str], front: Front) -> None:
    for note in notes:
        if note not in _said_notes:  # once, as a cell is run repeatedly
            _said_notes.add(note)
            front.say(f"Note: {note}")


def _rehearse(request: RunRequest, front: Front) -> None:
    """Run the call on two local ranks first, so that an error shows before the job is queued."""
    from nbtorchjob.ui.card import view  # late, as above
    from nbtorchjob.ui.card.sending import Output

    spec = request.spec
    launch = spec.launch if isinstance(spec.launch, Elastic) else Elastic()
    # Everything that the code may read stays; where the job runs, its name and its retries are left out.
    spec = replace(
        spec,
        launch=Elastic(nproc_per_node=2, start_method=launch.start_method),
        backend="local",
        cluster=Cluster(),
        name=None,
        data={name: text for name, text in spec.data.items() if where(text).scheme != "pvc"},
        retry=None,
        hold=None,  # a failure must end it
        lab=False,
        fresh=False,
        pool=None,
        or_own=False,
    )
    job = submission.submit(request.call, spec, request.origin)
    with front.failing(job):
        drawn = front.view(job, request.options, Output())
        view.watch(job, drawn, say=front.say)
        failed = job.exception()
        drawn.close(job.state, deleted=failed is None)
        if failed is not None:
            raise failed
    job.delete()


def _trusted(args: ParsedArgs, front: Front) -> tuple[Job[Any], CellOptions]:
    """Find the job, with its values trusted if the line says so; return the line's other options."""
    options = dict(args.options)
    job = front.find(args.name)
    job.trust = options.pop("trust", False) or job.trust
    return job, CellOptions(**options)


def _hold(
    job: Job[Any],
    options: CellOptions,
    front: Front,
    output: Output | None = None,
    on: OnLab | None = None,
) -> Any:
    """Make ``job`` the newest, and follow it unless it is detached."""
    with interrupts.message(f"Stopped waiting for {job.name}: {hint('attach', job.name)} follows it."):
        remember(job)
        if options.detach:
            return front.detached(job, options.out)
        with front.reading(job), front.failing(job):
            drawn = front.view(job, options, output)
            from nbtorchjob.ui.card import view  # late, as above

            view.watch(job, drawn, say=front.say, asks=front.asks)
            try:
                value = job.returned()
            except NBTorchJobError as exc:
                drawn.close(job.state)
                raise view.short(exc, drawn) from None
            nothing = value is None or (job.state.info.all_ranks and all(item is None for item in value))
            drawn.close(job.state, view.NO_VALUE if nothing else words.short(value))
            if on is not None:
                for name in options.pull:
                    front.give(job, on.lab.pull(name, on.ranks), name)
        return front.give(job, value, options.out)
