"""Where the names that a cell reads come from: the notebook, Python itself, or nowhere."""

from __future__ import annotations

import ast
import builtins
import difflib
import dis
import getpass
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import field
from types import CodeType, FunctionType
from typing import Any

from nbtorchjob.capture.cells import Cell, NameRead, module_in, surely_read
from nbtorchjob.errors import CaptureError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.api import rank_api
from nbtorchjob.runtime.objects import codenames

_LISTS = {"globals", "locals", "vars", "dir"}
_HISTORY = ("In", "Out", "_ih", "_oh", "_dh")
_NO_KEYBOARD = "a rank has no keyboard: set a variable in the notebook"
# Names that a notebook has and a rank lacks, with what to use instead.
_NOTEBOOK_ONLY = {
    "get_ipython": "use plain Python",
    "input": _NO_KEYBOARD,
    "exit": "use sys.exit",
    "quit": "use sys.exit",
    **dict.fromkeys(_HISTORY, "put what you need into a variable of its own"),
}
# Names available on ranks that code often uses without importing them, with the lines that do.
_IMPORTS = {
    **{name: f"from nbtorchjob import {name}" for name in rank_api.__all__},
    "display": "from IPython.display import display",
}


class RankNames(FrozenDataclass):
    """The names that a lab's ranks have, among those looked up; ``why`` says why they lack another name.

    ``suggestions`` gives names that the lab's cells have set, to correct misspelled ones. ``push`` are values
    that replace those on the ranks; ``lab`` is the lab's name.
    """

    names: frozenset[str] = frozenset()
    why: Callable[[str], str] = lambda name: ""
    push: Mapping[str, Any] = field(default_factory=dict)
    lab: str = ""
    suggestions: Callable[[], Iterable[str]] = tuple


NOTHING = RankNames()


def captured(
    cell: Cell, namespace: dict[str, Any], former: Container[str] = (), rank_names: RankNames = NOTHING
) -> tuple[list[str], list[str]]:
    """Return the names that the cell takes from the notebook, in the order of their first use, and notes.

    ``former`` are names that former cells set on their ranks, ``rank_names`` those that its lab's ranks have.
    Raises ``CaptureError`` for a name that only works in a notebook, and for an undefined one that the cell
    is sure to read. An undefined name that it may never reach is a note: plain Python would run the cell.
    """
    _refuse_getpass(cell, namespace)
    names: dict[str, None] = {}
    nowhere: dict[str, NameRead] = {}
    for read in cell.reads:
        settled = read.guarded or read.name in cell.sets
        if _notebook_only(read.name, namespace):
            if not settled:
                raise CaptureError(
                    f"{read.name!r} (line {read.line}) works in the notebook only: "
                    f"{_NOTEBOOK_ONLY[read.name]}"
                )
        elif read.name in rank_names.names:
            continue
        elif read.name in namespace:
            names[read.name] = None
        elif not (settled or cell.star or hasattr(builtins, read.name)):
            nowhere.setdefault(read.name, read)
    texts = sorted(
        name
        for name in cell.texts & namespace.keys() - rank_names.names
        if not _notebook_only(name, namespace)
    )
    notes = [*_undefined(nowhere, cell, namespace, former, rank_names), *_listed(cell)]
    return list(dict.fromkeys((*names, *texts))), notes


def _refuse_getpass(cell: Cell, namespace: Mapping[str, Any]) -> None:
    functions = {name for name, value in namespace.items() if value is getpass.getpass}
    if not cell.attributes.intersection(("getpass", *functions)):
        return
    nodes = [*ast.walk(ast.parse(cell.text))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "getpass":
            functions |= {alias.asname or alias.name for alias in node.names if alias.name == "getpass"}
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        method = isinstance(called, ast.Attribute) and called.attr == "getpass"
        if called is not None and (method or (isinstance(called, ast.Name) and called.id in functions)):
            raise CaptureError(f"'getpass' (line {called.lineno}) works in the notebook only: {_NO_KEYBOARD}")


def _undefined(
    nowhere: dict[str, NameRead],
    cell: Cell,
    namespace: dict[str, Any],
    former: Container[str],
    rank_names: RankNames,
) -> Iterator[str]:
    if not nowhere:
        return
    surely, settled = surely_read(cell), _settled(cell, namespace)
    for name, read in nowhere.items():
        if name in settled:
            continue
        setter = "exec() or the like in the cell" if cell.computes else _setter(name, namespace)
        why = _why(read, {*namespace, *cell.sets, *rank_names.names, *dir(builtins)}, former, rank_names)
        if setter:
            yield f"{name} (line {read.line}): only {setter} can set it"
        elif name in surely:
            raise CaptureError(why)
        else:
            yield f"the cell fails if it reaches line {read.line}: {why}"


def _settled(cell: Cell, namespace: Mapping[str, Any]) -> set[str]:
    """Return the names that a cell sets in ``builtins``, or tests for."""
    nodes = [*ast.walk(ast.parse(cell.text))]
    aliases = {name for name, value in namespace.items() if value is builtins}
    for node in nodes:
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "builtins"}
    set_there = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id in aliases
    }
    asked_for = {  # ``"x" in globals()``
        node.left.value
        for node in nodes
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    }
    return set_there | asked_for


