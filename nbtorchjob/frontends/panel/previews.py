"""A spec as the Python that makes it, and what a magic's line can't express of it (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS, magic_line, parse
from nbtorchjob.spec.overlay import value_at

_WIDTH = 88


def unsaid(spec: JobSpec, base: JobSpec) -> str:
    """Explain what keeps the line from making exactly ``spec`` out of ``base``; "" where nothing does."""
    try:
        made = parse(magic_line(spec, base=base), base)[0]
    except SpecError as exc:
        return f"The default profile conflicts with it: {exc}"
    if made == spec:
        return ""
    more = [key for key, o in KEYS.items() if value_at(o, made) != value_at(o, spec)]
    if more:
        return f"The default profile also has {', '.join(more)}, which no option can remove."
    return "Launch settings that only Python has are missing from the line: see the call."


def python(spec: JobSpec, fn: str = "fn") -> str:
    """Return the Python that submits ``fn`` under the same spec."""
    imported = ", ".join(sorted({"submit", *_names(spec)}))
    call = _called("submit", [fn, f"spec={code(spec)}"])
    return f"from nbtorchjob import {imported}\n\njob = {call}"


def code(value: Any) -> str:
    """Return the expression whose value is ``value``: configs, enums, and what they hold."""
    if is_dataclass(value):
        said = [f"{f.name}={code(getattr(value, f.name))}" for f in _changed(value)]
        return _called(type(value).__name__, said)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {item!r}' for name, item in value.items())}}}"
    return repr(list(value) if isinstance(value, tuple) else value)


def _called(name: str, arguments: list[str]) -> str:
    flat = f"{name}({', '.join(arguments)})"
    if len(flat) <= _WIDTH and "\n" not in flat:
        return flat
    lines = textwrap.indent("".join(f"{each},\n" for each in arguments), "    ")
    return f"{name}(\n{lines})"


def _changed(config: Any) -> list[Field[Any]]:
    return [f for f in fields(config) if getattr(config, f.name) != _default(f)]


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


def _names(value: Any) -> Iterator[str]:
    if is_dataclass(value):
        yield type(value).__name__
        for f in _changed(value):
            yield from _names(getattr(value, f.name))
    elif isinstance(value, Enum):
        yield type(value).__name__
