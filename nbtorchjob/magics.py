"""``%%torchjob`` and ``%torchjob``: split the line, and call what does the work."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from nbtorchjob import api, capture, options, verbs
from nbtorchjob.config import Elastic
from nbtorchjob.errors import CellSyntaxError, NBTorchJobError, SpecError
from nbtorchjob.job import Job
from nbtorchjob.options import CellOptions
from nbtorchjob.spec import JobSpec
from nbtorchjob.text import values, words
from nbtorchjob.ui import cells, complete, lines, view
from nbtorchjob.ui.panel import ConfigPanel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell

HELP = """%%torchjob [options]                   run the cell on every rank, and give rank 0's value
%torchjob run [options] f(x, lr=0.1)   submit one call

%torchjob list [--all]                 all jobs; with --all other users' on the cluster too
%torchjob status [NAME]                one job's card
%torchjob describe [NAME]              all that is known of it: attempts, budgets, policies, where it is kept
%torchjob logs [NAME] [--rank N]       a rank's log, by default rank 0's; with --tail N its end
%torchjob attach [NAME] [-o VAR] [-d]  follow a job again, and take its value
%torchjob result [NAME] [-o VAR]       the value of a job that has ended
%torchjob cancel NAME...               end jobs; their records stay
%torchjob delete NAME...               end jobs, and remove their records, logs and values
%torchjob suspend NAME...              take jobs' nodes away, and keep the jobs
%torchjob resume NAME...               start suspended jobs' nodes again
%torchjob export NAME FOLDER           write what `kubectl apply -f FOLDER` runs without a notebook

%torchjob gc [--yes]                   ended jobs and what belongs to none; with --yes they are removed
%torchjob doctor [options]             look at all that a job with these options would need
%torchjob config [NAME]                the options that a job has; without NAME a form for new jobs' defaults

Elsewhere, without NAME the newest job of this session is meant.

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
            rest = rest.strip() if verb == "run" else self._expand(rest.strip())
            if verb in _VERBS:
                return _VERBS[verb](self, rest)
            if verb in verbs.VERBS:
                return verbs.VERBS[verb](rest)
            known = ", ".join(complete.VERBS)
            raise UsageError(f"%torchjob {verb}: there is no such verb; there are {known}")

    @property
    def _count(self) -> int:
        # The shell's own count is of the next cell already (IPython 9; in 8 it wasn't yet).
        return int(self.shell.displayhook.prompt_count)

    def _expand(self, line: str, depth: int = 4) -> str:
        """Put in the notebook's values for ``{name}`` and ``$name``; ``depth`` frames up is the user's."""
        return str(self.shell.var_expand(line, depth))

    def _cell(self, line: str, cell: str) -> Any:
        spec, cell_options = verbs.parse(line)
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
        if cell_options.rehearse:
            self._rehearse(call, cell_options)
        for caution in api.cautions(spec):
            print(f"Note: {caution}")  # noqa: T201
        if call.size >= _SAY_SIZE:  # writing it takes a while in which nothing is to be seen
            print(f"Taking {words.size(call.size)} along: {capture.ships_line(call)}")  # noqa: T201
        self.newest = api.submit_call(call, spec, self._labels(call))
        if cell_options.detach:
            return self._give(self.newest, cell_options.out)
        return self._wait(self.newest, cell_options)

    def _rehearse(self, call: capture.Call, cell_options: CellOptions) -> None:
        """Run the call on two ranks of this machine first; what fails here fails before it queues there."""
        job = api.submit_call(call, JobSpec(Elastic(nproc_per_node=2)), self._labels(call))
        shown = self._view(quiet=cell_options.quiet)
        view.watch(job, shown)
        shown.close(job.state)
        failed = job.exception()
        if failed is not None:
            raise failed
        job.delete()

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
        labels = {name: cells.label(self.shell, name) for name in call.sources}
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
        spec, cell_options = verbs.parse(self._expand(found["options"], depth=5))
        if cell_options.arg:
            raise UsageError("%torchjob run: --arg is for cells; write arguments into the call")
        call = capture.from_expression(found["call"], self.shell.user_ns, root=Path.cwd())
        return self._submit(call, spec, cell_options)

    def _config(self, rest: str) -> None:
        # Only in a notebook do buttons work, and a job's settings must not become the session's by a look.
        if not rest and hasattr(self.shell, "kernel") and find_spec("ipywidgets"):
            display(ConfigPanel())
        else:
            verbs.VERBS["config"](rest)

    def _status(self, rest: str) -> None:
        display(view.mimebundle(api.snapshot(self._job(rest).info.address)), raw=True)

    def _describe(self, rest: str) -> None:
        state = api.snapshot(self._job(rest).info.address)
        display(view.description(state, api.enforcement(state.info)), raw=True)

    def _logs(self, rest: str) -> None:
        found, flags = lines.words("logs", rest, {"--rank": int, "--tail": int})
        job = self._job(found[0] if found else "")
        rank = flags.get("--rank", 0)
        none = "" if flags.get("--tail") == 0 else f"rank {rank} of {job.name} has written nothing\n"
        print(job.logs(rank, flags.get("--tail")) or none, end="")  # noqa: T201

    def _attach(self, rest: str) -> Any:
        found, flags = lines.words("attach", rest, {"-o": str, "--out": str, "-d": None})
        self.newest = self._job(found[0] if found else "")
        out = flags.get("-o") or flags.get("--out")
        if "-d" in flags:
            return self._give(self.newest, out)
        return self._wait(self.newest, CellOptions(out=out))

    def _result(self, rest: str) -> Any:
        found, flags = lines.words("result", rest, {"-o": str, "--out": str})
        job = self._job(found[0] if found else "")
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


TorchJobMagics.torchjob.__doc__ = "Run a cell as a distributed torch job, and act on jobs.\n\n" + (
    HELP + options.help_text()
)

_VERBS: dict[str, Callable[[TorchJobMagics, str], Any]] = {
    "run": TorchJobMagics._run,
    "config": TorchJobMagics._config,
    "status": TorchJobMagics._status,
    "describe": TorchJobMagics._describe,
    "logs": TorchJobMagics._logs,
    "attach": TorchJobMagics._attach,
    "cancel": TorchJobMagics._cancel,
    "delete": TorchJobMagics._delete,
    "result": TorchJobMagics._result,
}


def _value(job: Job) -> Any:
    return job.results() if job.state.info.all_ranks else job.result()


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except SpecError as exc:
        raise UsageError(str(exc)) from None
