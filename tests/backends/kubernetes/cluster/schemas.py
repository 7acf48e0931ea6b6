"""Structural schemas: types, limits, defaults, pruning, and the CEL rules of the CRDs that matter here."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.backends.kubernetes.cluster.resources import JOBS, Object, Resource, copied, job_schema

Cause = tuple[str, str, str]

NOT_CHECKED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def type_name(value: Any) -> str:
    """Return the schema's name for a value's type."""
    return next((name for name, fits in TYPES.items() if fits(value)), "null")


def size(obj: Object) -> int:
    """Return the object's size as JSON, in bytes."""
    return len(json.dumps(obj, separators=(",", ":")))


@dataclass
class _Fit:
    """One walk over an object, which prunes it and fills in defaults."""

    unknown: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)

    def walk(self, schema: Object, value: Any, path: str) -> None:
        if schema.get("x-kubernetes-int-or-string"):
            fits = isinstance(value, int | str) and not isinstance(value, bool)
        else:
            fits = TYPES.get(schema.get("type", ""), lambda _: True)(value)
        if not fits:
            message = f'Invalid value: "{type_name(value)}": {path} in body must be of type {schema["type"]}'
            self.causes.append(("FieldValueTypeInvalid", f'{message}: "{type_name(value)}"', path))
            return
        self.causes.extend(_limits(schema, value, path))
        if isinstance(value, dict):
            self._object(schema, value, path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.walk(schema.get("items", {}), item, f"{path}[{index}]")

    def _object(self, schema: Object, value: Object, path: str) -> None:
        properties = schema.get("properties", {})
        for name, inner in properties.items():
            # A null counts as absent unless the field allows it, so a default applies.
            if value.get(name, "") is None and not inner.get("nullable"):
                del value[name]
            if name not in value and "default" in inner:
                value[name] = copied(inner["default"])
        for name in schema.get("required", ()):
            if name not in value:
                self.causes.append(("FieldValueRequired", "Required value", _at(path, name)))
        extra = schema.get("additionalProperties")
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or not (properties or extra)
        for name in list(value):
            if name in properties:
                self.walk(properties[name], value[name], _at(path, name))
            elif isinstance(extra, dict):
                self.walk(extra, value[name], _at(path, name))
            elif not open_ended and (path or name not in ("apiVersion", "kind", "metadata", "status")):
                self.unknown.append(_at(path, name))
                del value[name]


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _limits(schema: Object, value: Any, path: str) -> Iterable[Cause]:
    """Yield the faults of a value of the right type."""
    shown = f'"{value}"' if isinstance(value, str) else value
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{choice}"' for choice in schema["enum"])
        yield "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {allowed}", path
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        text = f"Invalid value: {shown}: {path} in body should match '{schema['pattern']}'"
        yield "FieldValueInvalid", text, path
    if isinstance(value, int | float) and "minimum" in schema and value < schema["minimum"]:
        text = f"{path} in body should be greater than or equal to {schema['minimum']}"
        yield "FieldValueInvalid", f"Invalid value: {value}: {text}", path
    if isinstance(value, int | float) and "maximum" in schema and value > schema["maximum"]:
        text = f"{path} in body should be less than or equal to {schema['maximum']}"
        yield "FieldValueInvalid", f"Invalid value: {value}: {text}", path
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        text = f"{path} in body should have at least {schema['minItems']} items"
        yield "FieldValueInvalid", f"Invalid value: {len(value)}: {text}", path
    if isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
        text = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        yield "FieldValueTooMany", text, path
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield "FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes", path
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        text = f"{path} in body should be at least {schema['minLength']} chars long"
        yield "FieldValueInvalid", f"Invalid value: {shown}: {text}", path


def fit(schema: Object, obj: Object) -> tuple[Object, list[str], list[Cause]]:
    """Return the object with defaults and without unknown fields, the paths of those, and its faults."""
    visitor = _Fit()
    fitted = copied(obj)
    visitor.walk(schema, fitted, "")
    causes = visitor.causes
    if any(reason in ("FieldValueRequired", "FieldValueTypeInvalid") for reason, _, _ in causes):
        causes.append(("FieldValueInvalid", NOT_CHECKED, "<nil>"))
    return fitted, sorted(visitor.unknown), causes


def rules(resource: Resource, obj: Object, before: Object | None) -> list[Cause]:
    """Return a cause for each CEL rule that is broken."""
    schema = job_schema() if resource == JOBS else resource.schema
    return list(_rules(schema, obj, before, "", obj)) if schema else []


def _rules(schema: Object, value: Any, before: Any, path: str, root: Object) -> Iterable[Cause]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if not _holds(rule["rule"], value, before, root):
            message = rule.get("message", f"failed rule: {rule['rule']}")
            # The top level shows no value.
            shown = json.dumps(value) if path and not isinstance(value, dict) else "object"
            text = f"Invalid value: {shown}: {message}" if path else f"Invalid value: {message}"
            yield "FieldValueInvalid", text, path or "<nil>"
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                old = before.get(name) if isinstance(before, dict) else None
                yield from _rules(inner, value[name], old, _at(path, name), root)


def _holds(rule: str, value: Any, before: Any, root: Object) -> bool:
    """Return whether a rule holds; an unsupported rule does."""
    if rule == "self == oldSelf":
        return before is None or value == before
    if match := re.fullmatch(r"self\.metadata\.name\.matches\('(.*)'\)", rule):
        return re.search(match[1], root["metadata"]["name"]) is not None
    if match := re.fullmatch(r"size\(self\.metadata\.name\) <= (\d+)", rule):
        return len(root["metadata"]["name"]) <= int(match[1])
    if match := re.fullmatch(r"self in \[(.*)\]", rule):
        return value in [choice.strip().strip("'") for choice in match[1].split(",")]
    if match := re.fullmatch(r"self >= (\d+)", rule):
        return bool(value >= int(match[1]))
    return True
