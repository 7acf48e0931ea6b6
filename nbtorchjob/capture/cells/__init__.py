"""The analysis of a cell's text: the names it reads and sets, its imports, its last function.

The names come from bytecode, so they are exactly those that the cell will look up when it runs.
A name counts as read unless the cell is sure to have set it before.

Also: whether code may stop in a debugger, for which its ranks are prepared (``runtime/debug``), and where
each of a text's statements stands.
"""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import re
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from types import CodeType
from weakref import WeakKeyDictionary

from nbtorchjob.capture.cells import flow
from nbtorchjob.errors import CaptureError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.api import rank_api
from nbtorchjob.runtime.objects import codenames

_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL")
# Names that the compiler reads and sets by itself.
_COMPILED = {"__name__", "__builtins__", "__annotations__", "__conditional_annotations__"}
_SETTERS = {"exec", "eval", "globals", "locals", "vars"}
_ASKED = ("NameError",)  # code that catches these tests whether a name exists
_SWALLOWED = (*_ASKED, "Exception", "BaseException")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IPYTHON = re.compile(r"\s*(?:[\w.,\s]+=\s*)?[%!]|\s*[\w.%]+\?{1,2}\s*$|\s*\?{1,2}[\w.%]+\s*$")

_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))  # except* came with Python 3.11

_modules_named: WeakKeyDictionary[CodeType, set[str]] = WeakKeyDictionary()

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NameRead(FrozenDataclass):
    """A name that the cell looks up, and where; ``guarded`` if a NameError would be caught."""

    name: str
    line: int
    guarded: bool = False


class Cell(FrozenDataclass):
    """A parsed cell. ``entry`` is the function to call where the cell only defines things."""

    text: str
    code: CodeType
    reads: tuple[NameRead, ...]
    sets: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]  # modules' full names
    star: bool  # there is a star import, so any name may be set
    computes: bool  # there is `exec` or the like, so any name may be set
    texts: frozenset[str]  # names in texts that may be evaluated
    entry: Function | None
    gives: bool  # it has a value: its last expression's, or its function's
    plain: bool  # its value, if any, is a literal or what `print` returns


