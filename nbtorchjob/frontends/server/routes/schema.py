"""The option table as JSON Schema (pure): what somebody else's form needs to know of a profile."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import GROUPS, KEYS
from nbtorchjob.spec.overlay import overlay, read, value_at
from nbtorchjob.spec.policies import Retry
from nbtorchjob.spec.validation import Option

Schema: TypeAlias = dict[str, Any]

_TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "switch": {"type": "boolean"},
    "pairs": {"type": "object", "additionalProperties": {"type": "string"}},
    "texts": {"type": "array", "items": {"type": "string"}},
}


@cache
def profile() -> Schema:
    """Return the schema (2020-12) of a profile: of the table ``[profiles.NAME]`` in ``nbtorchjob.toml``.

    It knows names and types; ``profiles.load`` checks the relations between options and the grammar of
    texts. Besides JSON Schema's own keywords an option has ``x-group``, ``x-unit`` and, where its texts
    aren't plain values, ``x-form``: how one is written.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A profile of nbtorchjob",
        "description": (
            "The options of a job, by their keys in a profile: [profiles.NAME] of nbtorchjob.toml. "
            "Each is the flag of that name on a %%torchjob line."
        ),
        "type": "object",
        "properties": {key: _property(option) for key, option in KEYS.items()},
        "additionalProperties": False,
    }


def _property(o: Option) -> Schema:
    notes: Schema = {"default": read(o, o.default, o.key)} if o.default else {}
    if value_at(o, _PLAIN) is False:  # others that aren't given are a site's to set
        notes["default"] = False
    notes["x-group"] = _TITLES[o.home]
    if o.unit:
        notes["x-unit"] = o.unit
    if o.metavar and not o.choices:
        notes["x-form"] = o.metavar
    return {**_type(o), "description": o.help, **notes}


_PLAIN = JobSpec(retry=Retry())
_TITLES = {home: title for title, home, _ in GROUPS}


def _type(o: Option) -> Schema:
    if o.choices:
        return {"type": "string", "enum": list(o.choices)}
    other = next((name for name, value in _OTHERS if _takes(o, value)), None)
    if other is None:
        return _TYPES[o.takes]
    either: Schema = {"type": ["string", other]}
    return either if o.takes == "text" else {**_TYPES[o.takes], "additionalProperties": either}


# What may be written in place of a text, the widest first: an amount, a count, a patch.
_OTHERS: tuple[tuple[str, Any], ...] = (("number", 1.5e9), ("integer", 2), ("object", {"spec": {}}))


def _takes(o: Option, value: Any) -> bool:
    """Return whether a text, or one of a mapping's texts, may be of that type."""
    if o.takes not in ("text", "pairs"):
        return False
    # The field itself is asked, as the table doesn't know a text's grammar. The name is one that all
    # mappings accept: a variable's, a label's, a resource's.
    given = {"example.com/a": value} if o.takes == "pairs" else value
    try:
        overlay(JobSpec(), {o: given}, lambda option: option.key)
    except SpecError:
        return False
    return True
