"""A rank's value in one line, without printing a million numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob.text.words import line

_MOST = 160  # characters
_ITEMS = 6
_DEPTH = 3


def short(value: Any) -> str:
    """Return one line that describes ``value``: ``{'loss': 0.12, 'weights': OrderedDict of 8}``."""
    return line(_form(value, _DEPTH), _MOST)


def _form(value: Any, depth: int) -> str:
    try:
        return _told(value, depth)
    except Exception as exc:  # a user's __repr__ or property may raise anything
        return f"<{type(value).__name__} whose repr raises {type(exc).__name__}>"


def _told(value: Any, depth: int) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and getattr(value, "dtype", None) is not None and tuple(shape):
        dtype = str(value.dtype).rpartition(".")[2]
        return f"{type(value).__name__} {dtype} {tuple(shape)}"
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sequence(value, depth)
    return line(repr(value), _MOST)


def _mapping(value: Mapping[Any, Any], depth: int) -> str:
    if type(value) is not dict or len(value) > _ITEMS or not depth:
        return f"{type(value).__name__} of {len(value)}"
    return "{" + ", ".join(f"{k!r}: {_form(v, depth - 1)}" for k, v in value.items()) + "}"


def _sequence(value: Any, depth: int) -> str:
    if len(value) > _ITEMS or not depth:
        return f"{type(value).__name__} of {len(value)}"
    items = [_form(item, depth - 1) for item in value]
    if isinstance(value, list):
        return "[" + ", ".join(items) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
    return f"{type(value).__name__} of {len(value)}"
