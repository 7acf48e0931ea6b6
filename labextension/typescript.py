"""What Python knows, as TypeScript.

``src/model/record.ts`` is made of the server's schema, ``src/commands/table.ts`` of the table of verbs:
``GOLDEN=write pytest tests/frontends/server/routes/test_typescript.py`` writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from nbtorchjob.ui.record import Condition, Offer, Offers

Shape: TypeAlias = Mapping[str, Any]

_WIDTH = 88  # of a value, as the formatter has it
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
    of = _type(shape["items"])
    return f"readonly ({of})[]" if " " in of else f"readonly {of}[]"


def _object(shape: Shape) -> str:
    if "properties" not in shape:
        return f"Readonly<Record<string, {_type(shape['additionalProperties'])}>>"
    fields = (f"readonly {field}: {_type(of)}" for field, of in shape["properties"].items())
    return f"{{ {'; '.join(fields)} }}"


_HEAD = """\
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Offer } from './verbs';
"""


def table(about: str, offers: Offers, changes: Iterable[str]) -> str:
    """Return a module that has these offers by their verbs, and says which a server only need be told."""
    return "\n".join(
        [
            f"/** {about} */\n",
            _HEAD,
            _constant("COMMANDS", {verb: f"nbtorchjob:{verb}" for verb in offers}),
            _constant("RANKS", {verb: offer.rank for verb, offer in offers.items()}),
            f"export const CHANGES = [{', '.join(map(_literal, changes))}] as const;\n",
            "// In a function, and as literals: translators' tools look for them.",
            "export function offersIn(trans: TranslationBundle) {",
            "  return {",
            ",\n".join(_offer(verb, offer) for verb, offer in offers.items()),
            "  } as const satisfies Record<keyof typeof COMMANDS, Offer>;",
            "}\n",
        ]
    )


def _constant(name: str, values: Mapping[str, object]) -> str:
    rows = ",\n".join(f"  {key}: {_literal(value)}" for key, value in values.items())
    return f"export const {name} = {{\n{rows}\n}} as const;\n"


def _offer(verb: str, offer: Offer) -> str:
    fields = ",\n".join(f"      {name}: {text}" for name, text in _fields(offer))
    return f"    {verb}: {{\n{fields}\n    }}"


def _fields(offer: Offer) -> Iterator[tuple[str, str]]:
    for name in ("label", "asking", "caption"):
        yield name, _words(getattr(offer, name))
    yield "icon", _literal(f"{offer.icon}Icon")
    yield "when", _condition(offer.when)
    if offer.warning or offer.warning_ended:
        yield "warning", _warning(offer)


def _condition(when: Condition) -> str:
    fields = [f"{field}: [{', '.join(map(_literal, values))}]" for field, values in when.items()]
    line = f"{{ {', '.join(fields)} }}" if fields else "{}"
    if len(line) <= _WIDTH:
        return line
    rows = ",\n".join(f"        {_broken(field)}" for field in fields)
    return f"{{\n{rows}\n      }}"


def _broken(field: str) -> str:
    """Break a list that is too long for a line, as Prettier does."""
    if len(field) <= _WIDTH:
        return field
    name, _, values = field.rstrip("]").partition("[")
    rows = ",\n".join(f"          {value}" for value in values.split(", "))
    return f"{name}[\n{rows}\n        ]"


def _warning(offer: Offer) -> str:
    fields = {
        "title": f"(name: string) => trans.__({_literal(f'{offer.label} %1?')}, name)",
        "yes": _words(f"{offer.label} Job"),
        "live": _words(offer.warning),
        "ended": _words(offer.warning_ended),
    }
    rows = ",\n".join(f"        {name}: {text}" for name, text in fields.items())
    return f"{{\n{rows}\n      }}"


def _words(text: str) -> str:
    return f"trans.__({_literal(text)})" if text else "''"  # of '' a catalogue tells its own head


def _literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
