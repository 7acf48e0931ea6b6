"""Whether plain data that was read from a file has the types that a dataclass declares."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@cache
def _apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def checked(type_: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the dataclass ``type_`` knows; unknown ones, of a later version, are dropped.

    Raises ``TypeError`` for a field whose value has another type.
    """
    hints = _hints(type_)
    known = {name: value for name, value in given.items() if name in hints}
    for name, value in known.items():
        if not fits(value, hints[name]):
            raise TypeError(f"its {name} is of type {type(value).__name__}")
    return known


def built(type_: type[T], data: Mapping[str, Any]) -> T:
    """Return the dataclass whose ``asdict`` was written as JSON; raises ``TypeError`` for other data."""
    if not isinstance(data, Mapping):
        raise TypeError(f"a {type_.__name__} is of type {type(data).__name__}")
    hints = _hints(type_)
    parts = {name: _part(hints[name], value) for name, value in data.items() if name in hints}
    return type_(**checked(type_, parts))


def _part(hint: Any, value: Any) -> Any:
    if isinstance(value, list) and get_origin(hint) is tuple:
        return tuple(_part(get_args(hint)[0], each) for each in value)
    return built(hint, value) if is_dataclass(hint) and isinstance(hint, type) else value


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the type of a hint."""
    if hint is Any or type(value) is hint:  # most are: a list checks a hundred of each job
        return True
    origin, inner = _apart(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if not isinstance(value, (int, float) if hint is float else origin or hint):
        return False
    if isinstance(value, tuple) and inner:
        parts = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(parts) == len(value) and all(map(fits, value, parts))
    if isinstance(value, Mapping) and inner:
        return all(fits(key, inner[0]) and fits(each, inner[1]) for key, each in value.items())
    return True
