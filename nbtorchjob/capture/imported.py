"""How a module of the notebook's folder differs here from what ranks get, which import its file anew."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nbtorchjob.capture import opened
from nbtorchjob.runtime.objects import importable, pickler
from nbtorchjob.text import words


def differences(paths: Mapping[str, Path]) -> list[str]:
    """Describe what was set in local modules or edited in their files, and which data isn't taken along.

    ``paths`` are the files that are taken, by what they are called there.
    """
    wanted = {str(path): name for name, path in paths.items() if path.suffix == ".py"}
    if not wanted:  # as of most cells: a kernel has thousands of modules to go through
        return []
    notes = [note for name, path in paths.items() if path.suffix == ".py" for note in _data(name, path)]
    for module in list(sys.modules.values()):
        file = importable.attributes(module).get("__file__")
        if isinstance(module, ModuleType) and isinstance(file, str) and file in wanted:
            notes += _module(module, Path(file), wanted[file])
    return notes


def patched(names: Iterable[str], captured: Mapping[str, Any]) -> Iterator[str]:
    """Describe what the notebook put in the place of functions and methods of Python or of installed modules.

    ``names`` are the modules that what travels refers to: their packages are looked through, as one module's
    functions run those of others. A module that the notebook made has no other place.
    """
    tops = {name.partition(".")[0] for name in names} - {"__main__"}
    for name, module in sys.modules.copy().items():
        if name != "builtins" and (name.partition(".")[0] not in tops or not importable.installed(module)):
            continue
        space = importable.attributes(module).copy()
        replaced = [key for key, value in _of_notebook(space) if captured.get(key) is not value]
        if name in tops:  # within packages it is common: numpy's array_function_dispatch
            replaced += [key for key, value in space.items() if type(value) is partial and _is_of(value, key)]
        for key, value in space.items():
            # What was made by a metaclass is looked at by type alone: it may do anything when it is asked.
            if issubclass(type(value), type) and type.__getattribute__(value, "__module__") == name:
                methods = type.__getattribute__(value, "__dict__").copy()
                replaced += [f"{key}.{method}" for method, _ in _of_notebook(methods)]
        for key in replaced:
            yield f"{name}.{key} was set in the notebook: on ranks it is as {name} has it"


def _of_notebook(space: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what in a module or class is of the notebook, also what ``wraps`` has named after another."""
    members = []
    for key, value in space.items():  # 80,000 of torch and what it imports: 30 ms
        kind = type(value)
        if kind is property:
            function = value.fget
        else:
            function = value.__func__ if kind in (staticmethod, classmethod) else value
        if type(function) is FunctionType:
            if function.__globals__.get("__name__") == "__main__":
                members.append((key, value))
        elif issubclass(kind, type) and type.__getattribute__(value, "__module__") == "__main__":
            members.append((key, value))
    return members


def _is_of(value: partial[Any], key: str) -> bool:
    """Whether it is what stood there, with some arguments: ``torch.load = partial(torch.load, …)``."""
    return getattr(value.func, "__name__", "") == key


def _module(module: ModuleType, path: Path, name: str) -> Iterator[str]:
    try:
        text = path.read_text()
        tree, code = ast.parse(text), compile(text, str(path), "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError):  # a file that has been broken since; ranks will say so
        return
    # Who imports in a way of their own (pytest, type checkers at run time) makes other code of the same text.
    if type(module.__loader__) is SourceFileLoader and _edited(module, code):
        yield f"{name} was edited after it was imported here: ranks run its new text"
        return
    for owner, space, body in _spaces(module, tree):
        yield from _set_here(owner, space, body, path, name, tree)


_Body = list[ast.stmt]


def _spaces(module: ModuleType, tree: ast.Module) -> Iterator[tuple[str, Mapping[str, Any], _Body]]:
    """Yield what a module, and each class that it defines, is called and holds, with its statements."""
    yield module.__name__, importable.attributes(module), tree.body
    for stmt in tree.body:
        cls = importable.attributes(module).get(stmt.name) if isinstance(stmt, ast.ClassDef) else None
        # What a NamedTuple, a decorator or a base's __init_subclass__ sets is in no text.
        if isinstance(stmt, ast.ClassDef) and type(cls) is type and not stmt.decorator_list:
            if issubclass(cls, tuple) or hasattr(cls.__init_subclass__, "__func__"):
                continue
            yield f"{module.__name__}.{stmt.name}", vars(cls), stmt.body


def _set_here(
    owner: str, space: Mapping[str, Any], body: _Body, path: Path, name: str, tree: ast.Module
) -> Iterator[str]:
    """Describe what a module's or a class's namespace has that its text doesn't give it."""
    anew = f"on ranks: they import {name} anew"
    bound = _bound(tree)
    literals = _literals(body)
    defined = {stmt.name: stmt for stmt in body if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef)}
    for key, here in [*space.items()]:
        if key in literals and bound.count(key) == 1:
            value = literals[key]
            if type(here) is not type(value) or here != value:
                yield f"{owner}.{key} is {words.short(here)} here, and {words.short(value)} {anew}"
            continue
        function = here.__func__ if type(here) in (staticmethod, classmethod) else here
        code = function.__code__ if type(function) is FunctionType else None
        replaced = code is not None and key in defined and not _decorated(defined[key])
        if _made_in(function) == "__main__":
            yield f"{owner}.{key} was set in the notebook, which isn't so {anew}"
        elif replaced and code is not None and (code.co_name, code.co_filename) != (key, str(path)):
            yield f"{owner}.{key} was replaced here, which isn't so {anew}"
        elif _is_new(key, here, bound):
            yield f"{owner}.{key} was set here, and isn't there {anew}"


