"""What a cell's text says: the names it reads and sets, its imports, its last function.

The names come from bytecode, so they are exactly those that the cell will look up when it runs.
A name counts as read unless the cell has surely set it itself before.
"""

from __future__ import annotations

import ast
import copy
import dis
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from nbtorchjob.errors import CaptureError

_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL")
# What the compiler reads and sets by itself.
_COMPILED = {"__name__", "__builtins__", "__annotations__", "__conditional_annotations__"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IPYTHON = re.compile(r"\s*(?:[\w.,\s]+=\s*)?[%!]|\s*[\w.%]+\?{1,2}\s*$|\s*\?{1,2}[\w.%]+\s*$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Read:
    """A name that the cell looks up, and where; ``guarded`` if a NameError would be caught."""

    name: str
    line: int
    guarded: bool = False


@dataclass(frozen=True)
class Cell:
    """A parsed cell. ``entry`` is the function to call where the cell only defines things."""

    text: str
    reads: tuple[Read, ...]
    sets: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]  # modules' full names
    star: bool  # there is a star import, so any name may be set
    entry: Function | None


def parse(text: str, filename: str, flags: int = 0) -> Cell:
    """Analyse ``text``; ``flags`` are compiler flags of the notebook's ``__future__`` imports.

    Raises ``SyntaxError`` as Python does, and ``CaptureError`` for an empty cell or IPython syntax.
    """
    try:
        code = compile(text, filename, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except SyntaxError as exc:
        _refuse_ipython(text, exc)
        raise
    tree = ast.parse(text, filename)
    if not tree.body:
        raise CaptureError("the cell is empty: write what the ranks shall run below the magic's line")
    scan = _Scan(filename, flags | code.co_flags & _future_mask(), _guarded(tree))
    scan.block(tree.body, set())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return Cell(
        text,
        tuple(read for read in scan.reads if read.name not in _COMPILED),
        frozenset(scan.sets),
        frozenset(_attributes(code)),
        frozenset(name for node in imports for name in imported(node)),
        any(alias.name == "*" for node in imports for alias in node.names),
        _entry(tree),
    )


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Give the full names of the modules that an import statement may load; no relative ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


class _Scan:
    """Walks a cell's statements in order, keeping track of what is surely set."""

    def __init__(self, filename: str, flags: int, guarded: set[int]) -> None:
        self.reads: list[Read] = []
        self.sets: set[str] = set()
        self._filename = filename
        self._flags = flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._guarded = guarded

    def block(self, body: list[ast.stmt], known: set[str]) -> None:
        """Scan statements that run in order; ``known`` gets the names that they surely set."""
        for stmt in body:
            if isinstance(stmt, ast.Break | ast.Continue):
                continue
            header, blocks = _split(stmt)
            inside = known | self._code(self._compile(header), known)
            for block in blocks:
                # The body of `with` always runs; any other one may not.
                sure = inside if isinstance(stmt, ast.With | ast.AsyncWith) else set(inside)
                self.block(block, sure)
            if not blocks or isinstance(stmt, ast.With | ast.AsyncWith):
                known |= inside

    def _compile(self, stmt: ast.stmt) -> CodeType:
        module = ast.Module([stmt], type_ignores=[])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler has warned about the whole cell already
            code: CodeType = compile(module, self._filename, "exec", self._flags, True)
        return code

    def _code(self, code: CodeType, known: set[str], *, nested: bool = False) -> set[str]:
        """Note what ``code`` reads that isn't ``known``; give the names that it sets in order."""
        mine: set[str] = set()
        for op, arg, line in _instructions(code):
            if op == "STORE_NAME":
                mine.add(arg)
            elif op == "STORE_GLOBAL":
                self.sets.add(arg)
            elif op in _LOADS and not (arg in known or (arg in mine and op.endswith("_NAME"))):
                # Annotations are evaluated only when asked for (PEP 649).
                lazy = code.co_name == "__annotate__"
                self.reads.append(Read(arg, line, lazy or line in self._guarded))
            elif isinstance(arg, CodeType):
                # A class body's names are no globals to the functions in it.
                self._code(arg, known if nested else known | mine, nested=True)
        if not nested:
            self.sets |= mine
        return mine


def _instructions(code: CodeType) -> Iterator[tuple[str, Any, int]]:
    lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset) or line
        yield instruction.opname, instruction.argval, line


def _split(stmt: ast.stmt) -> tuple[ast.stmt, list[list[ast.stmt]]]:
    """Give a compound statement with its blocks emptied, and the blocks."""
    if isinstance(stmt, _DEFINITIONS):
        return stmt, []
    blocks: list[list[ast.stmt]] = []

    def emptied(node: ast.AST) -> ast.AST:
        shell = copy.copy(node)
        for field in ("body", "orelse", "finalbody"):
            if getattr(node, field, None):
                blocks.append(getattr(node, field))
                setattr(shell, field, [ast.copy_location(ast.Pass(), stmt)])
        for field in ("handlers", "cases"):
            if hasattr(node, field):
                setattr(shell, field, [emptied(part) for part in getattr(node, field)])
        return shell

    header = emptied(stmt)
    assert isinstance(header, ast.stmt)
    return header, blocks


def _guarded(tree: ast.Module) -> set[int]:
    """Give the lines whose NameError the cell catches: they ask whether a name is there."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(map(_catches, node.handlers)):
            lines.update(range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1))
    return lines


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id == "NameError" for n in ast.walk(handler.type))


def _attributes(code: CodeType) -> set[str]:
    inner = (_attributes(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _entry(tree: ast.Module) -> Function | None:
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    if not all(isinstance(stmt, (*_DEFINITIONS, ast.Import, ast.ImportFrom)) for stmt in body):
        return None
    functions = [s for s in body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
    return functions[-1] if functions else None


def _future_mask() -> int:
    import __future__

    return sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def _refuse_ipython(text: str, exc: SyntaxError) -> None:
    lines = text.splitlines()
    line = lines[exc.lineno - 1] if exc.lineno and exc.lineno <= len(lines) else ""
    if _IPYTHON.match(line):
        raise CaptureError(
            f"line {exc.lineno}: {line.strip()!r} is IPython's, and a rank runs plain Python; "
            "put it in a cell of its own"
        ) from exc
