"""``SCRIPT.py:FUNCTION``: the script is loaded, a call of its function captured, and its job shown.

The script becomes ``__main__``, as a notebook is: so its functions and classes travel by value, and
a value that comes back finds its classes. Code under ``if __name__ == "__main__"`` isn't run.

The words after ``--`` are the function's arguments. On a terminal, or in the log of a CI run, a job's own
log is written to stdout, its status to stderr.
"""

from __future__ import annotations

import ast
import inspect
import sys
import time
import tokenize
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from nbtorchjob import capture
from nbtorchjob.commands.front import LogRequest
from nbtorchjob.errors import CaptureError, LineError
from nbtorchjob.job import Job
from nbtorchjob.runtime.objects import sources
from nbtorchjob.spec.grid import LookUp
from nbtorchjob.state import JobState, Origin, Phase
from nbtorchjob.state.facts.events import Closed, Event, LogChunk, Lost, WorkersStarted
from nbtorchjob.state.facts.logs import LogLine, Splitter, of_stream
from nbtorchjob.ui.card import Notes, render

# What ``ast.literal_eval`` raises for a text that isn't a literal.
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arguments(
    fn: Callable[..., Any], words: Sequence[str], parameters: Mapping[str, Any] = MappingProxyType({})
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in ``0.1 --lr 3 --fast``; raises ``LineError`` if ``fn`` can't take them.

    ``fn`` has to take them together with a run's own ``parameters``.

    A word is a Python literal, else text; for a parameter annotated as ``str`` it is always text.
    """
    name_ = getattr(fn, "__name__", type(fn).__name__)  # a partial has none
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # max, and some other functions in C
        raise LineError(f"{name_} has no signature: call it from a function of the script") from None
    fn_parameters = signature.parameters
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        if not word.startswith("--"):
            # The parameter that takes the positional argument of that index, if there is one.
            index = len(args)
            named = [parameter for parameter in fn_parameters.values() if parameter.kind in _POSITIONAL]
            others = [
                parameter
                for parameter in fn_parameters.values()
                if parameter.kind is parameter.VAR_POSITIONAL
            ]
            args.append(_value(word, (named[index:] or others)[:1]))
            continue
        flag, equals, text = word[2:].partition("=")
        name = flag.replace("-", "_")
        if not equals and (not left or left[0].startswith("--")):
            kwargs[name] = True
        else:
            kwargs[name] = _value(
                text if equals else left.popleft(), [fn_parameters[name]] if name in fn_parameters else []
            )
    try:
        signature.bind(*args, **{**kwargs, **parameters})
    except TypeError as exc:
        raise LineError(f"{name_}{signature}: {exc}") from None
    return args, kwargs


def _value(text: str, parameter: Sequence[inspect.Parameter]) -> Any:
    """Return the value of a word; ``parameter`` has the parameter that takes it, if there is one."""
    if any(taker.annotation is str or taker.annotation == "str" for taker in parameter):
        return text
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        return text


Rows: TypeAlias = Callable[[LookUp], "list[dict[str, Any]]"]

_USAGE = "nbtorchjob run SCRIPT.py:FUNCTION"


class Target(NamedTuple):
    """A function of a script."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``SCRIPT.py:FUNCTION``; raises ``LineError``."""
        path, colon, name = text.rpartition(":")
        script = Path(path if colon else text).absolute()
        if script.suffix != ".py" or not script.is_file():
            raise LineError(f"{_USAGE}: got {text!r}, but there is no script {script}")
        if not name.isidentifier():
            named = ", ".join(f"{script.name}:{function}" for function in _functions(script)) or "none"
            raise LineError(f"{_USAGE}: got {text!r}; its functions are: {named}")
        return cls(script, name)

    @property
    def origin(self) -> Origin:
        """The script's name in tracebacks."""
        return Origin(labels={str(self.path): self.path.name})

    def call(self, words: Sequence[str], rows: Rows) -> tuple[capture.Call, list[dict[str, Any]]]:
        """Load the script, and capture a call of the function with ``words`` as its arguments.

        Also return the values of each run of a group, which ``rows`` makes with the script's names. Raises
        ``CaptureError``, ``LineError`` and ``SpecError``.
        """
        space = vars(load(self.path))
        fn = space.get(self.name)
        if not callable(fn):
            named = ", ".join(_functions(self.path)) or "none"
            raise LineError(f"{self.path.name} has no function {self.name!r}; its functions are: {named}")
        parameters = rows(lambda expression: eval(expression, dict(space)))
        first = parameters[0] if parameters else {}
        args, kwargs = arguments(fn, words, first)
        return capture.from_function(fn, args, kwargs, root=self.path.parent, run_values=first), parameters


def load(path: Path) -> ModuleType:
    """Run a script's definitions as ``__main__``, and return the module. Raises ``CaptureError``."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    try:
        with tokenize.open(path) as file:  # obeys a coding comment, as Python does
            text = file.read()
        tree = _Imported().visit(ast.parse(text, str(path)))
        code = compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as exc:
        raise CaptureError("".join(traceback.format_exception_only(exc)).strip()) from None
    except (OSError, ValueError) as exc:
        raise CaptureError(f"{path} can't be read: {exc}") from None
    # The text travels along, as a notebook's cells do: a pod lacks the file, which tracebacks quote.
    sources.show(text, str(path))
    sys.modules["__main__"] = module
    sys.path.insert(0, str(path.parent))
    try:
        exec(code, module.__dict__)
    except SystemExit as exc:
        raise CaptureError(
            f"{path.name} exited ({exc.code!r}) while loading: "
            "move its entry point below if __name__ == '__main__'"
        ) from exc
    except Exception as exc:  # whatever its code raises
        users_traceback = exc.__traceback__ and exc.__traceback__.tb_next
        drawn = "".join(traceback.format_exception(type(exc), exc, users_traceback)).rstrip()
        raise CaptureError(f"{path.name} can't be loaded, and nothing was submitted:\n{drawn}") from exc
    return module


class _Imported(ast.NodeTransformer):
    """Makes ``__name__ == "__main__"`` false outside functions, as in an imported script."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace the comparison by False, or for ``!=`` by True."""
        sides = {ast.unparse(side) for side in (node.left, *node.comparators)}
        if sides != {"__name__", "'__main__'"} or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return node
        return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.NotEq)), node)

    def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
        """Leave functions unchanged."""
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef


