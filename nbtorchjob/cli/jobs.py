"""The verbs that run something, wait for it, or hand on a log: ``run``, ``attach``, ``result``, ``logs``."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from nbtorchjob import api, running, verbs
from nbtorchjob.capture import Call
from nbtorchjob.cli import output
from nbtorchjob.cli.commands import CELLS_ONLY, COMMANDS
from nbtorchjob.cli.script import Target
from nbtorchjob.cli.shown import Stream
from nbtorchjob.errors import JobFailedError, JobNotFoundError, LineError, NBTorchJobError, ResultError
from nbtorchjob.job import Job
from nbtorchjob.options import CellOptions, apart
from nbtorchjob.state import JobState, Origin
from nbtorchjob.ui import lines, view
from nbtorchjob.ui.record import record


def find(name: str = "") -> Job:
    """Give the job of that name, without one the newest; raises ``JobNotFoundError``."""
    if name:
        return api.attach(name)
    with verbs.warned() as notes:
        states = api.jobs()
    for note in notes:
        say(f"Note: {note}")
    if not states:
        raise JobNotFoundError("which job? There are none")
    return api.attach(states[-1].info.address)


def run(words: Sequence[str], *, json: bool) -> None:
    """Submit a call of a script's function, and print its value."""
    ahead, behind = parted(words)
    alone, given = apart(ahead)
    spec, asked = verbs.parse(shlex.join(given), say)
    if len(alone) != 1:
        usage = COMMANDS["run"].words
        raise LineError(f"nbtorchjob run {usage}: name one function, got {shlex.join(alone)!r}")
    for key in CELLS_ONLY:
        if getattr(asked, key):
            raise LineError(f"--{key} is for cells: arguments go behind --, and the value to stdout")
    if json and asked.dry_run:
        raise LineError("--json: what --dry-run gives is for people, and YAML")
    target = Target.parse(alone[0])
    if spec.backend == "local" and not asked.dry_run:
        threading.Thread(target=_warm_up, daemon=True).start()
    with output.aside():  # what a script prints while it is loaded is no part of the answer
        call = target.call(behind)
    if asked.dry_run:
        output.answer(output.worded(api.dry_run_call(call, spec)))
        return
    if asked.rehearse:
        _rehearse(call, target.origin, asked, json=json)
    _hold(running.submit(call, spec, target.origin, say), asked, json=json)


def attach(words: Sequence[str], *, json: bool) -> None:
    """Follow a job from its first log line on, and print its value."""
    _take("attach", words, lambda job: job, json=json)


def retry(words: Sequence[str], *, json: bool) -> None:
    """Run what an ended job ran once more, as a new job, and print its value."""
    _take("retry", words, Job.retry, json=json)


def result(words: Sequence[str], *, json: bool) -> None:
    """Print the value of a job that has ended."""
    named, given = lines.given("result", words, COMMANDS["result"])
    job = running.trusted(find(*named), given)
    with _failing(job, json=json):
        value = running.ended_value(job)
    _give(job, value, json=json)


def logs(words: Sequence[str], *, json: bool) -> None:
    """Print a rank's log, all of it, its end, or until the job ends."""
    named, given = lines.given("logs", words, COMMANDS["logs"])
    job, tail = find(*named), given.get("tail")
    rank = running.rank_of(job, given.get("rank", 0))
    if "follow" in given:
        if tail is not None:
            raise LineError("nbtorchjob logs: --follow begins at the beginning, so leave --tail out")
        Stream(job, write=output.log, tell=say, rank=rank)
        job.wait()
    elif tail is not None:
        output.log(job.logs(rank, tail).encode())
    else:
        for piece in job.read_log(rank):
            output.log(piece)


def parted(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Give the words in front of ``--``, and those behind it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def say(text: str) -> None:
    """Write to stderr, in a terminal's words."""
    output.beside(output.worded(text))


def _shown(job: Job, asked: CellOptions, *, json: bool) -> view.View:
    # A program that reads the JSON has no use for the log, but a person may.
    write = output.log_beside if json else output.log
    return view.Silent() if asked.quiet else Stream(job, write=write, tell=say)


def _take(verb: str, words: Sequence[str], act: Callable[[Job], Job], *, json: bool) -> None:
    named, given = lines.given(verb, words, COMMANDS[verb])
    job = running.trusted(find(*named), given)
    _hold(act(job), CellOptions(**given), json=json)


def _hold(job: Job, asked: CellOptions, *, json: bool) -> None:
    """Follow a job and print its value, or only its name where it is detached."""
    if asked.detach:
        _detached(job, json=json)
    else:
        _wait(job, asked, json=json)


def _wait(job: Job, asked: CellOptions, *, json: bool) -> None:
    try:
        with _failing(job, json=json):
            value = running.wait(job, _shown(job, asked, json=json), say)
    except (BrokenPipeError, output.UnwritableError):
        say(f"Nobody reads on; {job.name} goes on: %torchjob attach {job.name}")
        raise
    _give(job, value, json=json)


def _rehearse(call: Call, origin: Origin, asked: CellOptions, *, json: bool) -> None:
    def shown(job: Job) -> view.View:
        failing.enter_context(_failing(job, json=json))
        return _shown(job, asked, json=json)

    with ExitStack() as failing:
        running.rehearse(call, origin, shown, say)


@contextmanager
def _failing(job: Job, *, json: bool) -> Iterator[None]:
    """Have a program told of a job that fails, or whose value can't be had."""
    try:
        yield
    except (JobFailedError, ResultError) as exc:
        if json:
            output.data({"job": _record(job.state), "error": str(exc)})
        raise


def _give(job: Job, value: Any, *, json: bool) -> None:
    if json:
        output.data({"job": _record(job.state), "value": value})
    elif value is not None:
        output.answer(output.text(value))


def _detached(job: Job, *, json: bool) -> None:
    if json:
        output.data({"job": _record(JobState(job.info))})
    else:
        output.answer(job.name)


def _record(state: JobState) -> dict[str, Any]:
    return record(state, time.time())


def _warm_up() -> None:
    from nbtorchjob.backends.local import pool

    with suppress(NBTorchJobError, OSError):  # the submission meets it again, and says it
        pool.warm_up()
