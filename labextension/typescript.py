"""JSON Schema as TypeScript: ``src/model/record.ts`` is made of the server's schema.

``GOLDEN=write pytest tests/frontends/server/routes.py`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Shape: TypeAlias = Mapping[str, Any]

_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def module(about: str, shapes: Mapping[str, Shape], names: Iterable[str]) -> str:
    """Return a module that declares a type for each of the shapes with these names."""
    return "\n".join([f"/** {about} */\n", *(_declaration(name, shapes[name]) for name in names)])


def _declaration(name: str, shape: Shape) -> str:
    if "properties" not in shape:
        return f"export type {name} = {_type(shape)};\n"
    lines = [f"export interface {name} {{"]
    for field, of in shape["properties"].items():
        if "description" in of:
            lines.append(f"  /** {of['description']} */")
        lines.append(f"  readonly {field}: {_type(of)};")
    return "\n".join([*lines, "}\n"])


def _type(shape: Shape) -> str:
    if "$ref" in shape:
        return str(shape["$ref"]).rpartition("/")[2]
    if "enum" in shape:
        return " | ".join(f"'{value}'" for value in shape["enum"])
    if "anyOf" in shape:
        return " | ".join(map(_type, shape["anyOf"]))
    if shape["type"] == "array":
        return _array(shape)
    return _object(shape) if shape["type"] == "object" else _PLAIN[shape["type"]]


def _array(shape: Shape) -> str:
    if "prefixItems" in shape:
        return f"readonly [{', '.join(map(_type, shape['prefixItems']))}]"
    return f"readonly {_type(shape['items'])}[]"


def _object(shape: Shape) -> str:
    if "properties" not in shape:
        return f"Readonly<Record<string, {_type(shape['additionalProperties'])}>>"
    fields = (f"readonly {field}: {_type(of)}" for field, of in shape["properties"].items())
    return f"{{ {'; '.join(fields)} }}"