def _made_in(obj: Any) -> object:
    """Return the name of the module that defines a function, a class, or another object's class.

    The object isn't asked: it may warn of that (torch's reduce_op), or answer anything.
    """
    if issubclass(type(obj), FunctionType):
        return obj.__module__
    return type.__getattribute__(obj if issubclass(type(obj), type) else type(obj), "__module__")


def _decorated(function: ast.stmt) -> bool:
    return bool(getattr(function, "decorator_list", ()))


def _is_new(key: str, here: Any, bound: list[str]) -> bool:
    """Whether plain data lies under a name that the module's text never sets, and can't compute."""
    plain = here is None or type(here) in (bool, int, float, complex, str, bytes, tuple, list, dict, set)
    return plain and not (key.startswith("__") or key in bound or "*" in bound)


def _bound(tree: ast.Module) -> list[str]:
    """Return the names that a module's text sets anywhere, as often as it does; ``*`` if it may set any."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Name) and node.id in ("globals", "vars", "setattr", "exec", "locals"):
            names.append("*")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.append(getattr(node.value, "id", getattr(node.value, "attr", "")))  # an entry of a registry
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGE:
                names.append(getattr(node.func.value, "id", getattr(node.func.value, "attr", "")))
        elif isinstance(getattr(node, "name", None), str) and not isinstance(node, ast.alias):
            names.append(getattr(node, "name", ""))  # a definition, an exception, a pattern
    return names


_CHANGE = ("append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "clear", "sort")


def _literals(body: _Body) -> dict[str, Any]:
    """Return what the statements set to plain values."""
    values = {}
    for stmt in body:
        target = stmt.targets[0] if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 else None
        target = stmt.target if isinstance(stmt, ast.AnnAssign) else target
        value = stmt.value if isinstance(stmt, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and value is not None:
            try:
                values[target.id] = _literal(value)
            except (ValueError, TypeError):
                continue
    return values


def _literal(value: ast.expr) -> Any:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        if value.args or not all(word.arg for word in value.keywords):
            raise ValueError
        return {str(word.arg): ast.literal_eval(word.value) for word in value.keywords}
    return ast.literal_eval(value)


def _edited(module: ModuleType, code: CodeType) -> bool:
    """Whether an imported function isn't the one in the file any more."""
    now = {constant.co_name: constant for constant in code.co_consts if isinstance(constant, CodeType)}
    return any(
        name not in now or _form(now[name]) != _form(value.__code__)
        for name, value in vars(module).items()
        if type(value) is FunctionType
        and value.__globals__ is vars(module)
        and (value.__name__, value.__code__.co_filename) == (name, code.co_filename)
    )


def _form(code: CodeType) -> tuple[Any, ...]:
    inner = [
        _form(constant) if isinstance(constant, CodeType) else repr(constant) for constant in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, tuple(inner)


def _data(name: str, path: Path) -> Iterator[str]:
    """Name the files beside a module alone that it seems to read; a package brings what lies in it."""
    if "/" in name:
        return
    try:
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError):
        return
    if any(instruction.argval == "__file__" for instruction in pickler.instructions(code)):
        for text in opened.beside(path.parent, pickler.texts(code)):
            if text != name:
                yield f"{name} names {text} beside it, which isn't taken along: make them a package"
