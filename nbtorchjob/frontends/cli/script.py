"""``SCRIPT.py:FUNCTION``: the script is loaded, and a call of its function captured.

The script becomes ``__main__``, as a notebook is: so its functions and classes travel by value, and
a value that comes back finds its classes. Code under ``if __name__ == "__main__"`` isn't run.

What follows ``--``: the arguments of the function that a job runs.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import tokenize
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from nbtorchjob import capture
from nbtorchjob.errors import CaptureError, LineError
from nbtorchjob.spec.grid import LookUp
from nbtorchjob.state import Origin

# What ``ast.literal_eval`` raises for a text that isn't a literal.
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arguments(
    fn: Callable[..., Any], words: Sequence[str], parameters: Mapping[str, Any] = MappingProxyType({})
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in ``0.1 --lr 3 --fast``; raises ``LineError`` where ``fn`` can't take them.

    Nor beside what a run is ``given``.

    A word is a Python literal, else text; for a parameter annotated as ``str`` it is always text.
    """
    name_ = getattr(fn, "__name__", type(fn).__name__)  # a partial has none
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # max, and some other functions in C
        raise LineError(f"{name_} has no signature: call it from a function of the script") from None
    taken = signature.parameters
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    left = deque(words)
    while left:
        word = left.popleft()
        if not word.startswith("--"):
            args.append(_value(word, _at(len(args), taken)))
            continue
        flag, equals, text = word[2:].partition("=")
        name = flag.replace("-", "_")
        if not equals and (not left or left[0].startswith("--")):
            kwargs[name] = True
        else:
            kwargs[name] = _value(text if equals else left.popleft(), [taken[name]] if name in taken else [])
    try:
        signature.bind(*args, **{**kwargs, **parameters})
    except TypeError as exc:
        raise LineError(f"{name_}{signature}: {exc}") from None
    return args, kwargs


def _at(index: int, taken: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameter that takes the positional argument of that index, if there is one."""
    named = [parameter for parameter in taken.values() if parameter.kind in _POSITIONAL]
    others = [parameter for parameter in taken.values() if parameter.kind is parameter.VAR_POSITIONAL]
    return (named[index:] or others)[:1]


def _value(text: str, parameter: Sequence[inspect.Parameter]) -> Any:
    """Return the value of a word for its parameter, if it has one."""
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

        Return also what each run of a group is given, which ``rows`` makes with the script's names. Raises
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
        return capture.from_function(fn, args, kwargs, root=self.path.parent, given=first), parameters


def load(path: Path) -> ModuleType:
    """Run a script's definitions as ``__main__``, and return the module. Raises ``CaptureError``."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    code = _compiled(path)
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


def _compiled(path: Path) -> Any:
    try:
        with tokenize.open(path) as file:  # obeys a coding comment, as Python does
            text = file.read()
        tree = _Imported().visit(ast.parse(text, str(path)))
        code = compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as exc:
        raise CaptureError("".join(traceback.format_exception_only(exc)).strip()) from None
    except (OSError, ValueError) as exc:
        raise CaptureError(f"{path} can't be read: {exc}") from None
    # The text travels along, as a notebook's cells do: a pod has no such file to draw a traceback from.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(True), str(path))
    return code


class _Imported(ast.NodeTransformer):
    """Makes ``__name__ == "__main__"`` false outside functions, as in an imported script."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace the comparison by False, or for ``!=`` by True."""
        sides = {ast.unparse(side) for side in (node.left, *node.comparators)}
        if sides != {"__name__", "'__main__'"} or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return node
        return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.NotEq)), node)

    def _as_it_is(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _as_it_is


def _functions(path: Path) -> list[str]:
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return []
    return [
        statement.name for statement in body if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
