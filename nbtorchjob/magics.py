"""``%%torchjob`` and ``%torchjob``: split the line, and call what does the work."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from nbtorchjob import api, capture, options, profiles
from nbtorchjob.errors import CellSyntaxError, NBTorchJobError, SpecError
from nbtorchjob.job import Job
from nbtorchjob.options import CellOptions
from nbtorchjob.spec import JobSpec
from nbtorchjob.text import values, words
from nbtorchjob.ui import lines, table, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell

HELP = """%%torchjob [options]        run the cell on every rank; rank 0's value is the cell's value
%torchjob run [options] f(x, lr=0.1)   submit one call
%torchjob list              all jobs
%torchjob status [NAME]     one job's card
%torchjob logs [NAME] [--rank N] [--tail N]
%torchjob attach [NAME] [-o VAR] [-d]  follow a job again, and take its value
%torchjob result [NAME] [-o VAR]       the value of a job that has ended
%torchjob cancel NAME...    end jobs; their records stay
%torchjob delete NAME...    end jobs, and remove their records, logs and values
%torchjob config [NAME]     the options that a job, or this session, uses

Without NAME, the newest job of this session is meant.

"""

_SAY_SIZE = 200_000_000  # bytes: a second's work


class TorchJobMagics:
    """The magics of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.newest: Job | None = None

    def torchjob(self, line: str, cell: str | None = None) -> Any:
        """Run a cell as a distributed torch job, and act on jobs."""
        with _usage_errors():
            if cell is not None:
                return self._cell(self._expand(line), cell)
            verb, _, rest = line.strip().partition(" ")
            if not verb:
                print(HELP + options.help_text())  # noqa: T201
                return None
            if verb not in _VERBS:
                known = ", ".join(_VERBS)
                raise UsageError(f"%torchjob {verb}: there is no such verb; there are {known}")
            return _VERBS[verb](self, rest.strip() if verb == "run" else self._expand(rest.strip()))

    @property
    def _count(self) -> int:
        # The shell's own count is of the next cell already (IPython 9; in 8 it wasn't yet).
        return int(self.shell.displayhook.prompt_count)

    def _expand(self, line: str, depth: int = 4) -> str:
        """Put in the notebook's values for ``{name}`` and ``$name``; ``depth`` frames up is the user's."""
        return str(self.shell.var_expand(line, depth))

    def _cell(self, line: str, cell: str) -> Any:
        spec, cell_options = _parse(line)
        filename = f"<torchjob cell {self._count}>"
        try:
            call = capture.from_cell(
                cell,
                self.shell.user_ns,
                args=dict(cell_options.arg),
                filename=filename,
                root=Path.cwd(),
            )
        except SyntaxError as exc:
            drawn = "".join(traceback.format_exception_only(exc)).rstrip("\n")
            label = f"Cell In[{self._count}]"
            raise CellSyntaxError(drawn.replace(f'File "{filename}"', label, 1)) from None
        return self._submit(call, spec, cell_options)

    def _submit(self, call: capture.Call, spec: JobSpec, cell_options: CellOptions) -> Any:
        if cell_options.dry_run:
            print(api.dry_run_call(call, spec))  # noqa: T201
            return None
        for caution in api.cautions(spec):
            print(f"Note: {caution}")  # noqa: T201
        if call.size >= _SAY_SIZE:  # writing it takes a while in which nothing is to be seen
            print(f"Taking {words.size(call.size)} along: {capture.ships_line(call)}")  # noqa: T201
        self.newest = api.submit_call(call, spec, self._labels(call))
        if cell_options.detach:
            return self._give(self.newest, cell_options.out)
        return self._wait(self.newest, cell_options)

    def _wait(self, job: Job, cell_options: CellOptions) -> Any:
        shown = self._view(quiet=cell_options.quiet)
        view.watch(job, shown)
        try:
            value = _value(job)
        except NBTorchJobError:
            shown.close(job.state)
            raise
        shown.close(job.state, values.short(value))
        return self._give(value, cell_options.out)

    def _give(self, value: Any, out: str | None) -> Any:
        if out is None:
            return value
        # Stored by name it isn't echoed as well, as with ipyparallel's %%px; Out[n] has it too.
        self.shell.user_ns[out] = value
        if value is not None:
            self.shell.displayhook.update_user_ns(value)
        return None

    def _view(self, *, quiet: bool) -> view.View:
        if quiet:
            return view.Silent()
        return view.Card() if hasattr(self.shell, "kernel") else view.Terminal()

    def _labels(self, call: capture.Call) -> dict[str, str]:
        labels = {name: _label(self.shell, name) for name in call.sources}
        labels[call.filename] = f"Cell In[{self._count}]"
        return labels

    def _job(self, name: str) -> Job:
        if name:
            return api.attach(name)
        if self.newest is None:
            raise UsageError("which job? This session has submitted none; see %torchjob list")
        return self.newest

    def _run(self, rest: str) -> Any:
        found = lines.RUN.fullmatch(rest)
        if found is None:
            raise UsageError(f"%torchjob run {rest}: give one call, such as f(x, lr=0.1)")
        spec, cell_options = _parse(self._expand(found["options"], depth=5))
        if cell_options.arg:
            raise UsageError("%torchjob run: --arg is for cells; write arguments into the call")
        call = capture.from_expression(found["call"], self.shell.user_ns, root=Path.cwd())
        return self._submit(call, spec, cell_options)

    def _list(self, rest: str) -> None:
        lines.nothing("list", rest)
        states, now = api.jobs(), time.time()
        bundle = {"text/html": table.html(states, now), "text/plain": table.text(states, now)}
        display(bundle, raw=True)

    def _status(self, rest: str) -> None:
        display(view.mimebundle(api.snapshot(self._job(rest).name)), raw=True)

    def _logs(self, rest: str) -> None:
        words, flags = lines.words("logs", rest, {"--rank": int, "--tail": int})
        job = self._job(words[0] if words else "")
        print(job.logs(flags.get("--rank", 0), flags.get("--tail")), end="")  # noqa: T201

    def _attach(self, rest: str) -> Any:
        words, flags = lines.words("attach", rest, {"-o": str, "--out": str, "-d": None})
        self.newest = self._job(words[0] if words else "")
        out = flags.get("-o") or flags.get("--out")
        if "-d" in flags:
            return self._give(self.newest, out)
        return self._wait(self.newest, CellOptions(out=out))

    def _result(self, rest: str) -> Any:
        words, flags = lines.words("result", rest, {"-o": str, "--out": str})
        job = self._job(words[0] if words else "")
        if not job.wait(1.0):
            phase = job.state.phase.value
            raise UsageError(f"{job.name} is {phase}: wait for it with %torchjob attach {job.name}")
        return self._give(_value(job), flags.get("-o") or flags.get("--out"))

    def _cancel(self, rest: str) -> None:
        for name in lines.names("cancel", rest):
            job = api.attach(name)
            job.cancel()
            job.wait(15.0)
            print(f"{name} {job.state.phase.value}")  # noqa: T201

    def _delete(self, rest: str) -> None:
        for name in lines.names("delete", rest):
            api.attach(name).delete()
            print(f"{name} deleted")  # noqa: T201
            if self.newest is not None and self.newest.name == name:
                self.newest = None

    def _config(self, rest: str) -> None:
        if rest:
            info = api.attach(rest).info
            spec = JobSpec.from_json(dict(info.spec))
        else:
            spec = profiles.default()
        print(f"%%torchjob {options.magic_line(spec)}".rstrip())  # noqa: T201


