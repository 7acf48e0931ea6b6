"""YAML, by libyaml where PyYAML has it, as its wheels do: 2 MB take 20 ms, and 0.8 s in Python.

Callers import this module late: PyYAML comes with the ``kubernetes`` extra, and a tender's pod is without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str | bytes) -> Any:
    """Return a document's content. Raises ``yaml.YAMLError``, and ``ValueError`` for an impossible date."""
    try:
        return yaml.load(text, _LOADER)
    except yaml.YAMLError:
        return yaml.safe_load(
            text
        )  # names the line of an end that comes too soon; libyaml names the one after it


def dump(obj: Mapping[str, Any]) -> str:
    """Return a document of plain data: its keys in their order, no line folded, nothing by reference."""
    plain = json.loads(json.dumps(obj))
    text: str = yaml.dump(plain, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=1 << 22)
    return text
