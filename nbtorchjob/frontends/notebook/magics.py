"""``%%torchjob`` and ``%torchjob``: they split the line, and call the code that does the work."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core.error import UsageError
from IPython.display import display

from nbtorchjob import api, capture
from nbtorchjob.backends import naming
from nbtorchjob.capture import identity
from nbtorchjob.capture.cells.lookup import NOTHING
from nbtorchjob.commands import front, running, swapping, table, verbs
from nbtorchjob.commands.front import Answer, EditedCell, LogRequest, RunRequest
from nbtorchjob.errors import CellSyntaxError, LineError, NameTakenError, SpecError
from nbtorchjob.frontends.panel import ConfigPanel
from nbtorchjob.job import Job
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.spec import grid, options
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.spec.overlay import split
from nbtorchjob.state import Origin
from nbtorchjob.state.facts.logs import ALL
from nbtorchjob.text import safe, words
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.card import view
from nbtorchjob.ui.card.sending import Output, Sending, announce, drawn
from nbtorchjob.ui.runs import view as view_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell

    from nbtorchjob.runs import Runs


# Message ids of jupyter_client (8.10): session, process, count; frontends in JavaScript send UUIDs.
_PYTHONS = re.compile(r".+_\d+_\d+")
# Braces that IPython would take for expressions: a regular expression's counts, or a set of numbers.
_NUMBERS = re.compile(r"(?<!\{)\{(\d+(?:,\s*\d*)*)\}(?!\})")
# A line's option for the job's name, in any quotes, and where the cell's own arguments begin.
_NAME = re.compile(r"""(?<!\S)--name(?:\s+|=)(?:"[^"]*"|'[^']*'|\S+)""")
_ARGUMENTS = re.compile(r"(?<!\S)(?=--(?!\S))")
_CELL = "%%torchjob [options] [-- args]"
_RUNS_CELL = "run the cell on every rank and return rank 0's value; args become its sys.argv"


def _help() -> str:
    verbs = [(f"%torchjob {name} {verb.usage}".rstrip(), verb.help) for name, verb in table.VERBS.items()]
    rows = "\n".join(words.columns([(_CELL, _RUNS_CELL), *verbs]))
    return f"{rows}\n\nWithout NAME, the newest job of this session is used.\n\n{options.help_text()}"