def looked_up(value: Any, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that a function of the notebook, or a class's methods, look up in the notebook."""
    if isinstance(value, type) and value.__module__ == "__main__":
        for member in vars(value).values():
            yield from looked_up(getattr(member, "__func__", member), namespace)
        for base in value.__bases__:
            yield from looked_up(base, namespace)
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, FunctionType) and value.__globals__ is namespace:
        yield from codenames.names_read(value.__code__)


def reached(names: Iterable[str], namespace: Mapping[str, Any]) -> list[str]:
    """Return ``names``, and those that the notebook's code of these names looks up, recursively."""
    seen: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen and (name in namespace or not hasattr(builtins, name)):
            seen[name] = None
            waiting += looked_up(namespace.get(name), namespace)
    return list(seen)


def asked_for_by(fn: Any, args: Iterable[Any] = ()) -> list[str]:
    """Return the names that a function of the notebook, and its arguments, may look up."""
    inner: Any = getattr(fn, "func", fn)
    space: dict[str, Any] = getattr(inner, "__globals__", {})
    names = [name for value in (inner, *args) for name in looked_up(value, space)]
    return reached(names, space if space.get("__name__") == "__main__" else {})


def _notebook_only(name: str, namespace: dict[str, Any]) -> bool:
    if name not in _NOTEBOOK_ONLY or name not in namespace:
        return name in _NOTEBOOK_ONLY
    if name in _HISTORY:
        return "get_ipython" in namespace
    value = namespace[name]
    home = getattr(value, "__module__", None) or type(value).__module__
    return str(home).startswith(("IPython.", "ipykernel."))


def _listed(cell: Cell) -> Iterator[str]:
    """Note where the cell may list all names, rather than look one up."""
    functions = _LISTS.intersection(read.name for read in cell.reads)
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(cell.text), False)] if functions else []
    while waiting:
        node, inside = waiting.pop()
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            waiting.append((child, inside))
            if not isinstance(child, ast.Call) or not isinstance(child.func, ast.Name) or child.args:
                continue
            name = child.func.id
            if name in functions and (name == "globals" or not inside):
                if isinstance(node, ast.Call):
                    looks_one_up = isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
                elif isinstance(node, ast.Attribute):
                    looks_one_up = node.attr in ("get", "setdefault", "pop", "update")
                else:
                    looks_one_up = isinstance(node, ast.Subscript | ast.Compare)
                if not looks_one_up:
                    yield f"on ranks, {name}() (line {child.lineno}) has only what the cell reads and sets"


def computed(code: CodeType, owner: str) -> Iterator[str]:
    """Note where the code of ``owner`` looks up or imports something by a computed name, which isn't seen."""
    steps = [item for item in dis.get_instructions(code) if item.opname not in _NO_STEPS]
    for this, key, then in zip(steps, steps[1:], steps[2:], strict=False):
        method = key.opname in ("LOAD_ATTR", "LOAD_METHOD")  # globals().get(…)
        subscript = then.opname in ("BINARY_SUBSCR", "BINARY_OP") and _variable(key)
        if this.argval == "globals" and (subscript or (method and _variable(then))):
            yield f"{owner} looks up a computed name in globals(): {_NAMED}"
        named = any(map(module_in, codenames.texts(code)))
        if this.argval in ("import_module", "__import__") and _variable(key) and not named:
            yield f"{owner} imports a module by a computed name: {_NAMED_MODULES}"
    if "entry_points" in code.co_names or "iter_entry_points" in code.co_names:
        yield f"{owner} asks for entry points: a cluster's ranks have those of packages installed there"
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from computed(item, owner)


def _variable(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_") and step.opname not in ("LOAD_CONST", "LOAD_ATTR", "LOAD_METHOD")


_NAMED = "ranks have only the names that code mentions"
_NAMED_MODULES = "a cluster's ranks have only the local modules that code mentions"
# Instructions between a function and its arguments, in all Python versions.
_NO_STEPS = ("CACHE", "PRECALL", "PUSH_NULL", "CALL", "CALL_FUNCTION", "EXTENDED_ARG", "NOP", "KW_NAMES")


def _setter(name: str, namespace: dict[str, Any]) -> str:
    """Return the notebook's function that may set the variable ``name`` when it is called."""
    for function in list(namespace.values()):
        if isinstance(function, FunctionType) and function.__globals__ is namespace:
            code = function.__code__
            stores = any(
                (instruction.opname, instruction.argval) == ("STORE_GLOBAL", name)
                for instruction in codenames.instructions(code)
            )
            if stores or name in codenames.names_in_texts(code):
                return f"{function.__name__}()"
    return ""


def _why(read: NameRead, names: set[str], former: Container[str], rank_names: RankNames) -> str:
    where = f"name {read.name!r} (line {read.line})"
    if why := rank_names.why(read.name):
        return f"{where} {why}"
    if read.name in former:
        return (
            f"{where} was set by an earlier %%torchjob cell, but only on its ranks: "
            "set it in this cell, or in the notebook"
        )
    if read.name in _IMPORTS:
        return f"{where} isn't imported: add `{_IMPORTS[read.name]}`"
    near = difflib.get_close_matches(read.name, sorted({*names, *rank_names.suggestions()}), 1)
    hint = f": did you mean {near[0]!r}?" if near else ": set it in one of them"
    places = f"in the cell, nor on the lab {rank_names.lab}" if rank_names.lab else "in the cell"
    return f"{where} is neither defined in the notebook nor {places}{hint}"
