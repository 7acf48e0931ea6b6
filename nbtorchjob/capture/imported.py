"""How a module of the notebook's folder differs here from what ranks get, which import its file anew."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nbtorchjob.capture import opened
from nbtorchjob.runtime import importable, pickler
from nbtorchjob.text import values


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
    bound = [
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    for key, value in _literals(tree).items():
        here = vars(module).get(key, value)
        if bound.count(key) == 1 and (type(here) is not type(value) or here != value):
            yield (
                f"{module.__name__}.{key} is {values.short(here)} here, and {values.short(value)} on ranks: "
                f"they import {name} anew"
            )


def _literals(tree: ast.Module) -> dict[str, Any]:
    """Return what the module sets to plain values."""
    found = {}
    for stmt in tree.body:
        if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and isinstance(stmt.targets[0], ast.Name):
            try:
                found[stmt.targets[0].id] = ast.literal_eval(stmt.value)
            except (ValueError, TypeError):
                continue
    return found


def _edited(module: ModuleType, code: CodeType) -> bool:
    """Whether an imported function isn't the one in the file any more."""
    now = {each.co_name: each for each in code.co_consts if isinstance(each, CodeType)}
    return any(
        name not in now or _form(now[name]) != _form(value.__code__)
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__globals__ is vars(module)
        and (value.__name__, value.__code__.co_filename) == (name, code.co_filename)
    )


def _form(code: CodeType) -> tuple[Any, ...]:
    inner = [_form(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, tuple(inner)


def _data(name: str, path: Path) -> Iterator[str]:
    """Name the files beside a module alone that it seems to read; a package brings what lies in it."""
    if "/" in name:
        return
    try:
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError):
        return
    if any(each.argval == "__file__" for each in pickler.instructions(code)):
        for text in opened.beside(path.parent, pickler.texts(code)):
            if text != name:
                yield f"{name} names {text} beside it, which isn't taken along: make them a package"