@lru_cache(maxsize=4)  # a lab's cell is analysed for its names, and again when it is captured
def parse(text: str, filename: str, flags: int = 0) -> Cell:
    """Analyse ``text``; ``flags`` are compiler flags of the notebook's ``__future__`` imports.

    Raises ``SyntaxError`` as Python does, and ``CaptureError`` for an empty cell or IPython syntax.
    """
    # Take the first line's indentation from all lines that have it, as IPython does.
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    text = "".join(line.removeprefix(indent) for line in lines) if indent else text
    try:
        code = compile(text, filename, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except SyntaxError as exc:
        lines = text.split("\n")  # Python counts no others: a form feed, say, ends none
        line = lines[exc.lineno - 1] if exc.lineno and exc.lineno <= len(lines) else ""
        if _IPYTHON.match(line):
            raise CaptureError(
                f"line {exc.lineno}: {line.strip()!r} is IPython's syntax, and ranks run plain "
                "Python: put it in a cell of its own"
            ) from exc
        raise
    tree = ast.parse(text, filename)
    if not tree.body:
        raise CaptureError("the cell is empty: write the ranks' code below the magic's line")
    scan = _Scan(_guarded(tree, _ASKED))
    scan.code(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        inner = [name for name in imported(node) if name.startswith("nbtorchjob.")]
        if isinstance(node, ast.ImportFrom) and node.module == "nbtorchjob" and not node.level:
            inner += [
                f"nbtorchjob.{alias.name}" for alias in node.names if alias.name not in rank_api.__all__
            ]
        for name in inner:
            if not name.startswith("nbtorchjob.runtime"):
                raise CaptureError(f"line {node.lineno}: {for_the_notebook(name.partition('.')[2])}")
    function, last = entry(tree), tree.body[-1]
    star = any(alias.name == "*" for node in imports for alias in node.names)
    modules = {name for node in imports for name in imported(node)}
    computes = any(read.name in _SETTERS for read in scan.reads) or "__main__" in modules
    sets_print = star or computes or "print" in scan.sets or "builtins" in modules
    return Cell(
        text,
        code,
        tuple(read for read in scan.reads if read.name not in _COMPILED),
        frozenset(scan.sets),
        frozenset(_attributes(code)),
        frozenset((*modules_named(code), *modules)),
        star,
        computes,
        frozenset((*codenames.names_in_texts(code), *_annotated(tree, code))),
        function,
        function is not None or isinstance(last, ast.Expr),
        function is None and _is_plain(last, prints=not sets_print),
    )


def _is_plain(last: ast.stmt, *, prints: bool) -> bool:
    """Whether a cell whose last statement is ``last`` has only a plain value, or none.

    ``prints`` is whether `print` is Python's.
    """
    match last:
        case ast.Expr(value=ast.Constant(value=None | str() | float())):
            return True
        case ast.Expr(value=ast.Constant(value=int(number))):
            return number.bit_length() < 64
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return prints
        case _:
            return not isinstance(last, ast.Expr)


def check_defines(cell: Cell) -> None:
    """Raise ``CaptureError`` for the first line of a cell that does more than define names."""
    body = ast.parse(cell.text).body
    for statement in body[ast.get_docstring(ast.Module(body, [])) is not None :]:
        if not defines(statement):
            raise CaptureError(
                f"line {statement.lineno} does more than define something: a swap takes functions, classes, "
                "imports, and values of names"
            )
    if cell.star:
        raise CaptureError("a swap can't take `import *`: name what to import")


def defines(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but define names."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        parts = [part for target in targets for part in getattr(target, "elts", (target,))]
        return statement.value is not None and all(isinstance(part, ast.Name) for part in parts)
    return isinstance(statement, (*_DEFINITIONS, ast.Import, ast.ImportFrom))


# Finders of a module, or of something in one, by a string: importlib, pkgutil, pydoc, runpy, hydra, werkzeug.
BY_TEXT = frozenset(
    (
        "EntryPoint",
        "__import__",
        "find_spec",
        "get_class",
        "get_method",
        "get_object",
        "import_module",
        "import_string",
        "instantiate",
        "locate",
        "resolve_name",
        "run_module",
    )
)


def module_in(text: str) -> str:
    """Return the module that a string such as "a.b" or "a.b:c" names; "" for other strings."""
    module = text.partition(":")[0]
    return module if all(part.isidentifier() for part in module.split(".")) else ""


def modules_named(code: CodeType) -> set[str]:
    """Return the modules that code imports, also by a string, as ``import_module`` does."""
    if code in _modules_named:
        return _modules_named[code]
    listing = list(codenames.instructions(code))
    names = {
        instruction.argval
        for instruction in listing
        if instruction.opname == "IMPORT_NAME" and instruction.argval
    }
    if BY_TEXT.intersection(str(instruction.argval) for instruction in listing):
        names.update(filter(None, map(module_in, codenames.texts(code))))
    _modules_named[code] = names
    return names


def for_the_notebook(name: str) -> str:
    """Return the message that a name of this package isn't available on ranks."""
    return f"nbtorchjob.{name} is for the notebook; on ranks there are {', '.join(rank_api.__all__)}"


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the full names of the modules that an import statement may load; no relative ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


class _Scan:
    """Scans a cell's code and the code that it defines."""

    def __init__(self, guarded: set[int]) -> None:
        self.reads: list[NameRead] = []
        self.sets: set[str] = set()
        self._guarded = guarded
        self._names = flow.Names()

    def code(self, code: CodeType, outer_names: int = 0, *, nested: bool = False) -> None:
        """Note the names that ``code`` reads and may not have set; ``outer_names`` were set before it."""
        lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
        # Annotations are evaluated on first use (PEP 649).
        lazy = code.co_name == "__annotate__"
        steps: Iterator[tuple[dis.Instruction, int]]
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function: it may run at any time, or never
            steps = ((instruction, 0) for instruction in dis.get_instructions(code))
        else:
            steps = flow.walk(code, self._names)
        for instruction, own_names in steps:
            line = lines.get(instruction.offset) or line
            sure = outer_names | own_names
            if instruction.opname in _LOADS and not sure & self._names.bit(instruction.argval):
                self.reads.append(NameRead(instruction.argval, line, lazy or line in self._guarded))
            if isinstance(instruction.argval, CodeType):
                # A class body's names are not visible to the functions in it.
                self.code(instruction.argval, outer_names if nested else sure, nested=True)
            elif instruction.opname == "STORE_GLOBAL" or (instruction.opname == "STORE_NAME" and not nested):
                self.sets.add(instruction.argval)


def surely_read(cell: Cell) -> set[str]:
    """Return the names that the cell is sure to look up if it runs to its end.

    It is assumed to call the functions and classes that it defines and then names. Lambdas don't count, as it
    is unknown whether anything calls them.
    """
    swallowed = _guarded(ast.parse(cell.text), _SWALLOWED)
    defined: dict[str, list[CodeType]] = {}
    names = {cell.entry.name} if cell.entry else set()
    waiting, seen = [cell.code], set()
    while waiting:
        code = waiting.pop()
        seen.add(code)
        lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
        for instruction in flow.surely(code):
            line = lines.get(instruction.offset) or line
            if isinstance(instruction.argval, CodeType):
                # A function is assumed to call the functions in it; methods count once their class is named.
                of_class = not code.co_flags & inspect.CO_OPTIMIZED and code.co_name.isidentifier()
                of_cell = instruction.argval.co_name if code is cell.code else ""
                later = code.co_name if of_class else of_cell
                inner = instruction.argval
                if later and inner.co_flags & inspect.CO_OPTIMIZED and inner.co_name.isidentifier():
                    defined.setdefault(later, []).append(inner)
                elif inner.co_name not in ("__annotate__", "<lambda>"):
                    waiting.append(inner)
            elif instruction.opname in _LOADS and line not in swallowed:
                names.add(instruction.argval)
        for name in names & defined.keys():
            waiting += [inner for inner in defined.pop(name) if inner not in seen]
    return names


def _guarded(tree: ast.Module, names: Container[str]) -> set[int]:
    """Return the lines where an exception called one of ``names`` would be caught."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _TRY):
            caught = any(handler.type is None or _names(handler.type, names) for handler in node.handlers)
        elif isinstance(node, ast.With | ast.AsyncWith):
            caught = any(
                _names(item.context_expr, ("suppress",)) and _names(item.context_expr, names)
                for item in node.items
            )
        else:
            continue
        if caught:
            lines.update(range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1))
    return lines


def _names(node: ast.expr, names: Container[str]) -> bool:
    return any(getattr(part, "id", getattr(part, "attr", "")) in names for part in ast.walk(node))


def _attributes(code: CodeType) -> set[str]:
    inner = (_attributes(const) for const in code.co_consts if isinstance(const, CodeType))
    texts = (
        [const for const in code.co_consts if isinstance(const, str)] if "getattr" in code.co_names else []
    )
    return set(code.co_names).union(*(text.split(".") for text in texts), *inner)


def _annotated(tree: ast.Module, code: CodeType) -> set[str]:
    """Return the names in string annotations: dataclasses look up ``ClassVar`` by these."""
    parts = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    texts = [
        constant.value
        for part in parts
        if part
        for constant in ast.walk(part)
        if isinstance(constant, ast.Constant)
    ]
    if code.co_flags & __future__.annotations.compiler_flag:
        texts += [ast.unparse(part) for part in parts if isinstance(part, ast.expr)]
    return set().union(*(codenames.names_in(text) for text in texts if isinstance(text, str)))


def entry(tree: ast.Module) -> Function | None:
    """Return the function to call in a cell that only defines things: its last one."""
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    if not all(isinstance(stmt, (*_DEFINITIONS, ast.Import, ast.ImportFrom)) for stmt in body):
        return None
    functions = [s for s in body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
    return functions[-1] if functions else None


_READS = ("LOAD_NAME", "LOAD_GLOBAL")
_FINDS = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", *_READS)
_NAMES = {"breakpoint", "set_trace"}
_DISTRIBUTED = ("dist", "distributed", "torch.distributed")  # the module with a breakpoint() of its own


def stops(code: CodeType) -> bool:
    """Whether ``code``, or code that it defines, calls a debugger by name."""
    # Hardly any code has such a name, and disassembling it costs a hundred times as much as checking that.
    if not _NAMES.isdisjoint(code.co_names):
        before: object = None
        for item in dis.get_instructions(code):
            anywhere = item.argval == "set_trace" or (item.argval == "breakpoint" and before in _DISTRIBUTED)
            finds = _FINDS if anywhere else _READS if item.argval == "breakpoint" else ()
            if item.opname in finds:
                return True
            before = item.argval
    return any(stops(item) for item in code.co_consts if isinstance(item, CodeType))


def file_stops(source: bytes) -> bool:
    """Whether a file's code calls a debugger by name."""
    if not any(name.encode() in source for name in _NAMES):  # compiling it takes milliseconds
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file's own warnings
        try:
            return stops(compile(source, "<file>", "exec", dont_inherit=True))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # no code, or none that can run
            return False


def spans(text: str, body: Sequence[ast.stmt]) -> Iterator[slice]:
    """Yield the span of each statement in a text: whole lines, except those shared with other statements."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def first_line(statement: ast.stmt) -> int:
        parts: list[ast.stmt | ast.expr] = [statement, *getattr(statement, "decorator_list", ())]
        return min(part.lineno for part in parts)

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for number, statement in enumerate(body):
        first, last = first_line(statement), statement.end_lineno or statement.lineno
        start, stop = starts[first - 1], starts[last] - 1
        if number and body[number - 1].end_lineno == first:
            start = at(first, statement.col_offset)
        if number + 1 < len(body) and first_line(body[number + 1]) == last:
            stop = at(last, statement.end_col_offset or 0)
        yield slice(start, stop)


def spliced(text: str, span: slice, rows: Iterable[str]) -> str:
    """Return a text with rows in place of a statement; a line shared with other statements is split."""
    before, after = text[: span.start], text[span.stop :]
    return "\n".join(
        [
            *([before.rstrip(" \t;").removesuffix("\n")] if before else []),
            *rows,
            *([after.lstrip(" \t;").removeprefix("\n")] if after else []),
        ]
    )