class TorchJobMagics:
    """The magics of one shell."""

    stays: ClassVar[bool] = True

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self._former: set[str] = set()  # names that cells set on their ranks

    def torchjob(self, line: str, cell: str | None = None) -> Any:
        """Run a cell as a distributed torch job, and act on jobs."""
        with _usage_errors(), interrupts.message("Interrupted." if cell is None else interrupts.NOTHING):
            if cell is not None:
                return self._cell(grid.kept(line, lambda text: self._expand(text, 6)), cell)
            word, _, rest = line.strip().partition(" ")
            if word in ("", "help", *table.HELP):
                view.say(table.help_of(table.named(rest.strip())) if rest.strip() else _help())
                return None
            verb = table.named(word.removesuffix(";"))
            if verb.waits is not None:  # a ";" at the end hides its value: IPython has seen it
                rest = rest.rstrip().removesuffix(";")
            if verb.name == "run":  # its call is Python, in which nothing is expanded
                # The options before a call, and the call; raises ``LineError``
                tail = rest.strip()
                run_line = table.RUN.fullmatch(tail)
                if run_line is None and _asks_help(tail.split()):
                    options, call = table.HELP[0], ""
                else:
                    if run_line is None:
                        raise LineError(f"%torchjob run {tail}: expected one call, such as f(x, lr=0.1)")
                    options, call = run_line["options"], run_line["call"]
                words = [grid.kept(options, lambda text: self._expand(text, 6)), call]
            else:
                words = split(self._expand(rest), f"%torchjob {verb.name}")
            if _asks_help(split(words[0], "%torchjob run") if verb.name == "run" else words):
                view.say(table.help_of(verb))
                return None
            # Buttons work only in a notebook; looking at a job's settings mustn't make them the session's.
            if (
                verb.name == "config"
                and not words
                and hasattr(self.shell, "kernel")
                and find_spec("ipywidgets")
            ):
                display(ConfigPanel())
                return None
            return verb.do(verb.parse(words), self)

    @property
    def _count(self) -> int:
        # The shell's own count is already the next cell's (IPython 9; in 8 it wasn't yet).
        return int(self.shell.displayhook.prompt_count)

    @property
    def _label(self) -> str:
        # What `ipython some.ipynb` runs isn't counted: IPython 8 gives it the number of the next cell, which
        # its history doesn't have yet.
        history = self.shell.history_manager
        counted = self._count > 0 and (history is None or self._count < len(history.input_hist_raw))
        return f"Cell In[{self._count}]" if counted else "Cell"

    def _expand(self, line: str, depth: int = 4) -> str:
        """Expand ``{name}`` and ``$name`` by the notebook's values; the user is ``depth`` frames up."""
        doubled = _NUMBERS.sub(r"{{\1}}", line)
        expanded = str(self.shell.var_expand(doubled, depth))
        return line if expanded == doubled else expanded  # IPython returns what isn't a format as it is

    def _look_up(self, expression: str) -> Any:
        """Return the value of an expression in the notebook."""
        return eval(expression, dict(self.shell.user_ns))  # a copy: a walrus must not set variables

    def _cell(self, line: str, cell: str) -> Any:
        if _asks_help(split(line, "%%torchjob")):
            cell_verbs = "`%torchjob help` lists the commands that act on jobs."
            view.say(
                f"{_CELL}\n\n  {_RUNS_CELL}\n\n{options.help_text()}\n\n{cell_verbs} The cell wasn't run."
            )
            return None
        spec, cell_options = verbs.parse(line, view.say)
        filename = f"<torchjob cell {self._count}>"
        try:
            if cell_options.swap is not None:  # below the magic's line, as in the notebook
                return swapping.cell(cell_options, "\n" + cell, filename, self)
            on = running.ask_lab(
                cell_options, lambda: capture.asked_for(cell, self.shell.user_ns, filename), self
            )
            rows = running.rows(cell_options, self._look_up, self)
            call = capture.from_cell(
                cell,
                self.shell.user_ns,
                args=dict(cell_options.arg),
                argv=cell_options.argv,
                filename=filename,
                root=working(),
                former=self._former,
                rank_names=on.answer.rank_names if on is not None else NOTHING,
                run_values=rows[0] if rows else {},
            )
        except SyntaxError as exc:
            drawn = "".join(traceback.format_exception_only(exc)).rstrip("\n")
            raise CellSyntaxError(drawn.replace(f'File "{filename}"', self._label, 1)) from None
        if cell_options.out and not call.gives and not cell_options.detach and not rows:
            last = "the cell's last line isn't an expression"
            view.say(f"Note: {cell_options.out} will be None, because {last}")
        self._former |= call.sets
        request = RunRequest(call, spec, cell_options, self.origin(call), on, rows)
        try:
            return running.submit(request, self)
        except NameTakenError as exc:
            if exc.running:
                self._show_choice(api.attach(exc.running), request, filename, line)
            raise

    def _show_choice(self, earlier: Job[Any], request: RunRequest, filename: str, line: str) -> None:
        """Show what can be done with a cell if a job of its name still runs something else."""
        other = f"--name {naming.beside(request.spec.name or '', earlier.name)}"
        ahead, *behind = _ARGUMENTS.split(line, maxsplit=1)
        again = _NAME.sub(other, ahead) if _NAME.search(ahead) else f"{other} {ahead}"
        again = "".join((again, *behind)).strip()
        answer = swapping.choice(earlier, EditedCell(request.call.text, filename, self), again)
        if self._page:  # elsewhere the error says as much
            self.show(answer)

    def namespace(self) -> dict[str, Any]:
        """Return the notebook's variables."""
        variables: dict[str, Any] = self.shell.user_ns
        return variables

    def asks(self, question: str) -> bool | None:
        """Ask in the cell, where its frontend can."""
        try:
            return bool(self.shell.ask_yes_no(f"{question} [y/N]", default="n", interrupt="n"))
        except (EOFError, NotImplementedError, RuntimeError):  # nobody is at a keyboard: nbconvert, nbclient
            return None

    def origin(self, call: capture.Call) -> Origin:
        """Return the notebook and cell that a call comes from."""
        return identity.origin_in(self.shell, call.sources, {call.filename: self._label})

    def find(self, name: str) -> Job[Any]:
        """Return the job of that name; for "" this session's newest, or one left by the last session."""
        if name:
            return api.attach(name)
        if newest_here := front.newest():
            return newest_here
        notebook = identity.origin_in(self.shell, ()).notebook
        with front.warned() as notes:
            states = api.jobs() if notebook else []
        running = [s.info for s in states if s.info.notebook == notebook and not s.phase.terminal]
        if not running:
            unread = "".join(f"; {note}" for note in notes)
            raise LineError(f"this session has submitted no job: name one, see %torchjob list{unread}")
        *others, newest = running
        if others:
            names = ", ".join(info.name for info in others)
            view.say(f"Note: {newest.name} is this notebook's newest job; also running: {names}")
        return api.attach(newest.address)

    def called(self, words: Sequence[str]) -> RunRequest:
        """Capture a call: options in the first of two words, Python in the second."""
        options, expression = words
        spec, cell_options = verbs.parse(options, self.say)
        if cell_options.arg:
            raise LineError("%torchjob run: --arg is for cells; pass arguments in the call")
        if cell_options.argv:
            raise LineError("%torchjob run: arguments after -- are for cells; pass them in the call")
        if cell_options.swap is not None:
            raise LineError("%torchjob run: --swap is for cells; a call starts a job")
        on = running.ask_lab(
            cell_options, lambda: capture.asked_for_call(expression, self.shell.user_ns), self
        )
        rank_names = on.answer.rank_names if on is not None else NOTHING
        rows = running.rows(cell_options, self._look_up, self)
        parameters = rows[0] if rows else {}
        call = capture.from_expression(
            expression, self.shell.user_ns, root=working(), rank_names=rank_names, run_values=parameters
        )
        return RunRequest(call, spec, cell_options, self.origin(call), on, rows)

    def say(self, text: str) -> None:
        """Print a text."""
        view.say(text)

    def show(self, answer: Answer) -> None:
        """Show an answer, as HTML if it has any."""
        html = answer.html() if callable(answer.html) else answer.html
        if html:
            display({"text/html": html, "text/plain": safe(answer.text)}, raw=True)
        elif answer.text:
            view.say(answer.text)

    def log(self, job: Job[Any], request: LogRequest) -> None:
        """Print the log; only the command follows one, as a cell that follows a job shows its card."""
        who = "the ranks" if request.rank is None else f"rank {request.rank}"
        has = "have" if request.rank is None else "has"
        wrote = "nothing" if request.selection == ALL else "no such line"
        wrote += f" to {request.stream}" if request.stream else ""
        none = "" if request.tail == 0 else f"{who} of {job.name} {has} written {wrote}\n"
        view.say(b"".join(request.of(job)).decode(errors="replace") or none, end="")

    @contextmanager
    def sending(self, request: RunRequest) -> Iterator[Sending]:
        """Show the sending where the card will be, or in a terminal as text."""
        sending = Sending(request.call, Output())
        shown = drawn(sending) if self._page else announce(sending, view.say)
        with nullcontext() if request.options.quiet else shown:
            yield sending

    def view(self, job: Job[Any], options: CellOptions, place: Output | None) -> view.View:
        """Return a view that draws a card, or in a terminal the log."""
        if options.quiet:
            return view.Silent()
        return view.Card(table.OFFERS, place, lambda: job.trusted) if self._page else view.Terminal()

    def view_runs(self, runs: Runs[Any], options: CellOptions, place: Output) -> view_runs.RunsView:
        """Return a view that draws a card, or in a terminal a line for each run that ends."""
        if options.quiet:
            return view_runs.Silent(view.say)
        return view_runs.Card(place) if self._page else view_runs.Terminal(view.say)

    def give_runs(self, runs: Runs[Any], out: str | None, *, ended: bool) -> Any:
        """Return the runs, or None if they go to the variable ``out``."""
        if out is None:
            runs.drawn = ended
            return runs
        if not ended:
            view.say(f"Not waiting for {runs.name}: {hint('attach', runs.name)} follows it.")
        self.shell.user_ns[out] = runs
        return None

    @property
    def _page(self) -> bool:
        """Whether an output can be updated; not in a console: ``jupyter console``, Qt's, Spyder's.

        These are jupyter_client with somebody at the keyboard; programs that run notebooks (nbclient) have
        nobody there.
        """
        request: Mapping[str, Any] = self.shell.get_parent() if hasattr(self.shell, "get_parent") else {}
        content, header = request.get("content") or {}, request.get("header") or {}
        console = content.get("allow_stdin") and _PYTHONS.fullmatch(str(header.get("msg_id")))
        return hasattr(self.shell, "kernel") and not console

    def reading(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Do nothing: a kernel's output is read for as long as it runs."""
        return nullcontext()

    def failing(self, job: Job[Any]) -> AbstractContextManager[None]:
        """Do nothing: the error is the cell's."""
        return nullcontext()

    def detached(self, job: Job[Any], out: str | None) -> Any:
        """Return the job itself; if it is stored under a name, and so not shown, say how to follow it."""
        if out is not None:
            view.say(f"Not waiting for {job.name}: {hint('attach', job.name)} follows it.")
        return self.give(job, job, out)

    def give(self, job: Job[Any], value: Any, out: str | None) -> Any:
        """Return the cell's value: ``value``, or None if it goes to the variable ``out``."""
        if out is None:
            return value
        # A value stored under a name isn't echoed as well, as with ipyparallel's %%px; Out[n] has it, too.
        self.shell.user_ns[out] = value
        if value is not None:
            self.shell.displayhook.update_user_ns(value)
        return None


TorchJobMagics.torchjob.__doc__ = f"Run a cell as a distributed torch job, and act on jobs.\n\n{_help()}"


def _asks_help(words: Sequence[str]) -> bool:
    """Whether one of the words, before those for the cell, asks for help."""
    ahead = words[: words.index("--")] if "--" in words else words
    return not {*table.HELP}.isdisjoint(ahead)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        with options.by_flag():
            yield
    except (SpecError, LineError) as exc:
        raise UsageError(safe(str(exc))) from None