TorchJobMagics.torchjob.__doc__ = "Run a cell as a distributed torch job, and act on jobs.\n\n" + (
    HELP + options.help_text()
)

_VERBS: dict[str, Callable[[TorchJobMagics, str], Any]] = {
    "run": TorchJobMagics._run,
    "list": TorchJobMagics._list,
    "status": TorchJobMagics._status,
    "logs": TorchJobMagics._logs,
    "attach": TorchJobMagics._attach,
    "cancel": TorchJobMagics._cancel,
    "delete": TorchJobMagics._delete,
    "result": TorchJobMagics._result,
    "config": TorchJobMagics._config,
}


def _parse(line: str) -> tuple[JobSpec, CellOptions]:
    # Twice: which profile the other options are laid over is itself an option.
    profile = options.parse(line, JobSpec())[1].profile
    return options.parse(line, profiles.load(profile) if profile else profiles.default())


def _value(job: Job) -> Any:
    return job.results() if job.state.info.all_ranks else job.result()


def _label(shell: InteractiveShell, filename: str) -> str:
    with suppress(AttributeError):  # IPython's own naming of cells, which it doesn't promise
        found = shell.compile.format_code_name(filename)
        if found is not None:
            return " ".join(found)
    return filename


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except SpecError as exc:
        raise UsageError(str(exc)) from None
