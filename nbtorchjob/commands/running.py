"""The verbs that wait for a job or return its value: ``run``, ``attach``, ``retry``, ``result``, ``logs``.

A point in time, as people write it: how long ago, or when.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, submission
from nbtorchjob.commands import runs
from nbtorchjob.commands.front import Answer, Asked, AskedLog, Front, Given, OnLab, remember
from nbtorchjob.errors import (
    ClusterError,
    JobNotFoundError,
    LackingError,
    LineError,
    NBTorchJobError,
    SpecError,
)
from nbtorchjob.machine import interrupts
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import turns
from nbtorchjob.state.info import MARK
from nbtorchjob.state.logs import Wanted, compiled
from nbtorchjob.state.text import labs
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.card.sending import Output

if TYPE_CHECKING:
    from nbtorchjob.job import Job
    from nbtorchjob.ui.card import view

_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read(name: str, text: str, now: float) -> float:
    """Read "10m" (before ``now``) or an ISO 8601 time, the zone this machine's; raises ``SpecError``."""
    if ago := _AGO.fullmatch(text):
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        # Python 3.10 doesn't read "Z".
        return datetime.fromisoformat(re.sub("Z$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise SpecError(name, text, "how long ago (30s, 10m, 2h, 1d), or a time (2026-03-01T14:30)") from exc


_WHEN = ("since", "until")

_told: set[str] = set()


def run(given: Given, front: Front) -> Any:
    """Run a call as a job."""
    with interrupts.told(interrupts.NOTHING):
        asked = front.called(given.words)
    return submit(asked, front)


def submit(asked: Asked, front: Front) -> Any:
    """Run a call as its options request: a dry run, or a job that is followed unless it is detached."""
    if asked.given:
        return runs.submit(asked, front)
    with interrupts.told(interrupts.NOTHING):
        if asked.options.dry_run:
            front.show(Answer(_dry_run(asked)))
            return None
        if asked.options.rehearse:
            _rehearse(asked, front)
        job, output = _submitted(asked, front) if asked.on is None else _sent(asked, asked.on, front)
    return _hold(job, asked.options, front, output, asked.on)


def ask_lab(options: CellOptions, names: Callable[[], list[str]], front: Front) -> OnLab | None:
    """Ask the lab that a line names which of a call's names it has; None where the line names none."""
    if options.on is None:
        return None
    from nbtorchjob.labs import ranks_of  # late: most lines name no lab

    lab, ranks = api.lab(options.on), ranks_of(options.rank)
    asked = lab.asked(names(), front.namespace(), ranks=ranks, push=options.push, say=front.say)
    return OnLab(lab, asked, ranks)


def attach(given: Given, front: Front) -> Any:
    """Follow a job from its first log line on; of a lab, its newest cell."""
    try:
        job, asked = _trusted(given, front)
    except (JobNotFoundError, ClusterError):  # a group of this machine's needs no cluster
        return runs.attach(given, front)
    if job.info.lab is not None:
        lab = api.lab(job.info.id)
        state = lab.state
        turn = turns.newest(state)
        if turn is not None and turn.over and not state.phase.terminal:
            newest, doing = f"{lab.name}{MARK}{turn.number}", labs.doing(state, time.time())
            front.say(f"{lab.name} is {doing}; {hint('attach', newest)} shows its newest cell")
            return None
        job = lab.newest
    return _hold(job, asked, front)


def retry(given: Given, front: Front) -> Any:
    """Run an ended job's payload again, as a new job."""
    job, asked = _trusted(given, front)
    return _hold(job.retry(), asked, front)


def result(given: Given, front: Front) -> Any:
    """Return the value of a job that has ended, or of a lab's newest cell; raises ``LineError`` before."""
    job, asked = _trusted(given, front)
    if job.info.lab is not None:
        job = api.lab(job.info.id, trust=job.trust).newest
    with front.failing(job):
        phase = job.state.phase
        if not phase.terminal:
            raise LineError(f"{job.name} is {phase.value}: wait for it with {hint('attach', job.name)}")
        value = _value(job)
    return front.give(job, value, asked.out)


def logs(given: Given, front: Front) -> None:
    """Show a rank's log, or all ranks'; raises ``SpecError`` where the job can have no such rank."""
    job, options = front.find(given.name), given.options
    rank, tail, follow = options.get("rank", 0), options.get("tail"), options.get("follow", False)
    whose = [f"--{key}" for key in ("rank", "node", "all-ranks") if key in options]
    if len(whose) > 1:
        raise LineError(f"{hint('logs')}: {' and '.join(whose)} exclude each other")
    if tail is not None and tail < 0:
        raise SpecError("tail", tail, "0 or more lines")
    job.check_rank(rank)
    node = options.get("node")
    if node is not None:
        job.check_node(node)
    if "zip" in options:
        _archive(job, options, front)
        return
    if follow and tail is not None:
        raise LineError("nbtorchjob logs: --follow starts at the beginning, so omit --tail")
    now = time.time()
    since, until = (read(f"--{key}", options[key], now) if key in options else None for key in _WHEN)
    pattern = compiled(options["grep"], "--grep") if "grep" in options else None
    wanted = Wanted(since, until, pattern)
    timestamps = options.get("timestamps", False)
    alone = whose in ([], ["--rank"])
    front.log(job, AskedLog(rank if alone else None, node, tail, follow, timestamps, wanted))


def _archive(job: Job[Any], options: Mapping[str, Any], front: Front) -> None:
    """Write all ranks' logs to a file."""
    path, others = Path(options["zip"]), sorted(options.keys() - {"zip", "timestamps"})
    if others:
        raise LineError(f"{hint('logs')}: --zip has all ranks' whole logs, so omit --{others[0]}")
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


def _submitted(asked: Asked, front: Front) -> tuple[Job[Any], Output]:
    """Submit the call, after any notes about it; return also the output in which that was shown."""
    sub = submission.prepare(asked.call, submission.check(asked.spec))
    for caution in sub.cautions:
        front.say(f"Note: {caution}")
    _note(sub.notes, front)
    spec = sub.plan.spec
    with front.sending(asked._replace(call=sub.call)) as output:
        if spec.lab:
            lab = submission.keep(sub, asked.origin)
            lab.shipped(sub.call, front.namespace())
            return lab.first, output
        job = submission.send(sub, asked.origin)
    if job.joined:
        front.say(f"Note: {job.name} is running this already: attached to it")
    elif spec.name not in (None, job.name):
        front.say(f"Note: a job named {spec.name} has ended already: this run is {job.name}")
    return job, output


def _sent(asked: Asked, on: OnLab, front: Front) -> tuple[Job[Any], Output]:
    """Send the call to a lab, after any notes about it."""
    _note(on.lab.notes(asked.call, on.asked), front)
    with front.sending(asked) as output:
        job = on.lab.send(
            asked.call,
            on.asked,
            asked.origin,
            ranks=on.ranks,
            all_ranks=asked.spec.all_ranks,
            say=front.say,
        )
    return job, output


def _note(notes: Iterable[str], front: Front) -> None:
    for note in notes:
        if note not in _told:  # once, as a cell is run repeatedly
            _told.add(note)
            front.say(f"Note: {note}")


def _dry_run(asked: Asked) -> str:
    if asked.on is None:
        return submission.dry_run(asked.call, asked.spec)
    lab, call = asked.on.lab, asked.call
    there = words.ranks(asked.on.ranks or turns.ranks(lab.state))
    lines = [f"# {call.label}", f"on the lab {lab.name}: {there}"]
    try:
        lines += [f"# note: {note}" for note in lab.notes(call, asked.on.asked)]
    except LackingError as exc:
        lines.append(f"# wouldn't be sent: {exc}")
    lines += ["# ships:"] if call.ships else []
    lines += [f"#   {ship.name:<20} {ship.type:<32} {ship.human}" for ship in call.ships]
    return "\n".join(lines)


def _rehearse(asked: Asked, front: Front) -> None:
    """Run the call on two ranks of this machine first, so that it fails here rather than queued there."""
    from nbtorchjob.ui.card import view  # late: most of what the command does draws no job

    spec = JobSpec(
        Elastic(nproc_per_node=2),
        package=asked.spec.package,
        requirements=asked.spec.requirements,
        ship=asked.spec.ship,
    )
    job = submission.submit(asked.call, spec, asked.origin)
    with front.failing(job):
        drawn = front.view(job, asked.options, Output())
        view.watch(job, drawn, say=front.say)
        drawn.close(job.state)
        failed = job.exception()
        if failed is not None:
            raise failed
    job.delete()


def _trusted(given: Given, front: Front) -> tuple[Job[Any], CellOptions]:
    """Find the job, with its values trusted if the line says so; return the line's other options."""
    options = dict(given.options)
    job = front.find(given.name)
    job.trust = options.pop("trust", False) or job.trust
    return job, CellOptions(**options)


def _hold(
    job: Job[Any],
    asked: CellOptions,
    front: Front,
    output: Output | None = None,
    on: OnLab | None = None,
) -> Any:
    """Make ``job`` the newest, and follow it unless it is detached."""
    with interrupts.told(f"Stopped waiting for {job.name}: {hint('attach', job.name)} follows it."):
        remember(job)
        if asked.detach:
            return front.detached(job, asked.out)
        with front.reading(job), front.failing(job):
            value = _wait(job, front.view(job, asked, output or Output()), front)
            if on is not None:
                for name in asked.pull:
                    front.give(job, on.lab.pull(name, on.ranks), name)
        return front.give(job, value, asked.out)


def _wait(job: Job[Any], drawn: view.View, front: Front) -> Any:
    """Draw the job until it ends, and return its value; raises as ``Job.result`` and ``view.watch`` do."""
    from nbtorchjob.ui.card import view  # late, as above

    view.watch(job, drawn, say=front.say, asks=front.asks)
    try:
        value = _value(job)
    except NBTorchJobError as exc:
        drawn.close(job.state)
        raise view.short(exc, drawn) from None
    nothing = value is None or (job.state.info.all_ranks and all(each is None for each in value))
    drawn.close(job.state, view.NO_VALUE if nothing else words.short(value))
    return value


def _value(job: Job[Any]) -> Any:
    """Return the value of a job, or of its ranks where all are collected; raises as ``Job.result`` does."""
    return job.results() if job.state.info.all_ranks else job.result()
