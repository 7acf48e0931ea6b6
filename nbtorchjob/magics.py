"""``%%torchjob`` and ``%torchjob``: split the line, and call what does the work."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from nbtorchjob import api, capture, options, origin, running, session, verbs
from nbtorchjob.errors import CellSyntaxError, LineError, SpecError
from nbtorchjob.folders import working
from nbtorchjob.job import Job
from nbtorchjob.layers import split
from nbtorchjob.options import CellOptions
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import Origin
from nbtorchjob.terminal import safe
from nbtorchjob.text import words
from nbtorchjob.ui import lines, view
from nbtorchjob.ui.panel import ConfigPanel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell


def _help() -> str:
    verbs = [(f"%torchjob {name} {verb.usage}".rstrip(), verb.help) for name, verb in lines.VERBS.items()]
    cell = (
        "%%torchjob [options] [-- args]",
        "run the cell on every rank, and give rank 0's value; args are its sys.argv",
    )
    rows = "\n".join(words.columns([cell, *verbs]))
    return f"{rows}\n\nWithout NAME the newest job of this session is meant.\n\n{options.help_text()}"


class TorchJobMagics:
    """The magics of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self._former: set[str] = set()  # names that cells set on their ranks

    def torchjob(self, line: str, cell: str | None = None) -> Any:
        """Run a cell as a distributed torch job, and act on jobs."""
        with _usage_errors():
            if cell is not None:
                return self._cell(self._expand(line), cell)
            verb, _, rest = line.strip().partition(" ")
            if not verb:
                view.say(_help())
                return None
            if verb not in lines.VERBS:
                known = ", ".join(lines.VERBS)
                raise LineError(f"%torchjob {verb}: there is no such verb; there are {known}")
            if verb == "run":
                return self._run(rest.strip())
            return self._verb(verb, split(self._expand(rest), f"%torchjob {verb}"))

    def _verb(self, verb: str, rest: list[str]) -> Any:
        if verb in _OWN:
            return _OWN[verb](self, rest)
        # Only in a notebook do buttons work, and a job's settings must not become the session's by a look.
        if verb == "config" and not rest and hasattr(self.shell, "kernel") and find_spec("ipywidgets"):
            display(ConfigPanel())
            return None
        for answer in verbs.VERBS[verb](rest, self._job):
            _show(answer)
        return None

    @property
    def _count(self) -> int:
        # The shell's own count is of the next cell already (IPython 9; in 8 it wasn't yet).
        return int(self.shell.displayhook.prompt_count)

    @property
    def _label(self) -> str:
        # What `ipython some.ipynb` runs isn't counted.
        return f"Cell In[{self._count}]" if self._count else "Cell"

    def _expand(self, line: str, depth: int = 4) -> str:
        """Put in the notebook's values for ``{name}`` and ``$name``; ``depth`` frames up is the user's."""
        return str(self.shell.var_expand(line, depth))

    def _cell(self, line: str, cell: str) -> Any:
        spec, cell_options = verbs.parse(line, view.say)
        filename = f"<torchjob cell {self._count}>"
        try:
            call = capture.from_cell(
                cell,
                self.shell.user_ns,
                args=dict(cell_options.arg),
                argv=cell_options.argv,
                filename=filename,
                root=working(),
                former=self._former,
            )
        except SyntaxError as exc:
            drawn = "".join(traceback.format_exception_only(exc)).rstrip("\n")
            raise CellSyntaxError(drawn.replace(f'File "{filename}"', self._label, 1)) from None
        if cell_options.out and not call.gives and not cell_options.detach:
            last = "its last line isn't an expression"
            view.say(f"Note: {cell_options.out} will be None: the cell has no value, as {last}")
        self._former |= call.sets
        return self._submit(call, spec, cell_options)

    def _submit(self, call: capture.Call, spec: JobSpec, cell_options: CellOptions) -> Any:
        if cell_options.dry_run:
            view.say(api.dry_run_call(call, spec))
            return None
        origin = self._origin(call)
        if cell_options.rehearse:
            running.rehearse(call, origin, lambda _: self._view(quiet=cell_options.quiet), view.say)
        return self._hold(running.submit(call, spec, origin, view.say), cell_options)

    def _hold(self, job: Job, cell_options: CellOptions) -> Any:
        """Have ``job`` be the newest, and follow it unless it is detached."""
        session.remember(job)
        if cell_options.detach:
            return self._give(job, cell_options.out)
        value = running.wait(job, self._view(quiet=cell_options.quiet), view.say)
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
        page = hasattr(self.shell, "kernel") and not origin.in_console(self.shell)
        return view.Card() if page else view.Terminal()

    def _origin(self, call: capture.Call) -> Origin:
        return origin.of(self.shell, call.sources, {call.filename: self._label})

    def _job(self, name: str = "") -> Job:
        if name:
            return api.attach(name)
        if (job := session.newest()) is None:
            raise LineError("which job? This session has submitted none; see %torchjob list")
        return job

    def _run(self, rest: str) -> Any:
        found = lines.RUN.fullmatch(rest)
        if found is None:
            raise LineError(f"%torchjob run {rest}: give one call, such as f(x, lr=0.1)")
        spec, cell_options = verbs.parse(self._expand(found["options"], depth=5), view.say)
        if cell_options.arg:
            raise LineError("%torchjob run: --arg is for cells; write arguments into the call")
        if cell_options.argv:
            raise LineError("%torchjob run: arguments behind -- are for cells; write them into the call")
        call = capture.from_expression(found["call"], self.shell.user_ns, root=working())
        return self._submit(call, spec, cell_options)

    def _logs(self, rest: list[str]) -> None:
        found, given = lines.given("logs", rest)
        job = self._job(*found)
        rank = running.rank_of(job, given.get("rank", 0))
        none = "" if given.get("tail") == 0 else f"rank {rank} of {job.name} has written nothing\n"
        view.say(job.logs(rank, given.get("tail")) or none, end="")

    def _attach(self, rest: list[str]) -> Any:
        return self._take("attach", rest, lambda job: job)

    def _retry(self, rest: list[str]) -> Any:
        return self._take("retry", rest, Job.retry)

    def _take(self, verb: str, rest: list[str], act: Callable[[Job], Job]) -> Any:
        found, given = lines.given(verb, rest)
        job = running.trusted(self._job(*found), given)
        return self._hold(act(job), CellOptions(**given))

    def _result(self, rest: list[str]) -> Any:
        found, given = lines.given("result", rest)
        job = running.trusted(self._job(*found), given)
        return self._give(running.ended_value(job), given.get("out"))


TorchJobMagics.torchjob.__doc__ = f"Run a cell as a distributed torch job, and act on jobs.\n\n{_help()}"

# Those that wait, or give a value to the notebook.
_OWN: dict[str, Callable[[TorchJobMagics, list[str]], Any]] = {
    "logs": TorchJobMagics._logs,
    "attach": TorchJobMagics._attach,
    "retry": TorchJobMagics._retry,
    "result": TorchJobMagics._result,
}


def _show(answer: verbs.Answer) -> None:
    if answer.html:
        display({"text/html": answer.html, "text/plain": safe(answer.text)}, raw=True)
    elif answer.text:
        view.say(answer.text)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except (SpecError, LineError) as exc:
        raise UsageError(safe(str(exc))) from None
