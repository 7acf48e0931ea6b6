"""What follows ``--``: the arguments of the function that a job runs."""

from __future__ import annotations

import ast
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nbtorchjob.errors import LineError

# What ``ast.literal_eval`` raises for a text that isn't a literal.
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arguments(
    fn: Callable[..., Any], words: Sequence[str], given: Mapping[str, Any] = MappingProxyType({})
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in ``0.1 --lr 3 --fast``; raises ``LineError`` where ``fn`` can't take them.

    Nor beside what a run is ``given``.

    A word is a Python literal, else text; for a parameter annotated as ``str`` it is always text.
    """
    name_ = getattr(fn, "__name__", type(fn).__name__)  # a partial has none
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # max, and some other functions in C
        raise LineError(f"{name_} doesn't say what it takes: call it from a function of the script") from None
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
        signature.bind(*args, **{**kwargs, **given})
    except TypeError as exc:
        raise LineError(f"{name_}{signature}: {exc}") from None
    return args, kwargs


def _at(index: int, taken: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameter that takes the positional argument of that index, if there is one."""
    named = [each for each in taken.values() if each.kind in _POSITIONAL]
    others = [each for each in taken.values() if each.kind is each.VAR_POSITIONAL]
    return (named[index:] or others)[:1]


def _value(text: str, parameter: Sequence[inspect.Parameter]) -> Any:
    """Return the value of a word for its parameter, if it has one."""
    if any(each.annotation is str or each.annotation == "str" for each in parameter):
        return text
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        return text
