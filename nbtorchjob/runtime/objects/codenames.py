"""The names that compiled code looks up: in its instructions, and in strings that it may evaluate."""

from __future__ import annotations

import ast
import dis
import types
import weakref
from typing import Any, Dict, Iterable, Iterator, List

_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_GLOBAL", "DELETE_NAME")
_COMPUTES = frozenset(("eval", "exec", "globals", "locals", "vars", "dir", "__main__"))
_read_by: Any = weakref.WeakKeyDictionary()


def names_read(code: types.CodeType) -> Dict[str, None]:
    """Return the names that a function's code, including nested code, looks up as globals."""
    names: Dict[str, None] = _read_by.get(code)
    if names is None:
        names = {
            instruction.argval: None for instruction in instructions(code) if instruction.opname in _READS
        }
        names.update(names_in_texts(code))
        _read_by[code] = names
    return names


def names_in_texts(code: types.CodeType) -> Dict[str, None]:
    """Return the names that code may look up through ``eval``, ``globals()["x"]`` or ``__main__.x``."""
    names: Dict[str, None] = {}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    if _COMPUTES.intersection(code.co_names):
        for text in _texts_among(code.co_consts):
            names.update(dict.fromkeys(names_in(text)))
    if "__main__" in code.co_names:
        names.update(dict.fromkeys(code.co_names))
    for constant in inner:
        names.update(names_in_texts(constant))
    return names


def names_in(text: str) -> List[str]:
    """Return the names that evaluating ``text`` would read; none if it isn't Python."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError):
        return []
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def texts(code: types.CodeType) -> Iterator[str]:
    """Yield the strings among the constants of ``code`` and of its nested code."""
    yield from _texts_among(code.co_consts)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from texts(constant)


def _texts_among(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):  # the items of a loop, or the keys of a dict
            yield from _texts_among(constant)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield ``code``, and the code of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of ``code`` and of its nested code."""
    for inner in nested(code):
        yield from dis.get_instructions(inner)


def all_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names in ``code`` and its nested code, including those that it may pass to ``getattr``."""
    for inner in nested(code):
        yield from inner.co_names
        if "getattr" in inner.co_names:
            texts = (constant for constant in inner.co_consts if isinstance(constant, str))
            yield from (name for text in texts for name in text.split("."))