def _functions(path: Path) -> list[str]:
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return []
    return [
        statement.name for statement in body if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


_RANK_0 = LogRequest()


class Stream:
    """The requested part of the logs as it arrives, and a line for each phase (a ``View``).

    The log is written in the thread that follows the job, so that a slow reader slows that thread down and
    no output piles up here.
    """

    tells = False

    def __init__(
        self,
        job: Job[Any],
        *,
        write: Callable[[bytes], object],
        tell: Callable[[str], object],
        request: LogRequest = _RANK_0,
    ) -> None:
        self._write = write
        self._tell = tell
        self._request = request
        self._splitters: dict[int, Splitter] = {}  # by rank
        self._node_ranks: set[tuple[int, int]] = set()  # rank and round, on the requested node
        self._line_open = False
        self._phase: Phase | None = None
        self._notes = Notes()
        job.listen(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Closed | Lost):
            self._put(line for splitter in self._splitters.values() for line in splitter.end())
        if isinstance(event, WorkersStarted) and event.node == self._request.node:
            self._node_ranks |= {(rank, event.round) for rank in event.ranks}
        if not isinstance(event, LogChunk):
            return
        by_rank = self._request.rank in (None, event.rank)
        if not (by_rank if self._request.node is None else (event.rank, event.round) in self._node_ranks):
            return
        if self._request.as_written:
            if data := b"".join(data for _, data in of_stream(event, self._request.stream)):
                self._write(data)
                self._line_open = not data.endswith(b"\n")
        else:
            splitter = Splitter(event.rank, self._request.stream)
            self._put(self._splitters.setdefault(event.rank, splitter).feed(event))

    def _put(self, lines: Iterable[LogLine]) -> None:
        if shown := b"".join(map(self._request.shown, filter(self._request.selection.has, lines))):
            self._write(shown)

    def draw(self, state: JobState) -> None:
        """Print the job's status, once for each phase, and what its user should know or do."""
        if state.phase is not self._phase and not state.phase.terminal:
            self._phase = state.phase
            self._say(state)
        if notes := self._notes.new(state):
            self._tell(notes.rstrip("\n"))

    def close(self, state: JobState, value: str = "", *, deleted: bool = False) -> None:
        """Print how the job ended, or if it continues, its status."""
        self._say(state)

    def _say(self, state: JobState) -> None:
        # A progress bar leaves the line open.
        self._tell(("\n" if self._line_open else "") + render.last_line(state, time.time()))
        self._line_open = False
