"""The command in a terminal: which verb does the work, and the exit code that results.

``Terminal`` is the terminal as verbs see it: how a job is found, a call captured, and the outcome shown.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from nbtorchjob import api, backends
from nbtorchjob.commands import front, running, verbs
from nbtorchjob.commands.front import Answer, LogRequest, RunRequest
from nbtorchjob.commands.table import HELP, JSON
from nbtorchjob.errors import (
    CaptureError,
    JobFailedError,
    JobNotFoundError,
    LineError,
    NBTorchJobError,
    PartialFailureError,
    ResultError,
    Shape,
    SpecError,
    UnwritableError,
)
from nbtorchjob.frontends.cli import commands, output
from nbtorchjob.frontends.cli.commands import CELLS_ONLY, COMMANDS, command, help_of, overview
from nbtorchjob.machine import processes
from nbtorchjob.spec.options import CellOptions, by_flag, split_words
from nbtorchjob.state import JobState, Origin
from nbtorchjob.text import hints
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.record import record

if TYPE_CHECKING:
    from nbtorchjob.capture import Call
    from nbtorchjob.job import Job
    from nbtorchjob.runs import Runs
    from nbtorchjob.ui.card import view
    from nbtorchjob.ui.card.sending import Output, Sending
    from nbtorchjob.ui.runs import view as view_runs


class Terminal:
    """A ``Front`` that writes answers to stdout, with ``json`` for programs, and all else to stderr."""

    stays: ClassVar[bool] = False

    def __init__(self, *, json: bool = False) -> None:
        self.good = True  # whether no answer reported anything missing
        self._json = json

    def find(self, name: str) -> Job[Any]:
        """Return the job of that name, for "" the newest; raises ``JobNotFoundError``."""
        if name:
            return api.attach(name)
        with front.warned() as notes:
            jobs = api.summaries(record)
        for note in notes:
            self.say(f"Note: {note}")
        if not jobs:
            raise JobNotFoundError("there are no jobs yet")
        return api.attach(jobs[-1]["id"])

    def called(self, words: Sequence[str]) -> RunRequest:
        """Capture a call of a script's function."""
        ahead, behind = parted(words)
        alone, flags = split_words(ahead)
        try:
            spec, options = verbs.parse(shlex.join(flags), self.say)
        except SpecError as exc:
            if exc.shape is not Shape.UNKNOWN or exc.field != "option" or "--" in words:
                raise
            unknown = [word.partition("=")[0] for word in ahead].index(str(exc.value))
            script = next((word for word in alone if word in ahead[:unknown]), None)
            if script is None:  # an option before the script was meant for the command
                raise
            raise LineError(f"{exc}; {_own_arguments(script, ahead)}") from None
        if len(alone) != 1:
            usage = COMMANDS["run"].words
            more = f"; {_own_arguments(alone[0], ahead)}" if alone and "--" not in words else ""
            raise LineError(f"nbtorchjob run {usage}: name one function, got {shlex.join(alone)!r}{more}")
        for key in CELLS_ONLY:
            if getattr(options, key.replace("-", "_")):
                raise LineError(
                    f"--{key} is for notebook cells; pass arguments after --, the value goes to stdout"
                )
        from nbtorchjob.frontends.cli.script import Target  # late: only `run` reads a script

        target = Target.parse(alone[0])
        if not options.dry_run:

            def warm_up() -> None:
                with suppress(NBTorchJobError, OSError):  # the submission fails the same way, and reports it
                    backends.warm_up(spec.backend)

            threading.Thread(target=warm_up, name="nbtorchjob-warm-up", daemon=True).start()
        on = running.ask_lab(options, list, self)
        with output.aside():  # a script's output while it is loaded isn't part of the answer
            call, rows = target.call(behind, lambda look_up: running.rows(options, look_up, self))
        return RunRequest(call, spec, options, target.origin, on, rows)

    def namespace(self) -> dict[str, Any]:
        """Return an empty namespace: a script's variables go with its functions."""
        return {}

    def origin(self, call: Call) -> Origin:
        """Return an empty origin: promoted cells were written in notebooks."""
        return Origin()

    def asks(self, question: str) -> bool | None:
        """Ask the person at the keyboard; return None if there is no keyboard."""
        if not (sys.stdin and sys.stdin.isatty()):
            return None
        self.say(f"{question} [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def say(self, text: str) -> None:
        """Write to stderr."""
        output.beside(text)

    def show(self, answer: Answer) -> None:
        """Write an answer to stdout, an aside to stderr; with ``json`` also the aside's data, to stdout."""
        self.good &= answer.good
        if answer.aside:
            self.say(answer.text)
        if self._json and not (answer.aside and answer.data is None):
            output.data(answer.data() if callable(answer.data) else answer.data)
        elif answer.text and not answer.aside:
            output.answer(answer.text)

    def log(self, job: Job[Any], request: LogRequest) -> None:
        """Write the log's bytes as they are."""
        if request.follow:
            from nbtorchjob.frontends.cli.script import Stream  # late: most verbs follow no job

            Stream(job, write=output.log, tell=self.say, request=request)
            job.wait()
        else:
            for piece in request.of(job):
                output.log(piece)

    @contextmanager
    def sending(self, request: RunRequest) -> Iterator[Sending]:
        """Write, once, what is sent."""
        from nbtorchjob.ui.card.sending import Output, Sending, announce  # late: most verbs send nothing

        sending = Sending(request.call, Output())
        with nullcontext() if request.options.quiet else announce(sending, self.say):
            yield sending

    def view(self, job: Job[Any], options: CellOptions, place: Output | None) -> view.View:
        """Write the log as it arrives, and a line for each phase."""
        from nbtorchjob.frontends.cli.script import Stream  # late: most verbs follow no job
        from nbtorchjob.ui.card import view

        # A program that reads the JSON has no use for the log, but a person may.
        write = output.log_beside if self._json else output.log
        return view.Silent(self.say) if options.quiet else Stream(job, write=write, tell=self.say)

    @contextmanager
    def reading(self, job: Job[Any]) -> Iterator[None]:
        """Report that the job continues if nobody reads the output any more."""
        try:
            yield
        except (BrokenPipeError, UnwritableError) as exc:
            if isinstance(exc, JobFailedError):  # raised by a rank
                raise
            self.say(f"Output closed; {job.name} continues: {hint('attach', job.name)} follows it")
            raise

    @contextmanager
    def failing(self, job: Job[Any]) -> Iterator[None]:
        """With ``json``, also write a document if the job fails or its value can't be read."""
        try:
            yield
        except (JobFailedError, ResultError) as exc:
            if self._json:
                output.data({"job": _record(job.state), "error": str(exc)})
            raise

    def view_runs(self, runs: Runs[Any], options: CellOptions, place: Output) -> view_runs.RunsView:
        """Write a line for each run that ends."""
        from nbtorchjob.ui.runs import view as view_runs  # late, as above

        return view_runs.Silent(self.say) if options.quiet else view_runs.Terminal(self.say)

    def give_runs(self, runs: Runs[Any], out: str | None, *, ended: bool) -> None:
        """Write each run's value, or the group's name."""
        if not ended:
            output.data({"group": runs.name}) if self._json else output.answer(runs.name)
            return
        for job, state in zip(runs, runs.states(), strict=True):
            outcome: dict[str, Any]
            try:
                outcome = {"value": job.returned()}
            except (JobFailedError, ResultError) as exc:
                outcome = {"error": str(exc)}
                self.good &= state.stopped_early
                if isinstance(exc, ResultError):  # the view has reported failed runs
                    self.say(f"nbtorchjob: {exc}")
            if self._json:
                output.data({"job": _record(state), "given": dict(state.info.given), **outcome})
            elif outcome.get("value") is not None:
                output.answer(f"{state.info.number}  {output.text(outcome['value'])}")

    def detached(self, job: Job[Any], out: str | None) -> None:
        """Write the job's name."""
        if self._json:
            output.data({"job": _record(JobState(job.info))})
        else:
            output.answer(job.name)

    def give(self, job: Job[Any], value: Any, out: str | None) -> None:
        """Write the value."""
        if self._json:
            output.data({"job": _record(job.state), "value": value})
        elif value is not None:
            output.answer(output.text(value))


def _own_arguments(target: str, words: Sequence[str]) -> str:
    """Explain where the function's arguments go."""
    at = words.index(target) + 1
    own = words[at:]
    line = f": nbtorchjob run {shlex.join([*words[:at], '--', *own])}" if own else ""
    return f"pass the function's own arguments after --{line}"


def parted(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words before ``--``, and those after it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _record(state: JobState) -> dict[str, Any]:
    return record(state, time.time())


_COMMAND = hints.Wording("nbtorchjob", "nbtorchjob run SCRIPT.py:FUNCTION", "nbtorchjob run --help")
_REFUSED = 4
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # a shell's codes for SIGINT and SIGPIPE

# The first matching type counts.
_CODES: Mapping[type[NBTorchJobError], int] = {
    JobFailedError: 1,
    ResultError: 1,
    PartialFailureError: 1,
    LineError: 2,
    SpecError: 2,
    CaptureError: 2,
    JobNotFoundError: 3,
    NBTorchJobError: _REFUSED,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's own), and return the exit code."""
    if words is None:
        processes.raise_open_files()
    with hints.worded(_COMMAND):
        words = list(sys.argv[1:] if words is None else words)
        try:
            output.encodable()
            name, *rest = words or [""]
            if name in ("help", *HELP):
                output.answer(help_of(command(rest[0])) if rest else overview())
            elif name == "--version":
                from importlib import metadata  # slow to import, and seldom needed

                output.answer(metadata.version("nbtorchjob"))
            elif not name:
                output.beside(overview())
                return 2
            elif name == commands.ASKED:
                output.answer("\n".join(commands.candidates(rest)))
            else:
                return _verb(name, rest)
            return 0
        except KeyboardInterrupt as exc:
            Terminal().say(str(exc) or "Interrupted.")
            return _INTERRUPTED
        except NBTorchJobError as exc:  # first: a job's error may also be of the type that a rank raised
            output.error(exc)
            return next(code for type_, code in _CODES.items() if isinstance(exc, type_))
        except BrokenPipeError:
            output.nowhere(sys.stdout)
            return _BROKEN_PIPE
        except OSError as exc:
            output.beside(f"nbtorchjob: {exc}")
            return _REFUSED
        finally:
            output.settle()


def _verb(name: str, words: list[str]) -> int:
    verb = command(name)
    ahead, _ = parted(words)
    if {*HELP}.intersection(ahead):
        output.answer(help_of(verb))
        return 0
    json = JSON in verb.options and "--json" in ahead
    if json:
        if verb.any_option and {"--dry-run", "--dry_run"}.intersection(ahead):  # which prints manifests
            raise LineError("--json and --dry-run are mutually exclusive")
        words.remove("--json")
    if verb.name == "completion":
        output.answer(commands.script(words))
        return 0
    if verb.name == "tend":
        from nbtorchjob.frontends.cli import tending  # late: it is rarely used

        tending.tend(verb.parse(words).options)
        return 0
    if verb.name == "mcp":
        from nbtorchjob.frontends.cli import agents  # late, as above

        verb.parse(words)
        agents.serve()
        return 0
    front = Terminal(json=json)
    with by_flag():
        verb.do(verb.parse(words), front)
    return 0 if front.good else 1
