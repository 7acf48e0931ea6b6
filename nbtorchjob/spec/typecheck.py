"""Whether plain data that was read from a file has the types that a dataclass declares."""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

_hints = cache(get_type_hints)


def checked(type_: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the dataclass ``kind`` knows; unknown ones, of a later version, are dropped.

    Raises ``TypeError`` for a field whose value has another type.
    """
    hints = _hints(type_)
    known = {name: value for name, value in given.items() if name in hints}
    for name, value in known.items():
        if not fits(value, hints[name]):
            raise TypeError(f"its {name} is of type {type(value).__name__}")
    return known


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the type of a hint."""
    if hint is Any:
        return True
    origin, inner = get_origin(hint), get_args(hint)
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
